// Arrays whose shape and datatype travel with the data: sent, broadcast and scattered.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "each_links.h"

using namespace kolo::test;

namespace {

// What a receiver's function was asked for, and the memory that it gave.
struct Received {
  koloDataType_t datatype = koloNumDatatypes;
  int ndim = -1;
  std::vector<size_t> shape;
  std::vector<unsigned char> memory;
  int calls = 0;
  bool refuses = false;

  bool is(koloDataType_t type, const std::vector<size_t>& lengths) const {
    return calls == 1 && datatype == type && ndim == static_cast<int>(lengths.size()) && shape == lengths;
  }
};

void* allocate(void* context, koloDataType_t datatype, int ndim, const size_t* shape) {
  auto* const received = static_cast<Received*>(context);
  received->datatype = datatype;
  received->ndim = ndim;
  received->shape.assign(shape, shape + ndim);
  ++received->calls;
  if (received->refuses) return nullptr;
  size_t bytes = koloDataTypeSize(datatype);
  for (int i = 0; i < ndim; ++i) bytes *= shape[i];
  received->memory.resize(bytes);
  return received->memory.data();
}

koloArray_t arrayOf(const std::vector<size_t>& shape) {
  return {static_cast<int>(shape.size()), shape.data(), nullptr};
}

size_t elementsOf(const std::vector<size_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

std::vector<unsigned char> bytesOf(size_t count, int seed) {
  std::vector<unsigned char> bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<unsigned char>(i * 13 + i / 253 + static_cast<size_t>(seed) * 29);
  return bytes;
}

struct Sample {
  koloDataType_t datatype;
  std::vector<size_t> shape;
};

// Scalars, bytes, zeros, all dimensions, and each way of a message.
const std::vector<Sample>& samples() {
  static const std::vector<Sample> all = {{koloFloat32, {}},
                                          {koloComplex128, {}},
                                          {koloUint8, {0}},
                                          {koloUint8, {1}},
                                          {koloUint8, {17}},
                                          {koloUint8, {256}},
                                          {koloUint8, {257}},
                                          {koloInt16, {3, 5, 7}},
                                          {koloFloat64, {2, 0, 3}},
                                          {koloBfloat16, {1, 2, 1, 2, 1, 2, 1, 2}},
                                          {koloFloat32, {64, 65}},
                                          {koloInt64, {1000, 3}},
                                          {koloUint8, {(1 << 20) + 1}},
                                          {koloFloat32, {3, 100, 1001}}};
  return all;
}

}  // namespace

TEST_CASE("S4.6 S4.7 a receiver learns shape and datatype from the message", "[links]") {
  runOverEachLinks(3, [](Self& self) {
    const int next = (self.rank + 1) % self.ranks, before = (self.rank + self.ranks - 1) % self.ranks;
    int seed = 0;
    for (const Sample& sample : samples()) {
      ++seed;
      const koloArray_t array = arrayOf(sample.shape);
      const size_t bytes = elementsOf(sample.shape) * koloDataTypeSize(sample.datatype);
      for (const int source : {before, KOLO_ANY_SOURCE}) {
        Received received;
        koloRecvStatus_t status{-7, -7, 0};
        const std::vector<unsigned char> mine = bytesOf(bytes, seed + self.rank);
        if (self.rank == 0)
          EXPECT_OK(self, koloSendArray(mine.data(), &array, sample.datatype, next, self.comm, nullptr));
        EXPECT_OK(self, koloRecvArray(allocate, &received, source, &status, self.comm, nullptr));
        if (self.rank != 0)
          EXPECT_OK(self, koloSendArray(mine.data(), &array, sample.datatype, next, self.comm, nullptr));
        EXPECT(self, received.is(sample.datatype, sample.shape));
        EXPECT(self, received.memory == bytesOf(bytes, seed + before));
        EXPECT(self, status.source == before && status.tag == 0 && status.count == elementsOf(sample.shape));
      }
    }
  });
}

TEST_CASE("S4.6 arrays come in the order sent, and other messages keep apart from them") {
  runOverEachLinks(2, [](Self& self) {
    const std::vector<size_t> small = {4}, large = {100000};
    const koloArray_t smallArray = arrayOf(small), largeArray = arrayOf(large);
    const std::vector<unsigned char> one = bytesOf(4, 1), two = bytesOf(100000, 2), three = bytesOf(4, 3);
    if (self.rank == 0) {
      EXPECT_OK(self, koloSendArray(one.data(), &smallArray, koloUint8, 1, self.comm, nullptr));
      EXPECT_OK(self, koloSendTag(three.data(), 4, koloUint8, 1, 9, self.comm, nullptr));
      EXPECT_OK(self, koloSendArray(two.data(), &largeArray, koloInt8, 1, self.comm, nullptr));
      return;
    }
    std::vector<unsigned char> plain(4);
    koloRecvStatus_t status{};
    EXPECT_OK(self,
              koloRecvTag(plain.data(), 4, koloUint8, KOLO_ANY_SOURCE, KOLO_ANY_TAG, &status, self.comm, nullptr));
    EXPECT(self, plain == three && status.tag == 9);
    Received first, second;
    EXPECT_OK(self, koloRecvArray(allocate, &first, 0, nullptr, self.comm, nullptr));
    EXPECT_OK(self, koloRecvArray(allocate, &second, KOLO_ANY_SOURCE, nullptr, self.comm, nullptr));
    EXPECT(self, first.memory == one && first.datatype == koloUint8);
    EXPECT(self, second.memory == two && second.datatype == koloInt8);
  });
}

TEST_CASE("S4.6 several threads receive arrays of one rank, each its own data", "[threads]") {
  runOverEachLinks(2, [](Self& self) {
    constexpr int kThreads = 3, kEach = 20;
    if (self.rank == 0) {
      for (int i = 0; i < kThreads * kEach; ++i) {
        const std::vector<size_t> shape = {static_cast<size_t>(300 + i * 997)};
        const koloArray_t array = arrayOf(shape);
        EXPECT_OK(self, koloSendArray(bytesOf(shape[0], static_cast<int>(shape[0])).data(), &array, koloUint8, 1,
                                      self.comm, nullptr));
      }
      return;
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach; ++i) {
          Received received;
          const koloResult_t result =
              koloRecvArray(allocate, &received, i % 2 == 0 ? 0 : KOLO_ANY_SOURCE, nullptr, self.comm, nullptr);
          const size_t bytes = received.memory.size();
          if (result != koloSuccess || received.memory != bytesOf(bytes, static_cast<int>(bytes))) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT(self, wrong == 0);
  });
}

TEST_CASE("S4.6 S4.7 a broadcast carries shape and datatype, and a root may keep its own data", "[links]") {
  runOverEachLinks(3, [](Self& self) {
    int seed = 0;
    for (const Sample& sample : samples()) {
      const int root = ++seed % self.ranks;
      const koloArray_t array = arrayOf(sample.shape);
      const size_t bytes = elementsOf(sample.shape) * koloDataTypeSize(sample.datatype);
      const std::vector<unsigned char> expected = bytesOf(bytes, seed);
      for (const bool keeps : {false, true}) {
        Received received;
        const bool isRoot = self.rank == root;
        const bool keepsOwn = isRoot && keeps;
        EXPECT_OK(self, koloBroadcastArray(isRoot ? expected.data() : nullptr, isRoot ? &array : nullptr,
                                           isRoot ? sample.datatype : koloInt8, keepsOwn ? nullptr : allocate,
                                           &received, root, self.comm, nullptr));
        EXPECT(self, keepsOwn ? received.calls == 0 : received.is(sample.datatype, sample.shape));
        EXPECT(self, keepsOwn || received.memory == expected);
      }
    }
  });
}

TEST_CASE("S4.6 a scatter divides dimension 0 among the ranks", "[links]") {
  runOverEachLinks(3, [](Self& self) {
    int seed = 0;
    for (const std::vector<size_t>& shape :
         std::vector<std::vector<size_t>>{{3}, {6, 5}, {0, 4}, {3, 0}, {300, 7, 11}, {3, 100001}}) {
      const int root = ++seed % self.ranks;
      const koloArray_t array = arrayOf(shape);
      std::vector<size_t> part = shape;
      part[0] /= 3;
      const size_t bytes = elementsOf(part) * 4;
      const std::vector<unsigned char> all = bytesOf(3 * bytes, seed);
      const auto own = static_cast<std::ptrdiff_t>(static_cast<size_t>(self.rank) * bytes);
      const std::vector<unsigned char> expected(all.begin() + own,
                                                all.begin() + own + static_cast<std::ptrdiff_t>(bytes));
      for (const bool keeps : {false, true}) {
        Received received;
        std::vector<unsigned char> data = all;
        const bool isRoot = self.rank == root, keepsOwn = isRoot && keeps;
        EXPECT_OK(self, koloScatterArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloFloat32, 0,
                                         keepsOwn ? nullptr : allocate, &received, root, self.comm, nullptr));
        EXPECT(self, keepsOwn ? received.calls == 0 : received.is(koloFloat32, part));
        EXPECT(self, keepsOwn || received.memory == expected);
        EXPECT(self, data == all);
      }
    }
  });
}

TEST_CASE("S4.4 S4.6 a scatter divides any axis among the ranks, and tells them the shape", "[links]") {
  runOverEachLinks(3, [](Self& self) {
    struct Cut {
      std::vector<size_t> shape;
      int axis;
    };
    int seed = 0;
    for (const Cut& cut : std::vector<Cut>{{{2, 6}, 1},
                                           {{4, 3, 5}, 1},
                                           {{2, 2, 9}, 2},
                                           {{1, 3}, 1},
                                           {{0, 3}, 1},
                                           {{5, 0}, 1},
                                           {{2, 300, 70}, 1},
                                           {{3, 2, 2, 3, 2}, 3}}) {
      const int root = ++seed % self.ranks;
      const auto axis = static_cast<size_t>(cut.axis);
      const koloArray_t array = arrayOf(cut.shape);
      std::vector<size_t> part = cut.shape;
      part[axis] /= 3;
      std::vector<unsigned char> all = bytesOf(elementsOf(cut.shape) * 4, seed), expected;
      size_t runBytes = 4 * part[axis];
      for (size_t d = axis + 1; d < part.size(); ++d) runBytes *= part[d];
      for (size_t at = static_cast<size_t>(self.rank) * runBytes; at < all.size(); at += 3 * runBytes)
        expected.insert(expected.end(), &all[at], &all[at] + runBytes);
      for (const bool keeps : {false, true}) {
        Received received;
        std::vector<unsigned char> data = all;
        // What the root says of the axis counts alone.
        const bool isRoot = self.rank == root, keepsOwn = isRoot && keeps;
        EXPECT_OK(self, koloScatterArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloFloat32,
                                         isRoot ? cut.axis : -9, keepsOwn ? nullptr : allocate, &received, root,
                                         self.comm, nullptr));
        EXPECT(self, keepsOwn ? received.calls == 0 : received.is(koloFloat32, part));
        EXPECT(self, keepsOwn || received.memory == expected);
        EXPECT(self, data == all);
      }
    }
  });
}

