// Strides of arrays in lists: which layouts may be written, which may only be read, and that nothing beside an array is
// written.
#include <cstddef>
#include <string>
#include <vector>

#include "support/ranks.h"

using namespace kolo::test;

// Its own: names as short as these are those of other files too.
namespace striding {
namespace {

constexpr float kUntouched = -7;

struct Layout {
  std::vector<size_t> shape;
  std::vector<ptrdiff_t> strides;
  size_t first = 0;  // where element (0, 0, ...) stands in memory

  koloArray_t array() const { return {static_cast<int>(shape.size()), shape.data(), strides.data()}; }
  size_t elements() const {
    size_t count = 1;
    for (const size_t length : shape) count *= length;
    return count;
  }
  // Where the element stands that has this number in row-major order.
  size_t placeOf(size_t number) const {
    auto place = static_cast<ptrdiff_t>(first);
    for (size_t d = shape.size(); d-- > 0; number /= shape[d])
      place += static_cast<ptrdiff_t>(number % shape[d]) * strides[d];
    return static_cast<size_t>(place);
  }
};

struct Overlap {
  Layout layout;
  int stride, span;  // those that the message names
};

koloItem_t floatItem(const float* send, float* recv) {
  koloItem_t item{};
  item.sendbuf = send;
  item.recvbuf = recv;
  item.sendtype = item.transfertype = item.recvtype = koloFloat32;
  return item;
}

bool namesOverlap(int number, int stride, int span) {
  const std::string words = "item " + std::to_string(number) + ": recvarray: the stride " + std::to_string(stride) +
                            " may put several elements at one place: expected more than " + std::to_string(span);
  return messageHas(words.c_str());
}

TEST_CASE("S0.5 a recvarray whose strides may put two elements at one place is refused, in words") {
  const std::vector<Overlap> overlaps = {{{{4}, {0}}, 0, 0},
                                         {{{2, 3}, {0, 1}}, 0, 0},
                                         {{{2, 3}, {1, 1}}, 1, 1},
                                         {{{2, 3}, {2, 1}}, 2, 2},
                                         {{{2, 3}, {-2, 1}, 2}, 2, 2},
                                         {{{2, 3}, {-1, -1}, 3}, 1, 1},
                                         {{{2, 2, 3}, {3, -3, 1}, 3}, 3, 5},
                                         {{{2, 3}, {3, 2}}, 3, 4}};  // distinct places, but not by the rule of kolo.h
  World world(2);
  world.run([&](Self& self) {
    const std::vector<float> send(64, 1);
    std::vector<float> recv(64, kUntouched);
    for (const Overlap& overlap : overlaps) {
      const koloArray_t array = overlap.layout.array();
      koloItem_t items[2] = {floatItem(send.data(), recv.data()), floatItem(send.data(), recv.data() + 32)};
      items[0].count = 1;
      items[1].recvarray = &array;
      const auto expect = [&](koloResult_t code) {
        EXPECT_CODE(self, koloInvalidArgument, code);
        EXPECT(self, namesOverlap(1, overlap.stride, overlap.span));
      };
      expect(koloAllReduceList(items, 2, koloSum, self.comm, nullptr));
      expect(koloReduceScatterList(items, 2, koloSum, self.comm, nullptr));
      expect(koloBroadcastList(items, 2, 0, self.comm, nullptr));
      expect(koloAllGatherList(items, 2, self.comm, nullptr));
      expect(koloScatterList(items, 2, 0, self.comm, nullptr));
      expect(koloAllToAllList(items, 2, self.comm, nullptr));
    }
    EXPECT(self, recv == std::vector<float>(64, kUntouched));
    expectWorks(self);
  });
}

TEST_CASE("S0.5 an exchange of axes and a reshard refuse such a recvarray too") {
  World world(2);
  world.run([](Self& self) {
    const std::vector<float> send(12, 1);
    std::vector<float> recv(64, kUntouched);
    const size_t whole[2] = {4, 6}, before[2] = {4, 3};
    const koloArray_t all{2, whole, nullptr}, given{2, before, nullptr};
    const Overlap overlaps[] = {{{{2, 6}, {1, 1}}, 1, 1}, {{{2, 6}, {5, 1}}, 5, 5}, {{{2, 6}, {-5, 1}, 5}, 5, 5}};
    for (const Overlap& overlap : overlaps) {
      const koloArray_t array = overlap.layout.array();
      koloItem_t item = floatItem(send.data(), recv.data() + overlap.layout.first);
      item.sendarray = &given;
      item.recvarray = &array;
      EXPECT_CODE(self, koloInvalidArgument, koloAllToAllAxis(&item, 0, 1, nullptr, nullptr, self.comm, nullptr));
      EXPECT(self, namesOverlap(0, overlap.stride, overlap.span));
      EXPECT_CODE(self, koloInvalidArgument, koloReshard(&item, &all, 1, 0, nullptr, nullptr, self.comm, nullptr));
      EXPECT(self, namesOverlap(0, overlap.stride, overlap.span));
    }
    EXPECT(self, recv == std::vector<float>(64, kUntouched));
    expectWorks(self);
  });
}

// What the ranks' elements of one number add up to.
float sumOf(int ranks, size_t number) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += static_cast<float>(10 * rank) + static_cast<float>(number);
  return sum;
}

TEST_CASE("S0.5 results go to reversed and turned arrays, and nothing beside their elements is written", "[links]") {
  const std::vector<Layout> layouts = {
      {{2, 3}, {-3, 1}, 3},  {{2, 3}, {3, -1}, 2}, {{2, 3}, {-3, -1}, 5}, {{2, 3}, {-1, 2}, 1},
      {{2, 3}, {-8, 2}, 8},  {{2, 3}, {1, -4}, 8}, {{1, 6}, {0, -1}, 5},  {{6, 1, 1}, {-2, 0, 0}, 10},
      {{2, 1, 3}, {3, 0, 1}}};  // a dimension of one element may have the stride 0
  World world(3);
  world.run([&](Self& self) {
    for (const Layout& layout : layouts) {
      std::vector<float> send(layout.elements()), recv(32, kUntouched), wanted(32, kUntouched);
      for (size_t i = 0; i < send.size(); ++i) {
        send[i] = static_cast<float>(10 * self.rank) + static_cast<float>(i);
        wanted[layout.placeOf(i)] = sumOf(self.ranks, i);
      }
      const koloArray_t array = layout.array();
      koloItem_t item = floatItem(send.data(), recv.data() + layout.first);
      item.recvarray = &array;
      EXPECT_OK(self, koloAllReduceList(&item, 1, koloSum, self.comm, nullptr));
      EXPECT(self, recv == wanted);
    }
  });
}

TEST_CASE("S0.5 a sendarray may have strides of 0, by which one element stands for many", "[links]") {
  const std::vector<Layout> layouts = {{{2, 3}, {0, 1}}, {{2, 3}, {1, 0}}, {{2, 3}, {0, 0}}, {{2, 3}, {0, -1}, 2}};
  const size_t elements[] = {3, 2, 1, 3};  // in memory
  World world(3);
  world.run([&](Self& self) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout& layout = layouts[i];
      std::vector<float> send(elements[i]), sums(6, kUntouched), all(18, kUntouched), wanted(6), wantedOfAll(18);
      for (size_t k = 0; k < send.size(); ++k) send[k] = static_cast<float>(10 * self.rank) + static_cast<float>(k);
      for (size_t k = 0; k < 6; ++k) wanted[k] = sumOf(self.ranks, layout.placeOf(k));
      for (size_t k = 0; k < 18; ++k)
        wantedOfAll[k] = static_cast<float>(10 * (k / 6)) + static_cast<float>(layout.placeOf(k % 6));
      const koloArray_t array = layout.array();
      koloItem_t item = floatItem(send.data() + layout.first, sums.data());
      item.sendarray = &array;
      EXPECT_OK(self, koloAllReduceList(&item, 1, koloSum, self.comm, nullptr));
      EXPECT(self, sums == wanted);
      item.recvbuf = all.data();
      EXPECT_OK(self, koloAllGatherList(&item, 1, self.comm, nullptr));
      EXPECT(self, all == wantedOfAll);
    }
  });
}

}  // namespace
}  // namespace striding
