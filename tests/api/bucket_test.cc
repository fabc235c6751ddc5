// Plans of buckets, carried out: each bucket is one call over a list, on the communicator that its items name.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "subgroups.h"
#include "support/seed.h"
#include "support/settings.h"

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

struct BucketPlan {
  std::vector<int> bucketOf;
  std::vector<std::size_t> order, stepAt;  // stepAt ends with the end of the last step

  std::size_t steps() const { return stepAt.size() - 1; }
};

// With a small cap for the first bucket of each class, and a large one for the others.
BucketPlan planProgram(Self& self, const std::vector<koloBucketItem_t>& program) {
  const auto cap = [](const koloBucketItem_t*, int bucket, void*) { return bucket == 0 ? 1.0 / 256 : 1.0; };
  const std::size_t n = program.size();
  BucketPlan plan{std::vector<int>(n, -7), std::vector<std::size_t>(n), std::vector<std::size_t>(n + 1)};
  std::size_t steps = 0;
  EXPECT_OK(self, koloBucketPlan(program.data(), n, cap, nullptr, nullptr, 1, plan.bucketOf.data(), plan.order.data(),
                                 plan.stepAt.data(), &steps));
  plan.stepAt.resize(steps + 1);
  return plan;
}

std::vector<koloItem_t> transfersOf(const std::vector<BucketStep>& steps) {
  std::vector<koloItem_t> transfers;
  for (const BucketStep& step : steps) {
    koloItem_t item = KOLO_ITEM_INITIALIZER;
    item.sendbuf = step.input.data();
    item.recvbuf = const_cast<unsigned char*>(step.output.data());
    item.count = step.count;
    item.sendtype = step.datatype;
    transfers.push_back(item);
  }
  return transfers;
}

// REQUIRES: the transfers live as long as the program.
std::vector<koloBucketItem_t> itemsOf(const std::vector<BucketStep>& steps, const std::vector<koloItem_t>& transfers) {
  std::vector<koloBucketItem_t> items;
  for (const BucketStep& step : steps) {
    items.push_back(
        {0, koloNumDatatypes, step.collective, step.op, step.group->comm, nullptr, 0, &transfers[items.size()]});
  }
  return items;
}

// Waits for the requests, the last one first, and gives them back.
void finishRequests(Self& self, std::vector<koloRequest_t>& requests) {
  std::reverse(requests.begin(), requests.end());
  EXPECT_OK(self, koloRequestWaitAll(static_cast<int>(requests.size()), requests.data(), -1));
  for (const koloRequest_t request : requests) EXPECT_OK(self, koloRequestFree(request));
  requests.clear();
}

// Each step of the plan, as its turn comes; requests are waited for at the end.
void carryOutSteps(Self& self, const BucketPlan& plan, const std::vector<koloBucketItem_t>& program, bool asRequests) {
  std::vector<koloRequest_t> requests;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const std::size_t* const members = plan.order.data() + plan.stepAt[step];
    const std::size_t count = plan.stepAt[step + 1] - plan.stepAt[step];
    if (asRequests) EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloBucketLaunch(program.data(), members, count, nullptr));
    if (asRequests) EXPECT_OK(self, koloIgroupEnd(&requests.emplace_back()));
  }
  finishRequests(self, requests);
}

// That buckets hold what may go together, and some of them several datatypes.
void expectMixed(Self& self, const BucketPlan& plan, const std::vector<BucketStep>& steps) {
  int buckets = 0, mixed = 0;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const BucketStep& first = steps[plan.order[plan.stepAt[step]]];
    bool isMixed = false;
    for (std::size_t at = plan.stepAt[step]; at < plan.stepAt[step + 1]; ++at) {
      const BucketStep& member = steps[plan.order[at]];
      EXPECT(self, member.group == first.group && member.collective == first.collective && member.op == first.op);
      isMixed = isMixed || member.datatype != first.datatype;
    }
    buckets += plan.stepAt[step + 1] - plan.stepAt[step] > 1 ? 1 : 0;
    mixed += isMixed ? 1 : 0;
  }
  // There are eight classes, most of which have a full bucket and another one for the rest.
  EXPECT(self, buckets > 8);
  EXPECT(self, mixed > 8);
}