TEST_CASE("S4.5 S4.6 an axis that the ranks do not divide is an error on all ranks, with axis, length and ranks") {
  runOverEachLinks(3, [](Self& self) {
    const std::vector<size_t> shape = {4, 3};
    const koloArray_t array = arrayOf(shape), scalar = arrayOf({});
    std::vector<float> data(12);
    Received received;
    EXPECT_CODE(self, koloInvalidArgument,
                koloScatterArray(data.data(), &array, koloFloat32, 0, allocate, &received, 1, self.comm, nullptr));
    EXPECT(self, messageHas("axis 0 has length 4, which 3 ranks do not divide"));
    const std::vector<size_t> turned = {3, 4};
    const koloArray_t other = arrayOf(turned);
    EXPECT_CODE(self, koloInvalidArgument,
                koloScatterArray(data.data(), &other, koloFloat32, 1, allocate, &received, 1, self.comm, nullptr));
    EXPECT(self, messageHas("axis 1 has length 4, which 3 ranks do not divide"));
    EXPECT_CODE(self, koloInvalidArgument,
                koloScatterArray(data.data(), &other, koloFloat32, 2, allocate, &received, 1, self.comm, nullptr));
    EXPECT(self, messageHas("axis is 2, expected 0 to 1: the array has the shape (3, 4)"));
    for (const int axis : {-1, KOLO_MAX_DIMS}) {
      EXPECT_CODE(self, koloInvalidArgument,
                  koloScatterArray(data.data(), &other, koloFloat32, axis, allocate, &received, 1, self.comm, nullptr));
      EXPECT(self,
             self.rank == 1 ? messageHas("expected 0..7") : messageHas("rank 1, the root, cannot send its array"));
    }
    EXPECT_CODE(self, koloInvalidArgument,
                koloScatterArray(data.data(), &scalar, koloFloat32, 0, allocate, &received, 1, self.comm, nullptr));
    EXPECT(self, messageHas("the array is a scalar"));
    EXPECT(self, received.calls == 0);
    expectWorks(self);
  });
}

