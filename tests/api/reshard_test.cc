// Arrays that are distributed in one way and in another one afterwards, element by element: from and to every axis, one
// rank and all ranks, in even and uneven parts, with any strides, at once, on streams, as requests and in groups.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/rank_counts.h"
#include "support/ranks.h"
#include "support/seed.h"

using namespace kolo::test;

// Its own: names as short as these are those of other files too.
namespace resharding {
namespace {

using Random = std::mt19937_64;
using Shape = std::vector<size_t>;

size_t pick(Random& random, size_t low, size_t high) { return low + random() % (high - low + 1); }

size_t elementsOf(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

// Where an array is; of an axis, the lengths of the ranks' parts.
struct Place {
  int where = KOLO_ON_ALL;
  Shape parts;
  bool isEven = false;  // then the call does not say them
};

struct Case {
  Shape whole;
  Place from, to;
  unsigned strides = 0;  // a seed; 0: row-major
};

bool isThere(const Place& place, int rank) {
  return place.where >= 0 || place.where == KOLO_ON_ALL || place.where == KOLO_ON_RANK(rank);
}

// What a rank has of the array: its shape, and where that begins along the axis.
struct Part {
  Shape shape;
  size_t axis = 0, begin = 0;
  std::vector<ptrdiff_t> strides;
};

Part partAt(const Case& its, const Place& place, int rank, unsigned seed) {
  Part part{its.whole, 0, 0, std::vector<ptrdiff_t>(its.whole.size())};
  const auto r = static_cast<size_t>(rank);
  if (place.where >= 0) {
    part.axis = static_cast<size_t>(place.where);
    part.begin = std::accumulate(place.parts.begin(), place.parts.begin() + rank, size_t{0});
    part.shape[part.axis] = place.parts[r];
  }
  std::vector<size_t> order(part.shape.size());  // of the dimensions, the fastest first
  std::iota(order.rbegin(), order.rend(), size_t{0});
  Random random(seed + static_cast<unsigned>(rank));
  if (seed != 0) std::shuffle(order.begin(), order.end(), random);
  ptrdiff_t stride = seed == 0 ? 1 : static_cast<ptrdiff_t>(pick(random, 1, 2));
  for (const size_t d : order) {
    part.strides[d] = stride;
    stride *= static_cast<ptrdiff_t>(std::max<size_t>(part.shape[d], 1));
  }
  return part;
}

// Calls visit(place in memory, index in the whole array, in row-major order) for each element of the part.
template <class Visit>
void each(const Part& part, const Shape& whole, Visit visit) {
  Shape index(part.shape.size());
  for (size_t left = elementsOf(part.shape); left > 0; --left) {
    ptrdiff_t at = 0;
    size_t linear = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      at += static_cast<ptrdiff_t>(index[d]) * part.strides[d];
      linear = linear * whole[d] + index[d] + (d == part.axis ? part.begin : 0);
    }
    visit(static_cast<size_t>(at), linear);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == part.shape[d];) index[d] = 0;
  }
}

constexpr float kUntouched = -7;

enum class Form { kAtOnce, kStream, kRequest, kGroup };

void call(Self& self, Form form, const koloItem_t& item, const Case& its) {
  const koloArray_t whole{static_cast<int>(its.whole.size()), its.whole.data(), nullptr};
  const size_t* const from = its.from.isEven || its.from.parts.empty() ? nullptr : its.from.parts.data();
  const size_t* const to = its.to.isEven || its.to.parts.empty() ? nullptr : its.to.parts.data();
  koloStream_t stream = nullptr;
  if (form == Form::kRequest) {
    koloRequest_t request = nullptr;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloReshard(&item, &whole, its.from.where, its.to.where, from, to, self.comm, nullptr));
    EXPECT_OK(self, koloIgroupEnd(&request));
    EXPECT_OK(self, koloRequestWait(request, -1));
    EXPECT_OK(self, koloRequestFree(request));
    return;
  }
  if (form == Form::kStream) EXPECT_OK(self, koloStreamCreate(&stream));
  if (form == Form::kGroup) EXPECT_OK(self, koloGroupStart());
  EXPECT_OK(self, koloReshard(&item, &whole, its.from.where, its.to.where, from, to, self.comm, stream));
  if (form == Form::kGroup) EXPECT_OK(self, koloGroupEnd());
  if (form == Form::kStream) EXPECT_OK(self, koloStreamDestroy(stream));
}

