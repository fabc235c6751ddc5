// Reductions that users make: pre-multiplied sums and functions of their own.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfenv>
#include <cfloat>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <pmmintrin.h>
#include <xmmintrin.h>
#endif

#include "support/ranks.h"

using namespace kolo::test;

namespace {

// x -> a x + b modulo 2^32: composition is associative and does not commute.
struct Affine {
  std::uint32_t a, b;
};
static_assert(sizeof(Affine) == 8);

std::atomic<int> calls{0};

// acc = in after acc: first what lower ranks do.
void compose(void* acc, const void* in, size_t count, koloDataType_t, void* context) {
  ++calls;
  ++*static_cast<std::atomic<int>*>(context);
  auto* left = static_cast<Affine*>(acc);
  const auto* right = static_cast<const Affine*>(in);
  for (size_t i = 0; i < count; ++i) left[i] = {right[i].a * left[i].a, right[i].a * left[i].b + right[i].b};
}

// Commutes: bitwise xor of 8 bytes.
void exclusive(void* acc, const void* in, size_t count, koloDataType_t, void*) {
  auto* left = static_cast<std::uint64_t*>(acc);
  const auto* right = static_cast<const std::uint64_t*>(in);
  for (size_t i = 0; i < count; ++i) left[i] ^= right[i];
}

Affine element(int rank, size_t i) {
  return {static_cast<std::uint32_t>(3 + 2 * rank + 4 * i), static_cast<std::uint32_t>(rank + 5 * i + 1)};
}

Affine folded(int ranks, size_t i) {
  Affine result = element(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const Affine next = element(rank, i);
    result = {next.a * result.a, next.a * result.b + next.b};
  }
  return result;
}

bool equal(Affine one, Affine other) { return one.a == other.a && one.b == other.b; }

template <class T>
void preMultiply(Self& self, koloDataType_t datatype, T scalarBase) {
  for (const size_t count : {size_t{1}, size_t{77}, size_t{20000}}) {
    // Each rank has its own scalar.
    const T scalar = scalarBase + T(self.rank);
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, &scalar, datatype, koloScalarHostImmediate, self.comm));
    EXPECT(self, op >= koloNumOps);
    std::vector<T> send(count * static_cast<size_t>(self.ranks), T(self.rank + 1)), recv(send.size());
    T expected = T(0);
    for (int rank = 0; rank < self.ranks; ++rank)
      expected = static_cast<T>(expected + (scalarBase + T(rank)) * T(rank + 1));
    EXPECT_OK(self, koloAllReduce(send.data(), recv.data(), count, datatype, op, self.comm, nullptr));
    EXPECT(self, recv[0] == expected && recv[count - 1] == expected);
    recv.assign(recv.size(), T(0));
    EXPECT_OK(self, koloReduce(send.data(), recv.data(), count, datatype, op, self.ranks - 1, self.comm, nullptr));
    EXPECT(self, recv[count - 1] == (self.rank == self.ranks - 1 ? expected : T(0)));
    EXPECT_OK(self, koloReduceScatter(send.data(), recv.data(), count, datatype, op, self.comm, nullptr));
    EXPECT(self, recv[0] == expected && recv[count - 1] == expected);
    EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
  }
}

// A reduction that calls what would wait for the operation that it is part of.
struct Nosy {
  koloComm_t comm;
  koloEvent_t event;
  std::vector<koloResult_t> results;
  int rank;
};
void nosy(void* acc, const void* in, size_t count, koloDataType_t, void* context) {
  auto& self = *static_cast<Nosy*>(context);
  for (size_t i = 0; i < count; ++i) static_cast<int*>(acc)[i] += static_cast<const int*>(in)[i];
  int value = 0;
  koloComm_t child = nullptr;
  self.results = {koloAllReduce(&value, &value, 1, koloInt32, koloSum, self.comm, nullptr),
                  koloGroupStart(),
                  koloCommSplit(self.comm, 0, 0, &child, nullptr),
                  koloCommFinalize(self.comm),
                  koloCommDestroy(self.comm),
                  koloCommAbort(self.comm),
                  koloEventSynchronize(self.event),
                  koloStreamWaitEvent(nullptr, self.event)};
  (void)koloCommUserRank(self.comm, &self.rank);
}

}  // namespace