// ---- programs in which items need the results of others

constexpr int kMissing = -1'000'000'000;  // in a result that is not there yet

// A collective of ints, or a computation.
struct Needing {
  koloBucketItem_t item{};
  koloItem_t transfer = KOLO_ITEM_INITIALIZER;
  std::vector<std::size_t> dependsOn;
  std::vector<int> input, output;
};

// The same on all ranks, but for the buffers.
std::vector<Needing> randomProgram(std::uint64_t seed, koloComm_t row, koloComm_t column) {
  constexpr koloCollective_t kKinds[] = {koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveAllReduce,
                                         koloCollectiveBarrier};
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  std::vector<Needing> program(30);
  for (std::size_t i = 0; i < program.size(); ++i) {
    Needing& each = program[i];
    each.item.collective = kKinds[below(4)];
    each.item.op = below(4) == 0 ? koloMax : koloSum;
    each.item.comm = below(3) == 0 ? column : row;
    each.transfer.count = 1 + below(300);
    each.transfer.sendtype = koloInt32;
    each.input.resize(each.transfer.count * (each.item.collective == koloCollectiveReduceScatter ? 2 : 1));
    each.output.assign(each.transfer.count * (each.item.collective == koloCollectiveAllGather ? 2 : 1), kMissing);
    each.transfer.sendbuf = each.input.data();
    each.transfer.recvbuf = each.output.data();
    for (std::size_t k = below(3); k > 0 && i > 0; --k) each.dependsOn.push_back(below(i));
  }
  for (Needing& each : program) {
    each.item.dependsOn = each.dependsOn.data();
    each.item.dependencies = each.dependsOn.size();
    each.item.item = each.item.collective == koloCollectiveBarrier ? nullptr : &each.transfer;
  }
  return program;
}

std::vector<koloBucketItem_t> itemsOf(const std::vector<Needing>& program) {
  std::vector<koloBucketItem_t> items;
  for (const Needing& each : program) items.push_back(each.item);
  return items;
}

// What the item takes, of which the results that it needs are a part.
void makeInput(int rank, std::size_t number, std::vector<Needing>& program) {
  Needing& each = program[number];
  for (std::size_t k = 0; k < each.input.size(); ++k) {
    each.input[k] = givenInStep(rank, number, k);
    for (const std::size_t other : each.dependsOn) {
      const std::vector<int>& result = program[other].output;
      each.input[k] = (each.input[k] + result[k % result.size()]) % 10007;
    }
  }
  if (each.item.item == nullptr) each.output = each.input;
}

// Has the steps carried out; each of one item, in the program's order, if there is no plan. Only what needs a result
// waits.
void carryOutProgram(Self& self, const BucketPlan* plan, std::vector<Needing>& program, bool asRequests) {
  const std::vector<koloBucketItem_t> items = itemsOf(program);
  std::vector<koloRequest_t> requests;
  const std::size_t steps = plan != nullptr ? plan->steps() : program.size();
  for (std::size_t step = 0; step < steps; ++step) {
    const std::size_t* const members = plan != nullptr ? plan->order.data() + plan->stepAt[step] : &step;
    const std::size_t count = plan != nullptr ? plan->stepAt[step + 1] - plan->stepAt[step] : 1;
    const auto needsResults = [&](std::size_t member) { return !program[member].dependsOn.empty(); };
    if (std::any_of(members, members + count, needsResults)) finishRequests(self, requests);
    for (std::size_t i = 0; i < count; ++i) makeInput(self.rank, members[i], program);
    if (items[members[0]].item == nullptr) continue;
    if (asRequests) EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloBucketLaunch(items.data(), members, count, nullptr));
    if (asRequests) EXPECT_OK(self, koloIgroupEnd(&requests.emplace_back()));
  }
  finishRequests(self, requests);
}