void reshard(Self& self, const Case& its, Form form) {
  const Part from = partAt(its, its.from, self.rank, its.strides), to = partAt(its, its.to, self.rank, its.strides * 3);
  const size_t most = 2 * elementsOf(its.whole) + 64;
  std::vector<float> send(most, kUntouched), recv(most, kUntouched), wanted(most, kUntouched);
  each(from, its.whole, [&](size_t at, size_t linear) { send[at] = static_cast<float>(linear); });
  if (isThere(its.to, self.rank))
    each(to, its.whole, [&](size_t at, size_t linear) { wanted[at] = static_cast<float>(linear); });
  const std::vector<float> given = send;
  const koloArray_t sendArray{static_cast<int>(from.shape.size()), from.shape.data(), from.strides.data()};
  const koloArray_t recvArray{static_cast<int>(to.shape.size()), to.shape.data(), to.strides.data()};
  koloItem_t item{};
  item.sendtype = item.transfertype = item.recvtype = koloFloat32;
  if (isThere(its.from, self.rank)) item.sendbuf = send.data();
  if (isThere(its.to, self.rank)) item.recvbuf = recv.data();
  if (its.strides != 0) {
    item.sendarray = &sendArray;
    item.recvarray = &recvArray;
  }
  call(self, form, item, its);
  EXPECT(self, recv == wanted);
  EXPECT(self, send == given);
}

Place randomPlace(Random& random, Shape& whole, int ranks) {
  Place place;
  place.where = static_cast<int>(pick(random, 0, whole.size() + 1)) - 2;
  if (place.where == -2) place.where = KOLO_ON_RANK(static_cast<int>(pick(random, 0, static_cast<size_t>(ranks) - 1)));
  if (place.where < 0) return place;
  size_t& length = whole[static_cast<size_t>(place.where)];
  const auto n = static_cast<size_t>(ranks);
  place.isEven = length % n == 0 && pick(random, 0, 1) == 0;
  place.parts.assign(n, place.isEven ? length / n : 0);
  for (size_t left = place.isEven ? 0 : length; left > 0;) {
    const size_t some = pick(random, 1, left);
    place.parts[pick(random, 0, n - 1)] += some;
    left -= some;
  }
  return place;
}

std::string describe(const Case& its) {
  const auto list = [](const Shape& values) {
    std::string text;
    for (const size_t value : values) text += std::to_string(value) + " ";
    return text;
  };
  return "shape " + list(its.whole) + "from " + std::to_string(its.from.where) + " parts " + list(its.from.parts) +
         "to " + std::to_string(its.to.where) + " parts " + list(its.to.parts) + "strides " +
         std::to_string(its.strides);
}

void reshardAtRandom(const World& world, std::uint64_t seed) {
  const int ranks = world.size();
  Random random(seed);
  for (int i = 0; i < 40; ++i) {
    Case its;
    for (size_t d = pick(random, 1, 3); d > 0; --d) its.whole.push_back(pick(random, 1, 6) * (d == 1 ? 3 : 1));
    if (pick(random, 0, 3) == 0) its.whole[0] *= static_cast<size_t>(ranks) * 40;
    its.from = randomPlace(random, its.whole, ranks);
    its.to = randomPlace(random, its.whole, ranks);
    its.strides = pick(random, 0, 1) == 0 ? 0 : static_cast<unsigned>(random() % 1000 + 1);
    const auto form = static_cast<Form>(pick(random, 0, 3));
    INFO("case " << i << " of " << ranks << " ranks, form " << static_cast<int>(form) << ": " << describe(its));
    world.run([&](Self& self) {
      reshard(self, its, form);
      if (i % 8 == 0) expectWorks(self);
    });
  }
}

TEST_CASE("S0.8 an array goes from an axis, a rank or all ranks to another axis, to one rank, to all", "[links]") {
  for (const int ranks : rankCounts({1, 2, 3, 4, 5})) {
    World world(ranks);
    for (Rounds rounds(90 + ranks); rounds.next();) reshardAtRandom(world, rounds.seed());
  }
}

