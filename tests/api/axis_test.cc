// Axes of arrays that lists cut evenly: an all-to-all from one axis to another without lengths, at once and as a
// request, with conversions, against a loop of this file; and axes that the ranks do not divide.
#include <array>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "support/ranks.h"

using namespace kolo::test;

// Its own: names as short as these are those of other files too.
namespace axes {
namespace {

using Shape = std::vector<size_t>;

std::uint16_t bfloat16Of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);  // to nearest, ties to even
}

void store(koloDataType_t datatype, double value, unsigned char* at) {
  const auto single = static_cast<float>(value);
  const std::uint16_t half = bfloat16Of(single);
  if (datatype == koloFloat64) std::memcpy(at, &value, sizeof value);
  if (datatype == koloFloat32) std::memcpy(at, &single, sizeof single);
  if (datatype == koloBfloat16) std::memcpy(at, &half, sizeof half);
}
double load(koloDataType_t datatype, const unsigned char* at) {
  double value = 0;
  float single = 0;
  std::uint16_t half = 0;
  if (datatype == koloFloat64) std::memcpy(&value, at, sizeof value);
  if (datatype == koloFloat64) return value;
  if (datatype == koloFloat32) std::memcpy(&single, at, sizeof single);
  if (datatype == koloFloat32) return static_cast<double>(single);
  std::memcpy(&half, at, sizeof half);
  const std::uint32_t bits = std::uint32_t{half} << 16;
  std::memcpy(&single, &bits, sizeof single);
  return static_cast<double>(single);
}
double converted(koloDataType_t datatype, double value) {
  unsigned char bytes[8] = {};
  store(datatype, value, bytes);
  return load(datatype, bytes);
}

struct Types {
  koloDataType_t send, transfer, recv;
};
constexpr Types kTypes[] = {{koloFloat32, koloFloat32, koloFloat32},   {koloFloat32, koloBfloat16, koloFloat32},
                            {koloFloat32, koloBfloat16, koloBfloat16}, {koloBfloat16, koloFloat32, koloFloat32},
                            {koloFloat32, koloFloat32, koloFloat64},   {koloFloat64, koloFloat32, koloFloat64}};

struct Exchange {
  Shape shape;  // of each rank's array
  size_t split, concat;
};

size_t elementsOf(const Shape& shape) {
  size_t count = 1;
  for (const size_t length : shape) count *= length;
  return count;
}
// Neither float32 nor bfloat16 holds it as it is.
double valueOf(size_t rank, size_t number) {
  return static_cast<double>(rank) * 1000 + static_cast<double>(number) + 0.3;
}

// Of an element of a rank's result, by its number in row-major order: whose it was, and its number there.
double wantedAt(const Exchange& its, const Shape& result, size_t rank, size_t number) {
  Shape index(result.size());
  for (size_t d = result.size(); d-- > 0; number /= result[d]) index[d] = number % result[d];
  const size_t giver = index[its.concat] / its.shape[its.concat];
  index[its.concat] %= its.shape[its.concat];
  index[its.split] += rank * result[its.split];
  size_t given = 0;
  for (size_t d = 0; d < index.size(); ++d) given = given * its.shape[d] + index[d];
  return valueOf(giver, given);
}

void expectExchange(Self& self, const Exchange& its, const Types& types, bool isRequest) {
  constexpr size_t kMargin = 24;
  const auto ranks = static_cast<size_t>(self.ranks), rank = static_cast<size_t>(self.rank);
  const size_t sendSize = koloDataTypeSize(types.send), recvSize = koloDataTypeSize(types.recv);
  Shape result = its.shape;
  result[its.split] /= ranks;
  result[its.concat] *= ranks;
  const size_t count = elementsOf(result);
  std::vector<unsigned char> send(count * sendSize), recv(count * recvSize + kMargin, 0xa5), wanted = recv;
  for (size_t i = 0; i < count; ++i) {
    store(types.send, valueOf(rank, i), send.data() + i * sendSize);
    const double sent = converted(types.transfer, converted(types.send, wantedAt(its, result, rank, i)));
    store(types.recv, sent, wanted.data() + i * recvSize);
  }
  const std::vector<unsigned char> given = send;
  const koloArray_t array{static_cast<int>(its.shape.size()), its.shape.data(), nullptr};
  koloItem_t item{};
  item.sendbuf = send.data();
  item.recvbuf = recv.data();
  item.sendtype = types.send;
  item.transfertype = types.transfer;
  item.recvtype = types.recv;
  item.sendarray = &array;
  const auto split = static_cast<int>(its.split), concat = static_cast<int>(its.concat);
  if (isRequest) {
    koloRequest_t request = nullptr;
    EXPECT_OK(self, koloGroupStart());
    EXPECT_OK(self, koloAllToAllAxis(&item, split, concat, nullptr, nullptr, self.comm, nullptr));
    EXPECT_OK(self, koloIgroupEnd(&request));
    EXPECT_OK(self, koloRequestWait(request, -1));
    EXPECT_OK(self, koloRequestFree(request));
  } else {
    EXPECT_OK(self, koloAllToAllAxis(&item, split, concat, nullptr, nullptr, self.comm, nullptr));
  }
  EXPECT(self, recv == wanted);
  EXPECT(self, send == given);
}