// Two groups of each rank in a mesh of two rows and two columns, both turned round.
struct MeshGroups {
  NamedGroup row, column;
};
MeshGroups makeGroups(Self& self) {
  const int r = self.rank;
  MeshGroups groups{{nullptr, {r / 2 * 2 + 1, r / 2 * 2}}, {nullptr, {r % 2 + 2, r % 2}}};
  koloComm_t row = nullptr, column = nullptr;
  EXPECT_OK(self, createGroup(self, groups.row.members, &row, "rows"));
  EXPECT_OK(self, createGroup(self, groups.column.members, &column, "columns"));
  EXPECT_OK(self, koloCommByName("rows", &groups.row.comm));
  EXPECT_OK(self, koloCommByName("columns", &groups.column.comm));
  EXPECT(self, groups.row.comm == row && groups.column.comm == column);
  return groups;
}
void destroyGroups(Self& self, const MeshGroups& groups) {
  EXPECT_OK(self, koloCommDestroy(groups.row.comm));
  EXPECT_OK(self, koloCommDestroy(groups.column.comm));
}

}  // namespace

TEST_CASE("S2.8 buckets of several datatypes, each on the group that its items name, give what each step is to give",
          "[threads][links]") {
  World world(4);
  world.run([](Self& self) {
    const MeshGroups groups = makeGroups(self);
    for (const bool asRequests : {false, true}) {
      std::vector<BucketStep> steps = programOf(self, groups.row, groups.column);
      const std::vector<koloItem_t> transfers = transfersOf(steps);
      const std::vector<koloBucketItem_t> program = itemsOf(steps, transfers);
      const BucketPlan plan = planProgram(self, program);
      expectMixed(self, plan, steps);
      carryOutSteps(self, plan, program, asRequests);
      for (std::size_t i = 0; i < steps.size(); ++i) EXPECT(self, isDone(steps[i], self.rank, i));
    }
    destroyGroups(self, groups);
  });
}

TEST_CASE("S2.3 S2.7 a plan with dependencies, carried out in its order, gives what the unmerged program gives") {
  World world(4);
  for (Rounds rounds(11); rounds.next();) {
    INFO("seed " << rounds.seed());
    world.run([&](Self& self) {
      const MeshGroups groups = makeGroups(self);
      for (int number = 0; number < 4; ++number) {
        const auto make = [&] {
          return randomProgram(rounds.seed() + static_cast<std::uint64_t>(number), groups.row.comm, groups.column.comm);
        };
        std::vector<Needing> unmerged = make(), merged = make();
        const BucketPlan plan = planProgram(self, itemsOf(merged));
        EXPECT(self, plan.steps() < merged.size());
        carryOutProgram(self, nullptr, unmerged, false);
        carryOutProgram(self, &plan, merged, number % 2 == 1);
        for (std::size_t i = 0; i < merged.size(); ++i) EXPECT(self, merged[i].output == unmerged[i].output);
      }
      destroyGroups(self, groups);
    });
  }
}

TEST_CASE("S2.2 the bytes and the datatype of an item are those of its transfer") {
  World world(3);
  world.run([](Self& self) {
    constexpr std::size_t kCount = 1000;
    std::vector<float> few(kCount), many(3 * kCount);
    koloItem_t gathered = KOLO_ITEM_INITIALIZER;
    gathered.sendbuf = few.data();
    gathered.recvbuf = many.data();
    gathered.count = kCount;
    gathered.sendtype = koloFloat32;
    koloItem_t narrow = gathered, scattered = gathered, reduced = gathered;
    narrow.transfertype = koloBfloat16;
    scattered.sendbuf = many.data();
    scattered.recvbuf = few.data();
    reduced.recvbuf = few.data();
    const struct {
      koloCollective_t collective;
      const koloItem_t* item;
      std::size_t bytes;
      koloDataType_t datatype;
    } cases[] = {{koloCollectiveAllGather, &gathered, 3 * kCount * 4, koloFloat32},
                 {koloCollectiveAllGather, &narrow, 3 * kCount * 2, koloBfloat16},
                 {koloCollectiveReduceScatter, &scattered, 3 * kCount * 4, koloFloat32},
                 {koloCollectiveAllReduce, &reduced, kCount * 4, koloFloat32}};
    for (const auto& each : cases) {
      // Two alike, so that there is a class. What is said beside the transfer is not read.
      const koloBucketItem_t item{7, koloInt8, each.collective, koloSum, self.comm, nullptr, 0, each.item};
      const koloBucketItem_t items[] = {item, item};
      koloBucketItem_t asked{};
      const auto cap = [](const koloBucketItem_t* first, int, void* context) {
        *static_cast<koloBucketItem_t*>(context) = *first;
        return 1.0;
      };
      std::vector<int> bucketOf(2);
      EXPECT_OK(self, koloBucketPlan(items, 2, cap, nullptr, &asked, 0, bucketOf.data(), nullptr, nullptr, nullptr));
      EXPECT(self, asked.bytes == each.bytes && asked.datatype == each.datatype && asked.item == each.item);
      EXPECT(self, bucketOf == std::vector<int>(2, 0));
    }
  });
}

