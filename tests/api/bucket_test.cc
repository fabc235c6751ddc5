// Plans of buckets, carried out: each bucket is one call over a list, on the communicator that its items name.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "subgroups.h"

using namespace kolo::test;

namespace {

// A group of two ranks that its name found, and its ranks in the world.
struct NamedGroup {
  koloComm_t comm = nullptr;
  std::vector<int> members;
};

// A collective of the program, with this rank's buffers.
struct BucketStep {
  koloCollective_t collective;
  koloDataType_t datatype;
  koloRedOp_t op;
  const NamedGroup* group;
  std::size_t count;  // elements of a block
  std::vector<unsigned char> input, output;

  bool sendsBlocks() const { return collective == koloCollectiveReduceScatter; }
  bool receivesBlocks() const { return collective == koloCollectiveAllGather; }
};

void storeNumber(koloDataType_t datatype, int value, unsigned char* at) {
  const auto store = [at](auto number) { std::memcpy(at, &number, sizeof number); };
  switch (datatype) {
    case koloInt8: return store(static_cast<std::int8_t>(value));
    case koloInt32: return store(static_cast<std::int32_t>(value));
    case koloFloat32: return store(static_cast<float>(value));
    default: return store(static_cast<double>(value));
  }
}

int givenInStep(int rank, std::size_t step, std::size_t element) {
  return static_cast<int>((static_cast<std::size_t>(rank) * 5 + step * 3 + element * 7) % 23);
}

// Steps of three collectives on both groups, in four datatypes, so that steps that follow each other never belong
// together.
std::vector<BucketStep> programOf(const Self& self, const NamedGroup& row, const NamedGroup& column) {
  constexpr koloCollective_t kCollectives[] = {koloCollectiveAllGather, koloCollectiveReduceScatter,
                                               koloCollectiveAllReduce};
  constexpr koloDataType_t kTypes[] = {koloFloat32, koloInt8, koloFloat64, koloInt32};
  std::vector<BucketStep> steps;
  for (std::size_t i = 0; i < 48; ++i) {
    BucketStep step{kCollectives[i % 3],
                    kTypes[i % 4],
                    i % 9 == 8 ? koloMax : koloSum,
                    i / 3 % 2 == 0 ? &row : &column,
                    1 + i * 37 % 300,
                    {},
                    {}};
    const std::size_t blocks = step.group->members.size(), size = koloDataTypeSize(step.datatype);
    step.input.resize(step.count * size * (step.sendsBlocks() ? blocks : 1));
    step.output.resize(step.count * size * (step.receivesBlocks() ? blocks : 1), 0xee);
    for (std::size_t k = 0; k * size < step.input.size(); ++k)
      storeNumber(step.datatype, givenInStep(self.rank, i, k), step.input.data() + k * size);
    steps.push_back(std::move(step));
  }
  return steps;
}

// What a rank is to find in a step's output, whose number and element these are.
int wantedInStep(const BucketStep& step, int rank, std::size_t number, std::size_t element) {
  const std::vector<int>& members = step.group->members;
  if (step.receivesBlocks()) return givenInStep(members[element / step.count], number, element % step.count);
  // A block goes by the place in the group, which is neither the rank in the world nor a device's number.
  if (step.sendsBlocks()) element += static_cast<std::size_t>(placeIn(members, rank)) * step.count;
  int result = 0;
  for (const int member : members) {
    const int value = givenInStep(member, number, element);
    result = step.op == koloMax ? std::max(result, value) : result + value;
  }
  return result;
}

bool isDone(const BucketStep& step, int rank, std::size_t number) {
  const std::size_t size = koloDataTypeSize(step.datatype);
  std::vector<unsigned char> wanted(step.output.size());
  for (std::size_t k = 0; k * size < wanted.size(); ++k)
    storeNumber(step.datatype, wantedInStep(step, rank, number, k), wanted.data() + k * size);
  return step.output == wanted;
}

// A bucket's launch; as a request, if there is a place for one.
koloResult_t launchBucket(const BucketStep& first, const std::vector<koloItem_t>& items, koloRequest_t* request) {
  const koloComm_t comm = first.group->comm;
  const std::size_t n = items.size();
  switch (first.collective) {
    case koloCollectiveAllGather:
      return request != nullptr ? koloIallGatherList(items.data(), n, comm, request)
                                : koloAllGatherList(items.data(), n, comm, nullptr);
    case koloCollectiveReduceScatter:
      return request != nullptr ? koloIreduceScatterList(items.data(), n, first.op, comm, request)
                                : koloReduceScatterList(items.data(), n, first.op, comm, nullptr);
    default:
      return request != nullptr ? koloIallReduceList(items.data(), n, first.op, comm, request)
                                : koloAllReduceList(items.data(), n, first.op, comm, nullptr);
  }
}

struct BucketPlan {
  std::vector<int> bucketOf;
  std::vector<std::size_t> launchAt;
};

// With a small cap for the first bucket of each class, and a large one for the others.
BucketPlan planSteps(Self& self, const std::vector<BucketStep>& steps) {
  std::vector<koloBucketItem_t> items;
  for (const BucketStep& step : steps) {
    items.push_back({std::max(step.input.size(), step.output.size()), step.datatype, step.collective, step.op,
                     step.group->comm, nullptr, 0});
  }
  const auto cap = [](int bucket, void*) { return bucket == 0 ? 1.0 / 256 : 1.0; };
  BucketPlan plan{std::vector<int>(steps.size(), -7), std::vector<std::size_t>(steps.size())};
  std::size_t buckets = 0;
  EXPECT_OK(self, koloBucketPlan(items.data(), items.size(), cap, nullptr, nullptr, 1, plan.bucketOf.data(),
                                 plan.launchAt.data(), &buckets));
  plan.launchAt.resize(buckets);
  return plan;
}

// The steps that go with step `i`: its bucket, or itself alone.
std::vector<std::size_t> togetherWith(const BucketPlan& plan, std::size_t i) {
  std::vector<std::size_t> all;
  for (std::size_t k = 0; k < plan.bucketOf.size(); ++k) {
    if (k == i || (plan.bucketOf[i] != KOLO_NO_BUCKET && plan.bucketOf[k] == plan.bucketOf[i])) all.push_back(k);
  }
  return all;
}

// The steps, each bucket at the place where it is launched; requests are waited for at the end, the last one first.
void carryOutSteps(Self& self, const BucketPlan& plan, std::vector<BucketStep>& steps, bool asRequests) {
  std::vector<koloRequest_t> requests;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const int bucket = plan.bucketOf[i];
    if (bucket != KOLO_NO_BUCKET && plan.launchAt[static_cast<std::size_t>(bucket)] != i) continue;
    std::vector<koloItem_t> items;
    for (const std::size_t k : togetherWith(plan, i)) {
      koloItem_t item{};
      item.sendbuf = steps[k].input.data();
      item.recvbuf = steps[k].output.data();
      item.count = steps[k].count;
      item.sendtype = item.transfertype = item.recvtype = steps[k].datatype;
      items.push_back(item);
    }
    koloRequest_t request = nullptr;
    EXPECT_OK(self, launchBucket(steps[i], items, asRequests ? &request : nullptr));
    if (request != nullptr) requests.push_back(request);
  }
  std::reverse(requests.begin(), requests.end());
  for (const koloRequest_t request : requests) {
    EXPECT_OK(self, koloRequestWait(request, -1));
    EXPECT_OK(self, koloRequestFree(request));
  }
}