TEST_CASE("S1.8 S1.9 S2.4 S4.4 an array goes from one axis to another without lengths, converted, and as a request",
          "[links]") {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto n = static_cast<size_t>(ranks);
    const std::vector<Exchange> exchanges = {{{2 * n, 5, 3}, 0, 1},  {{4, 3 * n, 2}, 1, 0}, {{3, 1, n}, 2, 1},
                                             {{2, n, 3, 2}, 1, 3},   {{n, 0, 4}, 0, 1},     {{n, 6}, 0, 1},
                                             {{8 * n, 40, 9}, 0, 2}, {{9, 10, 8 * n}, 2, 0}};
    World world(ranks);
    for (const Exchange& its : exchanges) {
      for (const Types& types : kTypes) {
        for (const bool isRequest : {false, true}) {
          INFO(ranks << " ranks, " << elementsOf(its.shape) << " elements from axis " << its.concat << " to axis "
                     << its.split << ", " << koloDataTypeName(types.send) << " by " << koloDataTypeName(types.transfer)
                     << " to " << koloDataTypeName(types.recv) << (isRequest ? ", a request" : ""));
          world.run([&](Self& self) { expectExchange(self, its, types, isRequest); });
        }
      }
    }
  }
}

constexpr size_t kDivided[2] = {4, 6}, kUndivided[2] = {4, 7};  // by three ranks, along axis 1
constexpr koloArray_t kSound{2, kDivided, nullptr}, kOdd{2, kUndivided, nullptr};

// Three items, the ranks' parts of which are cut along axis 1. The ranks do not divide one of them.
struct Items {
  std::vector<float> send = std::vector<float>(90, 1), recv = std::vector<float>(90);
  koloItem_t items[3] = {};

  Items(size_t odd, bool receivesWhole) {
    for (size_t i = 0; i < 3; ++i) {
      items[i].sendbuf = send.data() + 30 * i;
      items[i].recvbuf = recv.data() + 30 * i;
      items[i].sendtype = items[i].transfertype = items[i].recvtype = koloFloat32;
      (receivesWhole ? items[i].recvarray : items[i].sendarray) = i == odd ? &kOdd : &kSound;
      items[i].axis = 1;
    }
  }
};

TEST_CASE("S4.5 a list with an item that the ranks do not divide is refused: its number, axis, length and ranks") {
  World world(3);
  world.run([](Self& self) {
    for (const size_t odd : {size_t{0}, size_t{2}}) {
      const auto expect = [&](koloResult_t code, const char* array) {
        const std::string words = "item " + std::to_string(odd) + ": axis 1 of " + array +
                                  " has the length 7, which 3 ranks do not divide: expected a multiple, or counts";
        EXPECT_CODE(self, koloInvalidArgument, code);
        EXPECT(self, messageHas(words.c_str()));
      };
      const Items sends(odd, false), receives(odd, true);
      expect(koloReduceScatterList(sends.items, 3, koloSum, self.comm, nullptr), "sendarray");
      expect(koloScatterList(sends.items, 3, 1, self.comm, nullptr), "sendarray");
      expect(koloAllToAllList(sends.items, 3, self.comm, nullptr), "sendarray");
      expect(koloAllGatherList(receives.items, 3, self.comm, nullptr), "recvarray");
      expect(koloGatherList(receives.items, 3, 1, self.comm, nullptr), "recvarray");
      EXPECT(self, receives.recv == std::vector<float>(90));
    }
    const Items only(0, false);
    EXPECT_CODE(self, koloInvalidArgument, koloAllToAllAxis(only.items, 1, 0, nullptr, nullptr, self.comm, nullptr));
    EXPECT(self, messageHas("item 0: axis 1 of sendarray has the length 7, which 3 ranks do not divide: expected a "
                            "multiple, or splits"));
    expectWorks(self);
  });
}