TEST_CASE("S4.6 a receiver without memory drops a sent array, and nobody hangs", "[links]") {
  runOverEachLinks(2, [](Self& self) {
    for (const size_t bytes : {size_t{8}, size_t{1000}, size_t{100000}, size_t{3} << 20}) {
      const std::vector<size_t> shape = {bytes};
      const koloArray_t array = arrayOf(shape);
      if (self.rank == 0) {
        EXPECT_OK(self, koloSendArray(bytesOf(bytes, 1).data(), &array, koloUint8, 1, self.comm, nullptr));
        continue;
      }
      Received received;
      received.refuses = true;
      EXPECT_CODE(self, koloOutOfMemory, koloRecvArray(allocate, &received, 0, nullptr, self.comm, nullptr));
      EXPECT(self, messageHas("allocate returned NULL") && messageHas("an array from rank 0 was dropped"));
    }
    expectWorks(self);
  });
}

TEST_CASE("S4.6 a rank without memory ends a broadcast and a scatter on all ranks, and the communicator goes on") {
  runOverEachLinks(3, [](Self& self) {
    const std::vector<size_t> shape = {3000};
    const koloArray_t array = arrayOf(shape);
    std::vector<float> data(3000);
    for (const int without : {0, 2}) {
      for (const bool scatters : {false, true}) {
        Received received;
        received.refuses = self.rank == without;
        EXPECT_CODE(
            self, self.rank == without ? koloOutOfMemory : koloRemoteError,
            scatters
                ? koloScatterArray(data.data(), &array, koloFloat32, 0, allocate, &received, 0, self.comm, nullptr)
                : koloBroadcastArray(data.data(), &array, koloFloat32, allocate, &received, 0, self.comm, nullptr));
        EXPECT(self, self.rank == without || messageHas(("rank " + std::to_string(without)).c_str()));
      }
    }
    // A rank but the root without a function.
    Received received;
    EXPECT_CODE(self, self.rank == 1 ? koloInvalidPointer : koloRemoteError,
                koloBroadcastArray(data.data(), &array, koloFloat32, self.rank == 1 ? nullptr : allocate, &received, 0,
                                   self.comm, nullptr));
    expectWorks(self);
  });
}