// Rank 0 has the same part before and after in both calls; what the others exchange differs.
TEST_CASE("S0.8 a rank that keeps its part sees that the others' parts have changed", "[threads][links]") {
  World world(3);
  world.run([](Self& self) {
    const Shape shape{6}, from{2, 2, 2};
    const koloArray_t whole{1, shape.data(), nullptr};
    std::vector<float> send(6), recv(6);
    std::iota(send.begin(), send.end(), static_cast<float>(2 * self.rank));
    koloItem_t item{};
    item.sendbuf = send.data();
    item.recvbuf = recv.data();
    item.sendtype = item.transfertype = item.recvtype = koloFloat32;
    for (const Shape& to : {Shape{2, 1, 3}, Shape{2, 3, 1}, Shape{2, 1, 3}, Shape{2, 4, 0}}) {
      EXPECT_OK(self, koloReshard(&item, &whole, 0, 0, from.data(), to.data(), self.comm, nullptr));
      const auto begin = std::accumulate(to.begin(), to.begin() + self.rank, size_t{0});
      for (size_t i = 0; i < to[static_cast<size_t>(self.rank)]; ++i)
        EXPECT(self, recv[i] == static_cast<float>(begin + i));
    }
  });
}

TEST_CASE("S0.8 a scalar goes from one rank to another and to all, with a cast", "[links]") {
  World world(3);
  world.run([](Self& self) {
    const koloArray_t scalar{0, nullptr, nullptr};
    for (const int to : {KOLO_ON_ALL, KOLO_ON_RANK(2), KOLO_ON_RANK(1)}) {
      const float given = 2.5F;
      double got = -1;
      koloItem_t item{};
      item.sendtype = koloFloat32;
      item.transfertype = koloFloat32;
      item.recvtype = koloFloat64;
      if (self.rank == 1) item.sendbuf = &given;
      item.recvbuf = &got;
      EXPECT_OK(self, koloReshard(&item, &scalar, KOLO_ON_RANK(1), to, nullptr, nullptr, self.comm, nullptr));
      const bool isThere = to == KOLO_ON_ALL || to == KOLO_ON_RANK(self.rank);
      EXPECT(self, got == (isThere ? 2.5 : -1));
    }
  });
}

TEST_CASE("S0.8 S4.5 what cannot be resharded is refused, in words") {
  World world(2);
  world.run([](Self& self) {
    const Shape shape{6, 3}, mine{3, 3}, sum{2, 3};
    const koloArray_t whole{2, shape.data(), nullptr}, part{2, mine.data(), nullptr};
    std::vector<float> send(18), recv(18);
    koloItem_t item{};
    item.sendbuf = send.data();
    item.recvbuf = recv.data();
    item.sendtype = item.transfertype = item.recvtype = koloFloat32;
    const auto expect = [&](koloResult_t code, const char* words, const koloArray_t* array, int from, int to,
                            const size_t* parts) {
      EXPECT_CODE(self, code, koloReshard(&item, array, from, to, nullptr, parts, self.comm, nullptr));
      EXPECT(self, messageHas(words));
    };
    expect(koloInvalidArgument, "axis 1 of the array has the length 3, which 2 ranks do not divide", &whole, 0, 1,
           nullptr);
    expect(koloInvalidArgument, "the toParts (2, 3) do not sum up to 3, the length of axis 1", &whole, 0, 1,
           sum.data());
    expect(koloInvalidArgument, "to is axis 2", &whole, 0, 2, nullptr);
    expect(koloInvalidRank, "KOLO_ON_RANK(5)", &whole, 0, KOLO_ON_RANK(5), nullptr);
    expect(koloInvalidPointer, "whole is NULL", nullptr, 0, KOLO_ON_ALL, nullptr);
    item.sendarray = &part;
    item.recvarray = &part;
    expect(koloInvalidArgument, "recvarray: expected the shape (6, 3)", &whole, 0, KOLO_ON_ALL, nullptr);
    const std::ptrdiff_t far[] = {std::ptrdiff_t{1} << 60, 1};
    const koloArray_t reaching{2, shape.data(), far};
    item.sendarray = &reaching;
    item.recvarray = nullptr;
    expect(koloInvalidCount, "sendarray: strides[0] is 1152921504606846976: the array reaches further than memory",
           &whole, KOLO_ON_ALL, 0, nullptr);
    item.sendarray = nullptr;
    const size_t huge[] = {size_t{1} << 40, size_t{1} << 40};
    const koloArray_t more{2, huge, nullptr};
    expect(koloInvalidCount, "whole: the shape has more elements than memory", &more, 0, KOLO_ON_ALL, nullptr);
    item.recvbuf = send.data();
    const size_t parts[] = {2, 1};
    expect(koloInvalidArgument, "the recvbuf of item 0 overlaps the sendbuf of item 0", &whole, 0, 1, parts);
    expectWorks(self);
  });
}

}  // namespace
}  // namespace resharding