TEST_CASE("a pre-multiplied sum uses each rank's own scalar, for every collective that reduces") {
  for (const int ranks : {1, 2, 3, 5}) {
    World world(ranks);
    world.run([](Self& self) {
      preMultiply<std::int8_t>(self, koloInt8, 1);
      preMultiply<std::uint8_t>(self, koloUint8, 1);
      preMultiply<std::int16_t>(self, koloInt16, 3);
      preMultiply<std::uint16_t>(self, koloUint16, 3);
      preMultiply<std::int32_t>(self, koloInt32, -3);
      preMultiply<std::uint32_t>(self, koloUint32, 3);
      preMultiply<std::int64_t>(self, koloInt64, std::int64_t{1} << 40);
      preMultiply<std::uint64_t>(self, koloUint64, 7);
      preMultiply<float>(self, koloFloat32, 0.5F);
      preMultiply<double>(self, koloFloat64, 0.25);
      preMultiply<std::complex<float>>(self, koloComplex64, {0.5F, 2.0F});
      preMultiply<std::complex<double>>(self, koloComplex128, {0.5, -2.0});
    });
  }
}

TEST_CASE("a pre-multiplied sum is there for the narrow floating-point types, and works in windows", "[optimised]") {
  World world(3);
  world.run([](Self& self) {
    // 1.0 and 2.0 in each format; the scalar is 2, so the sum of three ones is 6.
    struct Format {
      koloDataType_t datatype;
      std::uint16_t one, two, six;
    };
    for (const Format& format :
         {Format{koloFloat16, 0x3c00, 0x4000, 0x4600}, Format{koloBfloat16, 0x3f80, 0x4000, 0x40c0},
          Format{koloFloat8e4m3, 0x38, 0x40, 0x4c}, Format{koloFloat8e5m2, 0x3c, 0x40, 0x46}}) {
      const bool narrow = koloDataTypeSize(format.datatype) == 1;
      koloRedOp_t op = koloSum;
      const auto narrowTwo = static_cast<std::uint8_t>(format.two);
      EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, narrow ? static_cast<const void*>(&narrowTwo) : &format.two,
                                               format.datatype, koloScalarHostImmediate, self.comm));
      std::vector<std::uint16_t> send(1000, narrow ? static_cast<std::uint16_t>(format.one * 257) : format.one),
          recv(1000);
      EXPECT_OK(self,
                koloAllReduce(send.data(), recv.data(), narrow ? 2000 : 1000, format.datatype, op, self.comm, nullptr));
      const auto expected = narrow ? static_cast<std::uint16_t>(format.six * 257) : format.six;
      if (recv[0] != expected || recv[999] != expected) {
        self.fault(KOLO_HERE, std::string(koloDataTypeName(format.datatype)) + " gave " + std::to_string(recv[0]));
      }
      EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
    }
    void* memory = nullptr;
    EXPECT_OK(self, koloMemAlloc(&memory, 80000));
    auto* data = static_cast<float*>(memory);
    koloWindow_t window = nullptr;
    EXPECT_OK(self, koloWindowRegister(self.comm, memory, 80000, &window));
    std::fill(data, data + 10000, 2.0F);
    const float scalar = static_cast<float>(self.rank);
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, &scalar, koloFloat32, koloScalarHostImmediate, self.comm));
    EXPECT_OK(self, koloAllReduce(data, data + 10000, 10000, koloFloat32, op, self.comm, nullptr));
    EXPECT(self, data[10000] == 6 && data[19999] == 6 && data[0] == 2);
    EXPECT_OK(self, koloAllReduce(data, data, 10000, koloFloat32, op, self.comm, nullptr));
    EXPECT(self, data[0] == 6 && data[9999] == 6);
    EXPECT_OK(self, koloWindowDeregister(self.comm, window));
    EXPECT_OK(self, koloMemFree(memory));
  });
}

TEST_CASE("a pre-multiplied sum belongs to its datatype and its communicator") {
  World world(2), other(2);
  world.run([&](Self& self) {
    const float scalar = 2;
    koloRedOp_t op = koloSum;
    EXPECT_CODE(self, koloInvalidOperation,
                koloRedOpCreatePreMulSum(&op, &scalar, koloBool, koloScalarHostImmediate, self.comm));
    EXPECT_CODE(self, koloInvalidDatatype,
                koloRedOpCreatePreMulSum(&op, &scalar, koloNumDatatypes, koloScalarHostImmediate, self.comm));
    EXPECT_CODE(self, koloInvalidArgument,
                koloRedOpCreatePreMulSum(&op, &scalar, koloFloat32, static_cast<koloScalarResidence_t>(9), self.comm));
    EXPECT(self, op == koloSum);
    EXPECT_OK(self, koloRedOpCreatePreMulSum(&op, &scalar, koloFloat32, koloScalarHostImmediate, self.comm));
    float value = 1, sum = -1;
    EXPECT_CODE(self, koloInvalidDatatype, koloAllReduce(&value, &sum, 1, koloInt32, op, self.comm, nullptr));
    EXPECT(self, messageHas("made for float32"));
    EXPECT_CODE(self, koloInvalidOperation, koloAllReduce(&value, &sum, 1, koloFloat32, op, other[self.rank], nullptr));
    EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
    EXPECT_CODE(self, koloInvalidOperation, koloAllReduce(&value, &sum, 1, koloFloat32, op, self.comm, nullptr));
    EXPECT_CODE(self, koloInvalidOperation, koloRedOpDestroy(op, self.comm));
    EXPECT_CODE(self, koloInvalidOperation, koloRedOpDestroy(koloSum, self.comm));
    EXPECT(self, sum == -1);
    expectWorks(self);
  });
}