TEST_CASE("S2.3 members that cannot be one list are refused by name, and nothing is sent") {
  World world(2);
  world.run([](Self& self) {
    int mine = 1, sums[2] = {};
    koloItem_t transfer = KOLO_ITEM_INITIALIZER;
    transfer.sendbuf = &mine;
    transfer.recvbuf = &sums[0];
    transfer.count = 1;
    transfer.sendtype = koloInt32;
    const koloBucketItem_t sum{0, koloInt32, koloCollectiveAllReduce, koloSum, self.comm, nullptr, 0, &transfer};
    koloBucketItem_t most = sum, bare = sum, other = sum, gather = sum;
    most.op = koloMax;
    bare.item = nullptr;
    other.collective = koloCollectiveBroadcast;
    gather.collective = koloCollectiveAllGather;
    const koloBucketItem_t items[] = {sum, most, bare, other, gather};
    for (const std::size_t second : {1u, 2u, 3u, 4u}) {
      const std::size_t members[] = {0, second};
      EXPECT_CODE(self, koloInvalidArgument, koloBucketLaunch(items, members, 2, nullptr));
      EXPECT(self, messageHas(("items[" + std::to_string(second) + "]").c_str()));
    }
    const std::size_t first = 0;
    EXPECT_CODE(self, koloInvalidCount, koloBucketLaunch(items, &first, 0, nullptr));
    EXPECT_CODE(self, koloInvalidPointer, koloBucketLaunch(nullptr, &first, 1, nullptr));
    EXPECT_CODE(self, koloInvalidPointer, koloBucketLaunch(items, nullptr, 1, nullptr));
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloBucketLaunch(items, &first, 1, nullptr));
    EXPECT_CODE(self, koloInvalidCount, koloBucketLaunch(items, &first, 0, nullptr));
    EXPECT_CODE(self, koloInvalidCount, koloGroupEnd());
    EXPECT(self, sums[0] == 0);
    EXPECT_OK(self, koloBucketLaunch(items, &first, 1, nullptr));
    EXPECT(self, sums[0] == 2);
  });
}

TEST_CASE("S2.2 a line of the log tells of each bucket that is full") {
  const char* const given = std::getenv("KOLO_DEBUG_FILE");
  const std::string file = given != nullptr ? given : "/tmp/kolo-bucket-test-" + std::to_string(getpid());
  withSettings({{"KOLO_DEBUG", "info"}, {"KOLO_DEBUG_FILE", file}}, [&] {
    (void)std::remove(file.c_str());
    const World world(1);  // which reads the settings
    const koloBucketItem_t item{1000, koloFloat32, koloCollectiveAllGather, koloSum, nullptr, nullptr, 0, nullptr};
    const std::vector<koloBucketItem_t> items(5, item);
    const auto cap = [](const koloBucketItem_t*, int bucket, void*) { return bucket == 0 ? 2500.0 / (1 << 20) : 1.0; };
    std::vector<int> bucketOf(5);
    REQUIRE_OK(koloBucketPlan(items.data(), 5, cap, nullptr, nullptr, 0, bucketOf.data(), nullptr, nullptr, nullptr));
    CHECK(bucketOf == std::vector{0, 0, 1, 1, 1});
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    const std::string line =
        "bucket 0 of all_gather float32 is full: 2000 bytes in 2 items, and item 2 has 1000 bytes; the cap is 2500 "
        "bytes";
    INFO(text.str());
    const size_t at = text.str().find(line);
    CHECK(at != std::string::npos);
    CHECK(text.str().find("is full", at + line.size()) == std::string::npos);
    (void)std::remove(file.c_str());
  });
}
