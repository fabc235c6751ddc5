// Arrays on GPUs: those whose shape travels with the data, and those that ranks cut differently.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gpu/support.h"
#include "support/items.h"

namespace kolo::test {
namespace {

// What an allocate function is asked for, and what it gives.
struct Asked {
  std::unique_ptr<DeviceBuffer> buffer;
  std::vector<std::size_t> shape;
  koloDataType_t datatype = koloInt8;
  bool hasNone = false;
  void* elsewhere = nullptr;  // given instead
};

void* allocate(void* context, koloDataType_t datatype, int ndim, const std::size_t* shape) {
  Asked& asked = *static_cast<Asked*>(context);
  asked.datatype = datatype;
  asked.shape.assign(shape, shape + ndim);
  if (asked.hasNone || asked.elsewhere != nullptr) return asked.elsewhere;
  const std::size_t count = std::accumulate(shape, shape + ndim, std::size_t{1}, std::multiplies<>());
  asked.buffer = std::make_unique<DeviceBuffer>(std::max<std::size_t>(count, 1));
  return asked.buffer->data();
}

std::vector<int> numbersFrom(int first, std::size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("S4.6 an array is broadcast and scattered into memory of GPUs that receivers allocate", "[device][arrays]") {
  const int n = GENERATE(1, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const int root = n - 1;
    const bool isRoot = self.rank == root;
    const std::size_t shape[] = {6, 50};
    const koloArray_t array{2, shape, nullptr};
    const DeviceBuffer data(300);
    const CudaStream stream;
    data->write(numbersFrom(isRoot ? 7 : 0, 300));
    ranks.together();
    for (int turn = 0; turn < 2; ++turn) {
      Asked asked, part;
      EXPECT_OK(self,
                koloBroadcastArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloInt32,
                                   isRoot && turn == 0 ? nullptr : allocate, &asked, root, self.comm, stream.get()));
      EXPECT_OK(self, koloScatterArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloInt32, 0,
                                       allocate, &part, root, self.comm, stream.get()));
      // Along the second axis: each rank has the same columns of all rows.
      const std::size_t twoRows[] = {2, 150};
      const koloArray_t other{2, twoRows, nullptr};
      Asked columns;
      EXPECT_OK(self, koloScatterArray(isRoot ? data.data() : nullptr, isRoot ? &other : nullptr, koloInt32, 1,
                                       allocate, &columns, root, self.comm, stream.get()));
      stream.synchronize();
      const std::size_t width = 150 / static_cast<std::size_t>(n);
      const int first = 7 + self.rank * static_cast<int>(width);
      EXPECT(self, columns.shape == std::vector<std::size_t>({2, width}));
      EXPECT(self, (*columns.buffer)->read(0, width) == numbersFrom(first, width));
      EXPECT(self, (*columns.buffer)->read(width, width) == numbersFrom(first + 150, width));
      stream.synchronize();
      if (!isRoot || turn == 1) {
        EXPECT(self, asked.datatype == koloInt32);
        EXPECT(self, asked.shape == std::vector<std::size_t>({6, 50}));
        EXPECT(self, (*asked.buffer)->read() == numbersFrom(7, 300));
      }
      const std::size_t each = 300 / static_cast<std::size_t>(n);
      EXPECT(self, part.shape == std::vector<std::size_t>({6 / static_cast<std::size_t>(n), 50}));
      EXPECT(self, (*part.buffer)->read() == numbersFrom(7 + self.rank * static_cast<int>(each), each));
    }
  });
}

TEST_CASE("S4.6 an array for which a rank of a GPU has no memory is an error on all, and calls go on",
          "[device][arrays]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const std::size_t length = 10;
    const koloArray_t array{1, &length, nullptr};
    const DeviceBuffer data(10);
    const CudaStream stream;
    data->write(numbersFrom(3, 10));
    int host[10] = {};
    ranks.together();
    const auto call = [&](Asked& asked) {
      return koloBroadcastArray(data.data(), &array, koloInt32, self.rank == 0 ? nullptr : allocate, &asked, 0,
                                self.comm, stream.get());
    };
    Asked none{.hasNone = true};
    EXPECT_CODE(self, self.rank == 1 ? koloOutOfMemory : koloRemoteError, call(none));
    Asked ofHost{.elsewhere = host};
    EXPECT_CODE(self, self.rank == 1 ? koloInvalidPointer : koloRemoteError, call(ofHost));
    // The root's own fault.
    EXPECT_CODE(self, koloInvalidPointer,
                koloScatterArray(host, &array, koloInt32, 0, allocate, &none, 0, self.comm, stream.get()));
    Asked asked;
    EXPECT_OK(self, call(asked));
    stream.synchronize();
    if (self.rank == 1) EXPECT(self, (*asked.buffer)->read() == numbersFrom(3, 10));
  });
}