TEST_CASE("S2.5 S4.5 with counts the ranks need not divide an axis, and a part may be empty", "[links]") {
  constexpr size_t kCounts[3] = {2, 0, 5};
  World world(3);
  world.run([&](Self& self) {
    Items its(1, false);
    its.items[1].counts = kCounts;
    EXPECT_OK(self, koloReduceScatterList(its.items, 3, koloSum, self.comm, nullptr));
    for (size_t i = 0; i < 90; ++i) {
      const size_t columns = i / 30 == 1 ? kCounts[self.rank] : 2;
      EXPECT(self, its.recv[i] == (i % 30 < 4 * columns ? 3.0F : 0.0F));
    }
  });
}

}  // namespace
}  // namespace axes

namespace {

// What rank `from` gives as element `number` of an item.
int givenInExchange(int from, size_t item, size_t number) {
  return from * 100'000 + static_cast<int>(item * 10'000 + number);
}

}  // namespace

// Items without arrays, and along the axes of arrays; the ranks' lengths differ from item to item, and some are 0.
TEST_CASE("S1.7 S2.5 an uneven exchange of many arrays is one list", "[links]") {
  for (const int n : {1, 2, 3, 4}) {
    World world(n);
    world.run([&](Self& self) {
      const auto ranks = static_cast<size_t>(n), mine = static_cast<size_t>(self.rank);
      constexpr size_t kItems = 4, kRows = 3, kColumns = 2;
      std::vector<std::vector<size_t>> counts(kItems);
      std::vector<std::vector<int>> sends(kItems), receives(kItems), wanted(kItems);
      std::vector<koloItem_t> items(kItems, koloItem_t KOLO_ITEM_INITIALIZER);
      std::vector<std::array<size_t, 3>> shapes(2 * kItems);
      std::vector<koloArray_t> arrays(2 * kItems);
      for (size_t i = 0; i < kItems; ++i) {
        for (size_t rank = 0; rank < ranks; ++rank) counts[i].push_back((rank * 7 + i * 3) % 5 * (i == 1 ? 300 : 1));
        const size_t all = std::accumulate(counts[i].begin(), counts[i].end(), size_t{0});
        const bool isFlat = i < 2;
        const size_t rows = isFlat ? 1 : kRows, columns = isFlat ? 1 : kColumns, own = counts[i][mine];
        sends[i].resize(rows * all * columns);
        for (size_t k = 0; k < sends[i].size(); ++k) sends[i][k] = givenInExchange(self.rank, i, k);
        receives[i].assign(rows * ranks * own * columns, -1);
        wanted[i] = receives[i];
        const size_t before = std::accumulate(counts[i].begin(), counts[i].begin() + self.rank, size_t{0});
        for (size_t row = 0; row < rows; ++row) {
          for (size_t at = 0; at < ranks * own * columns; ++at) {
            const size_t from = own == 0 ? 0 : at / (own * columns), inBlock = own == 0 ? 0 : at % (own * columns);
            wanted[i][row * ranks * own * columns + at] =
                givenInExchange(static_cast<int>(from), i, (row * all + before) * columns + inBlock);
          }
        }
        items[i].sendbuf = sends[i].data();
        items[i].recvbuf = receives[i].data();
        items[i].counts = counts[i].data();
        items[i].sendtype = koloInt32;
        if (isFlat) continue;
        shapes[i] = {kRows, all, kColumns};
        shapes[kItems + i] = {kRows, ranks * own, kColumns};
        arrays[i] = {3, shapes[i].data(), nullptr};
        arrays[kItems + i] = {3, shapes[kItems + i].data(), nullptr};
        items[i].axis = 1;
        items[i].sendarray = i == 2 ? &arrays[i] : nullptr;
        items[i].recvarray = &arrays[kItems + i];
      }
      EXPECT_OK(self, koloAllToAllList(items.data(), kItems, self.comm, nullptr));
      for (size_t i = 0; i < kItems; ++i) EXPECT(self, receives[i] == wanted[i]);
      if (n == 1) return;
      // The array of what is received has the rank's own length from each rank.
      shapes[kItems + 2][1] += 1;
      EXPECT_CODE(self, koloInvalidArgument, koloAllToAllList(items.data(), kItems, self.comm, nullptr));
      EXPECT(self, messageHas("item 2: recvarray has the shape"));
      expectWorks(self);
    });
  }
}