// That buckets hold what may go together, and some of them several datatypes.
void expectMixed(Self& self, const BucketPlan& plan, const std::vector<BucketStep>& steps) {
  std::vector<bool> isMixed(plan.launchAt.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const std::size_t k : togetherWith(plan, i)) {
      EXPECT(self, steps[k].group == steps[i].group && steps[k].collective == steps[i].collective);
      if (steps[k].datatype != steps[i].datatype) isMixed[static_cast<std::size_t>(plan.bucketOf[i])] = true;
    }
  }
  // There are eight classes, most of which have a full bucket and another one for the rest.
  EXPECT(self, plan.launchAt.size() > 8);
  EXPECT(self, std::count(isMixed.begin(), isMixed.end(), true) > 8);
}

}  // namespace

// Ranks 0..3 are a mesh of two rows and two columns, both turned round.
TEST_CASE("S2.8 buckets of several datatypes, each on the group that its items name, give what each step is to give",
          "[threads][links]") {
  World world(4);
  world.run([](Self& self) {
    const int r = self.rank;
    NamedGroup row{nullptr, {r / 2 * 2 + 1, r / 2 * 2}}, column{nullptr, {r % 2 + 2, r % 2}};
    koloComm_t rows = nullptr, columns = nullptr;
    EXPECT_OK(self, createGroup(self, row.members, &rows, "rows"));
    EXPECT_OK(self, createGroup(self, column.members, &columns, "columns"));
    EXPECT_OK(self, koloCommByName("rows", &row.comm));
    EXPECT_OK(self, koloCommByName("columns", &column.comm));
    EXPECT(self, row.comm == rows && column.comm == columns);
    for (const bool asRequests : {false, true}) {
      std::vector<BucketStep> steps = programOf(self, row, column);
      const BucketPlan plan = planSteps(self, steps);
      expectMixed(self, plan, steps);
      carryOutSteps(self, plan, steps, asRequests);
      for (std::size_t i = 0; i < steps.size(); ++i) EXPECT(self, isDone(steps[i], r, i));
    }
    EXPECT_OK(self, koloCommDestroy(rows));
    EXPECT_OK(self, koloCommDestroy(columns));
  });
}