TEST_CASE("S4.6 S4.7 a receiver on a GPU learns shape and datatype from the message", "[device][arrays]") {
  const int n = GENERATE(2, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const int next = (self.rank + 1) % n, previous = (self.rank + n - 1) % n;
    const CudaStream stream;
    const DeviceBuffer data(2000), single(1), gotSingle(1);
    data->write(numbersFrom(100 * self.rank, 2000));
    single->write({-self.rank});
    ranks.together();
    const std::vector<std::vector<std::size_t>> shapes = {{2000}, {}, {3, 0, 5}, {7, 11, 13}};
    std::vector<Asked> asked(shapes.size());
    std::vector<koloRecvStatus_t> came(shapes.size());
    for (const std::vector<std::size_t>& shape : shapes) {
      const koloArray_t array{static_cast<int>(shape.size()), shape.data(), nullptr};
      EXPECT_OK(self, koloSendArray(data.data(), &array, koloInt32, next, self.comm, stream.get()));
    }
    EXPECT_OK(self, koloSend(single.data(), 1, koloInt32, next, self.comm, stream.get()));
    for (std::size_t i = 0; i < shapes.size(); ++i)
      EXPECT_OK(self, koloRecvArray(allocate, &asked[i], previous, &came[i], self.comm, stream.get()));
    EXPECT_OK(self, koloRecv(gotSingle.data(), 1, koloInt32, previous, self.comm, stream.get()));
    stream.synchronize();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::size_t count =
          std::accumulate(shapes[i].begin(), shapes[i].end(), std::size_t{1}, std::multiplies<>());
      EXPECT(self, asked[i].shape == shapes[i]);
      EXPECT(self, asked[i].datatype == koloInt32);
      EXPECT(self, came[i].source == previous);
      EXPECT(self, came[i].count == count);
      if (count != 0) EXPECT(self, (*asked[i].buffer)->read() == numbersFrom(100 * previous, count));
    }
    EXPECT(self, gotSingle->read() == std::vector<int>{-previous});
  });
}

TEST_CASE("S4.6 a receiver on a GPU without memory drops a sent array, and nobody hangs", "[device][arrays]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const std::size_t length = 5000;
    const koloArray_t array{1, &length, nullptr};
    const CudaStream stream;
    const DeviceBuffer data(length);
    data->write(numbersFrom(3, length));
    ranks.together();
    for (int turn = 0; turn < 2; ++turn) {
      if (self.rank == 0) {
        EXPECT_OK(self, koloSendArray(data.data(), &array, koloInt32, 1, self.comm, stream.get()));
        continue;
      }
      Asked asked{.hasNone = turn == 0};
      EXPECT_CODE(self, turn == 0 ? koloOutOfMemory : koloSuccess,
                  koloRecvArray(allocate, &asked, 0, nullptr, self.comm, stream.get()));
      stream.synchronize();
      if (turn == 1) EXPECT(self, (*asked.buffer)->read() == numbersFrom(3, length));
    }
    stream.synchronize();
    Asked asked;
    EXPECT_CODE(self, koloUnsupported,
                koloRecvArray(allocate, &asked, KOLO_ANY_SOURCE, nullptr, self.comm, stream.get()));
    EXPECT_CODE(self, koloUnsupported,
                koloSendArray(data.data(), &array, koloInt32, self.rank, self.comm, stream.get()));
  });
}

TEST_CASE("S4.6 on a GPU a wait for an array that is never sent ends at its deadline", "[device][arrays]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const CudaStream stream;
    ranks.together();
    if (self.rank == 1) {
      Asked asked;
      EXPECT_OK(self, koloSetTimeout(300));
      EXPECT_CODE(self, koloTimeout, koloRecvArray(allocate, &asked, 0, nullptr, self.comm, stream.get()));
      EXPECT(self, std::string(koloGetLastError(nullptr)).find("for an array from rank 0") != std::string::npos);
    }
    ranks.together();
  });
}

TEST_CASE("S0.6 ranks on GPUs that cut an array along different axes get an error that says so",
          "[device][arrays][failure]") {
  enum class Differs { kItem, kReshard, kParts };
  const std::vector<std::pair<Differs, std::vector<const char*>>> cases = {
      {Differs::kItem,
       {"item 1: ", "gave axis 0 of an array of shape (6, 6)", "gave axis 1 of an array of shape (6, 6)"}},
      {Differs::kReshard, {"the array cut along axis 0", "the array cut along axis 1"}},
      {Differs::kParts, {"gave length 1 of rank 0 along axis 1", "gave length 2 of rank 0 along axis 1"}}};
  const auto [differs, words] = cases[GENERATE(0u, 1u, 2u)];
  const DeviceScene scene(mockFor(3));
  Ranks ranks(oneDevice(3), {.timeoutMs = 3000 * kSlowness});
  ranks.run([&, differs = differs, &words = words](Self& self) {
    const std::size_t shape[] = {6, 6}, thirds[] = {2, 2, 2}, others[] = {1, 2, 3};
    const koloArray_t whole{2, shape, nullptr};
    const DeviceBuffer sent(36), received(40);
    const CudaStream stream;
    koloItem_t items[] = {intItem(sent.data(), received.data(), 1), intItem(sent.data(), received.data() + 4, 0)};
    const int axis = self.rank == 2 ? 1 : 0;
    ranks.together();
    // A message is no operation of all ranks: it leaves those that follow their numbers.
    if (self.rank == 0) EXPECT_OK(self, koloSend(sent.data(), 1, koloInt32, 1, self.comm, stream.get()));
    if (self.rank == 1) EXPECT_OK(self, koloRecv(received.data(), 1, koloInt32, 0, self.comm, stream.get()));
    EXPECT_OK(self, koloAllGatherList(items, 1, self.comm, stream.get()));
    if (differs == Differs::kItem) {
      items[1].recvarray = &whole;
      items[1].axis = axis;
      EXPECT_OK(self, koloAllGatherList(items, 2, self.comm, stream.get()));
    } else if (differs == Differs::kReshard) {
      EXPECT_OK(self, koloReshard(&items[1], &whole, 1 - axis, axis, nullptr, nullptr, self.comm, stream.get()));
    } else {
      EXPECT_OK(self, koloReshard(&items[1], &whole, 0, 1, nullptr, self.rank == 2 ? others : thirds, self.comm,
                                  stream.get()));
    }
    stream.synchronize();
    EXPECT(self, errorHeard(self.comm) == koloMismatch);
    const std::string said = koloGetLastError(self.comm);
    for (const char* const word : words) {
      if (said.find(word) == std::string::npos) self.fault(KOLO_HERE, std::string(word) + " is not in: " + said);
    }
  });
}

}  // namespace kolo::test