TEST_CASE("S4.6 what a root cannot send is an error on all ranks") {
  runOverEachLinks(2, [](Self& self) {
    const std::vector<size_t> shape = {2, 3}, huge = {SIZE_MAX, 2};
    std::vector<float> data(6);
    const std::vector<size_t> nine(9, 1);
    const std::ptrdiff_t columns[] = {1, 2}, rows[] = {3, 1};
    const koloArray_t good = {2, shape.data(), rows};
    struct Case {
      const void* data;
      koloArray_t array;
      koloDataType_t datatype;
      koloResult_t result;
    };
    const Case cases[] = {{data.data(), arrayOf(nine), koloFloat32, koloInvalidArgument},
                          {data.data(), {-1, nullptr, nullptr}, koloFloat32, koloInvalidArgument},
                          {data.data(), {2, nullptr, nullptr}, koloFloat32, koloInvalidPointer},
                          {data.data(), {2, shape.data(), columns}, koloFloat32, koloInvalidArgument},
                          {data.data(), good, static_cast<koloDataType_t>(99), koloInvalidDatatype},
                          {data.data(), arrayOf(huge), koloInt8, koloInvalidCount},
                          {nullptr, good, koloFloat32, koloInvalidPointer}};
    for (const Case& each : cases) {
      Received received;
      EXPECT_CODE(
          self, each.result,
          koloBroadcastArray(each.data, &each.array, each.datatype, allocate, &received, 1, self.comm, nullptr));
      EXPECT(self, self.rank == 1 || messageHas("rank 1, the root, cannot send its array"));
      EXPECT(self, received.calls == 0);
      if (self.rank == 1) {
        EXPECT_CODE(self, each.result, koloSendArray(each.data, &each.array, each.datatype, 0, self.comm, nullptr));
      }
    }
    Received received;
    EXPECT_OK(self, koloBroadcastArray(data.data(), &good, koloFloat32, allocate, &received, 1, self.comm, nullptr));
    EXPECT(self, received.is(koloFloat32, shape));
    EXPECT_CODE(self, koloInvalidRoot,
                koloBroadcastArray(data.data(), &good, koloFloat32, allocate, &received, 2, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidRoot, koloRecvArray(allocate, &received, 5, nullptr, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidPointer, koloRecvArray(nullptr, nullptr, 0, nullptr, self.comm, nullptr));
    expectWorks(self);
  });
}

TEST_CASE("S4.6 arrays go to streams, in order, and not into groups", "[threads]") {
  runOverEachLinks(2, [](Self& self) {
    koloStream_t stream = nullptr;
    EXPECT_OK(self, koloStreamCreate(&stream));
    const std::vector<size_t> shape = {2, 20000};
    const koloArray_t array = arrayOf(shape);
    const std::vector<unsigned char> mine = bytesOf(160000, self.rank);
    const int peer = 1 - self.rank;
    Received sent, again, broadcast, scattered;
    int one = 1, sum = 0;
    if (self.rank == 0) EXPECT_OK(self, koloSendArray(mine.data(), &array, koloInt32, peer, self.comm, stream));
    EXPECT_OK(self, koloRecvArray(allocate, &sent, peer, nullptr, self.comm, stream));
    if (self.rank == 1) EXPECT_OK(self, koloSendArray(mine.data(), &array, koloInt32, peer, self.comm, stream));
    EXPECT_OK(self, koloBroadcastArray(mine.data(), &array, koloInt32, allocate, &broadcast, 1, self.comm, stream));
    EXPECT_OK(self, koloScatterArray(mine.data(), &array, koloInt32, 0, allocate, &scattered, 0, self.comm, stream));
    EXPECT_OK(self, koloAllReduce(&one, &sum, 1, koloInt32, koloSum, self.comm, stream));
    EXPECT_OK(self, koloSendArray(mine.data(), &array, koloInt32, self.rank, self.comm, stream));
    EXPECT_OK(self, koloRecvArray(allocate, &again, self.rank, nullptr, self.comm, stream));
    EXPECT_OK(self, koloStreamSynchronize(stream));
    EXPECT(self, sent.memory == bytesOf(160000, peer));
    EXPECT(self, broadcast.memory == bytesOf(160000, 1));
    EXPECT(self, scattered.shape == (std::vector<size_t>{1, 20000}));
    EXPECT(self, sum == 2);
    EXPECT(self, again.memory == mine);
    EXPECT_OK(self, koloStreamDestroy(stream));
    EXPECT_OK(self, koloGroupStart());
    EXPECT_CODE(self, koloInvalidUsage, koloSendArray(mine.data(), &array, koloInt32, peer, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidUsage, koloGroupEnd());
    expectWorks(self);
  });
}