TEST_CASE("a function that does not commute is folded strictly in rank order") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    World world(ranks);
    world.run([](Self& self) {
      std::atomic<int> context{0};
      koloRedOp_t op = koloSum;
      EXPECT_OK(self, koloRedOpCreate(&op, compose, 0, &context, self.comm));
      const auto n = static_cast<size_t>(self.ranks), me = static_cast<size_t>(self.rank);
      for (const size_t count : {size_t{1}, size_t{5}, size_t{1000}, size_t{30000}}) {
        std::vector<Affine> send(count * n), recv(count * n, Affine{0, 0});
        for (size_t i = 0; i < send.size(); ++i) send[i] = element(self.rank, i);
        const auto expectAt = [&](size_t from, const char* what) {
          for (size_t i = 0; i < count; ++i) {
            if (!equal(recv[i], folded(self.ranks, from + i))) {
              self.fault(KOLO_HERE,
                         std::string(what) + ", count " + std::to_string(count) + " at " + std::to_string(i));
              return;
            }
          }
        };
        EXPECT_OK(self, koloAllReduce(send.data(), recv.data(), count, koloInt64, op, self.comm, nullptr));
        expectAt(0, "all_reduce");
        EXPECT_OK(self, koloReduceScatter(send.data(), recv.data(), count, koloInt64, op, self.comm, nullptr));
        expectAt(me * count, "reduce_scatter");
        EXPECT_OK(self, koloReduce(send.data(), recv.data(), count, koloComplex64, op, 0, self.comm, nullptr));
        if (self.rank == 0) expectAt(0, "reduce");
        // In place.
        recv = send;
        EXPECT_OK(self, koloAllReduce(recv.data(), recv.data(), count, koloInt64, op, self.comm, nullptr));
        expectAt(0, "all_reduce in place");
      }
      EXPECT_OK(self, koloRedOpDestroy(op, self.comm));
    });
  }
  CHECK(calls > 0);
}

TEST_CASE("a function that does not commute keeps its order under every algorithm that is asked for") {
  for (const char* algorithm : {"one_shot", "two_shot", "ring", "biring", "recursive", "tree"}) {
    INFO(algorithm);
    const std::string text = std::string("all_reduce:") + algorithm;
    World world(3, configWithAlgorithm(text.c_str()));
    world.run([](Self& self) {
      std::atomic<int> context{0};
      koloRedOp_t op = koloSum;
      EXPECT_OK(self, koloRedOpCreate(&op, compose, 0, &context, self.comm));
      std::vector<Affine> send(4000), recv(4000);
      for (size_t i = 0; i < send.size(); ++i) send[i] = element(self.rank, i);
      EXPECT_OK(self, koloAllReduce(send.data(), recv.data(), send.size(), koloUint64, op, self.comm, nullptr));
      EXPECT(self, equal(recv[0], folded(3, 0)) && equal(recv[3999], folded(3, 3999)));
    });
  }
}

TEST_CASE("a function that commutes works under every algorithm") {
  for (const char* algorithm : {"line", "one_shot", "two_shot", "ring", "biring", "recursive", "tree"}) {
    for (const int ranks : {2, 3, 5}) {
      INFO(algorithm << ", " << ranks << " ranks");
      const std::string text = std::string("all_reduce:") + algorithm;
      World world(ranks, configWithAlgorithm(text.c_str()));
      world.run([](Self& self) {
        koloRedOp_t op = koloSum;
        EXPECT_OK(self, koloRedOpCreate(&op, exclusive, 1, nullptr, self.comm));
        for (const size_t count : {size_t{1}, size_t{6000}}) {
          std::vector<std::uint64_t> send(count, std::uint64_t{1} << self.rank), recv(count);
          EXPECT_OK(self, koloAllReduce(send.data(), recv.data(), count, koloUint64, op, self.comm, nullptr));
          EXPECT(self, recv.front() == (1u << self.ranks) - 1 && recv.back() == (1u << self.ranks) - 1);
        }
      });
    }
  }
}

TEST_CASE("calls from inside a reduction that would wait for it are refused, questions are answered") {
  World world(2);
  world.run([](Self& self) {
    Nosy context{self.comm, nullptr, {}, -1};
    EXPECT_OK(self, koloEventCreate(&context.event));
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreate(&op, nosy, 1, &context, self.comm));
    int value = self.rank + 1;
    EXPECT_OK(self, koloAllReduce(&value, &value, 1, koloInt32, op, self.comm, nullptr));
    EXPECT(self, value == 3);
    EXPECT(self, context.results == std::vector<koloResult_t>(8, koloInvalidUsage));
    EXPECT(self, context.rank == self.rank);
    EXPECT_OK(self, koloEventDestroy(context.event));
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
}

// The refused calls leave the operation what it is: a turn that others wait for.
TEST_CASE("what a reduction function is refused does not let another thread into the communicator", "[threads]") {
  World world(2);
  world.run([](Self& self) {
    struct Context {
      koloComm_t comm;
      std::atomic<bool> inside{false}, entered{false};
      bool alone = false;
    } context{self.comm, {}, {}, false};
    const auto function = [](void* acc, const void* in, size_t count, koloDataType_t, void* pointer) {
      auto& own = *static_cast<Context*>(pointer);
      for (size_t i = 0; i < count; ++i) static_cast<int*>(acc)[i] += static_cast<const int*>(in)[i];
      int value = 0;
      (void)koloAllReduce(&value, &value, 1, koloInt32, koloSum, own.comm, nullptr);
      (void)koloSend(&value, 1, koloInt32, 0, own.comm, nullptr);
      own.inside = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      own.alone = !own.entered;
    };
    koloRedOp_t op = koloSum;
    EXPECT_OK(self, koloRedOpCreate(&op, function, 1, &context, self.comm));
    for (int i = 0; i < 100; ++i) EXPECT_OK(self, koloBarrier(self.comm, nullptr));  // alone: the thread gets the bias
    std::thread other([&] {
      while (!context.inside) std::this_thread::yield();
      EXPECT_OK(self, koloCommSetAlgorithm(self.comm, ""));
      context.entered = true;
    });
    int value = self.rank + 1;
    EXPECT_OK(self, koloAllReduce(&value, &value, 1, koloInt32, op, self.comm, nullptr));
    other.join();
    EXPECT(self, value == 3);
    EXPECT(self, context.alone);
    EXPECT_OK(self, koloBarrier(self.comm, nullptr));
  });
}

namespace {

// As torch.set_flush_denormal(True) does.
void flushSubnormals() {
#if defined(__x86_64__)
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
#endif
}

// The sum of one float of each rank, by a blocking call and by the communicator's own thread.
void expectSum(Self& self, float mine, float sum) {
  float blocking = 0, started = 0;
  EXPECT_OK(self, koloAllReduce(&mine, &blocking, 1, koloFloat32, koloSum, self.comm, nullptr));
  koloRequest_t request = nullptr;
  EXPECT_OK(self, koloIallReduce(&mine, &started, 1, koloFloat32, koloSum, self.comm, &request));
  while (koloRequestTest(request) == koloInProgress) std::this_thread::yield();
  EXPECT_OK(self, koloRequestFree(request));
  EXPECT(self, std::bit_cast<std::uint32_t>(blocking) == std::bit_cast<std::uint32_t>(sum));
  EXPECT(self, std::bit_cast<std::uint32_t>(started) == std::bit_cast<std::uint32_t>(sum));
}

}  // namespace

TEST_CASE("a thread's floating-point mode changes no result, and is the thread's again afterwards", "[threads]") {
  for (const bool isReproducible : {false, true}) {
    koloConfig_t config = defaultConfig();
    config.reproducible = isReproducible ? 1 : 0;
    const World world(3, config);
    for (const int who : {1, 3}) {  // one rank, or all
      world.run([&](Self& self) {
        if (self.rank != who && who != 3) {
          expectSum(self, std::bit_cast<float>(1000U), std::bit_cast<float>(3000U));
          expectSum(self, self.rank == 0 ? 1.0F : FLT_EPSILON / 8, 1.0F);
          return;
        }
        flushSubnormals();
        expectSum(self, std::bit_cast<float>(1000U), std::bit_cast<float>(3000U));
        std::fesetround(FE_UPWARD);
        expectSum(self, self.rank == 0 ? 1.0F : FLT_EPSILON / 8, 1.0F);
        EXPECT(self, std::fegetround() == FE_UPWARD);
#if defined(__x86_64__)
        EXPECT(self, _MM_GET_FLUSH_ZERO_MODE() == _MM_FLUSH_ZERO_ON);
#endif
      });
    }
  }
}

TEST_CASE("a program's traps of floating-point exceptions do not fire in the library") {
  std::array<koloComm_t, 2> comms{};
  std::array<float, 2> results{};
  koloConfig_t config = defaultConfig();
  feenableexcept(FE_ALL_EXCEPT);  // the threads begin with them, too
  const koloResult_t made = koloCommInitAll(comms.data(), 2, &config);
  std::array<std::thread, 2> ranks;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks[rank] = std::thread([&, rank] {
      const std::array<float, 3> mine{FLT_MAX, 0.1F, FLT_MIN};
      std::array<float, 3> sums{};
      (void)koloAllReduce(mine.data(), sums.data(), 3, koloFloat32, koloSum, comms[rank], nullptr);
      results[rank] = sums[0];
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const koloComm_t comm : comms) (void)koloCommDestroy(comm);
  const int enabled = fegetexcept();
  fedisableexcept(FE_ALL_EXCEPT);
  REQUIRE_OK(made);
  REQUIRE(enabled == FE_ALL_EXCEPT);
  for (const float result : results) REQUIRE(std::isinf(result));
}

// By a single call and by lists, alone and beside items that stay as they are.
TEST_CASE("on one rank, too, reduced bools are 0 or 1, also in a list with items of other datatypes") {
  World world(1);
  world.run([](Self& self) {
    for (const koloRedOp_t op : {koloSum, koloProd, koloMax, koloMin}) {
      for (const bool inPlace : {false, true}) {
        std::vector<unsigned char> bools = {0, 1, 2, 255, 0, 7}, boolResults(6, 9);
        std::vector<float> floats = {0, -2.5F, 7}, floatResults(3, 9), narrow = {1, 2.5F, -3}, narrowResults(3, 9);
        std::vector<std::int8_t> bytes = {0, 5, -7}, byteResults(3, 9);
        const std::vector<unsigned char> wanted = {0, 1, 1, 1, 0, 1};
        const auto itemOf = [&](auto& given, auto& results, koloDataType_t datatype) {
          koloItem_t item = KOLO_ITEM_INITIALIZER;
          item.sendbuf = given.data();
          item.recvbuf = inPlace ? given.data() : results.data();
          item.count = given.size();
          item.sendtype = datatype;
          return item;
        };
        const std::vector<float> givenFloats = floats, givenNarrow = narrow;
        const std::vector<std::int8_t> givenBytes = bytes;
        std::vector<koloItem_t> items = {itemOf(floats, floatResults, koloFloat32),
                                         itemOf(bools, boolResults, koloBool), itemOf(bytes, byteResults, koloInt8),
                                         itemOf(narrow, narrowResults, koloFloat32)};
        items.back().transfertype = koloBfloat16;
        EXPECT_OK(self, koloAllReduceList(items.data(), items.size(), op, self.comm, nullptr));
        EXPECT(self, (inPlace ? bools : boolResults) == wanted);
        EXPECT(self, (inPlace ? floats : floatResults) == givenFloats);
        EXPECT(self, (inPlace ? narrow : narrowResults) == givenNarrow);
        EXPECT(self, (inPlace ? bytes : byteResults) == givenBytes);
      }
    }
    // Of logical operations every item is 0 or 1; of bitwise ones the bools alone.
    std::vector<unsigned char> bools = {2, 0};
    std::vector<int> numbers = {6, 0};
    koloItem_t items[2] = {KOLO_ITEM_INITIALIZER, KOLO_ITEM_INITIALIZER};
    items[0].sendbuf = items[0].recvbuf = bools.data();
    items[1].sendbuf = items[1].recvbuf = numbers.data();
    items[0].count = items[1].count = 2;
    items[0].sendtype = koloBool;
    items[1].sendtype = koloInt32;
    EXPECT_OK(self, koloReduceList(items, 2, koloBitXor, 0, self.comm, nullptr));
    EXPECT(self, bools == std::vector<unsigned char>({1, 0}) && numbers == std::vector<int>({6, 0}));
    bools[0] = 4;
    EXPECT_OK(self, koloAllReduceList(items, 2, koloLogicalAnd, self.comm, nullptr));
    EXPECT(self, bools == std::vector<unsigned char>({1, 0}) && numbers == std::vector<int>({1, 0}));
  });
}
