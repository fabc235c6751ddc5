// What the library says to arguments that are wrong: the code, the words, nothing written, and the communicator is well
// afterwards.
#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>

#include "support/collectives_table.h"
#include "support/ranks.h"

using namespace kolo::test;

namespace {

constexpr int kRanks = 3;
constexpr int kMe = 1;
constexpr unsigned char kGuard = 0xa5;

// Arguments that are right, of rank kMe, which is the root; each test spoils one of them.
struct Fixture {
  World world{kRanks};
  std::vector<int> send = std::vector<int>(64, 7);
  std::vector<unsigned char> recv = std::vector<unsigned char>(64 * sizeof(int), kGuard);

  Arguments good() {
    Arguments arguments;
    arguments.send = send.data();
    arguments.recv = recv.data();
    arguments.count = 8;
    arguments.root = kMe;
    arguments.comm = world[kMe];
    return arguments;
  }
  ~Fixture() {
    CHECK(std::all_of(recv.begin(), recv.end(), [](unsigned char c) { return c == kGuard; }));
    world.run(expectWorks);
  }
};

void expectRefusal(const Collective& collective, const Arguments& arguments, koloResult_t code, const char* words) {
  INFO(collective.name);
  place(collective.name, kMe);
  const koloResult_t got = collective.call(arguments);
  INFO("message: " << koloGetLastError(nullptr));
  CHECK(nameOf(got) == nameOf(code));
  CHECK(messageHas(words));
}

template <class Handle>
Handle garbage(std::uintptr_t value) {
  return reinterpret_cast<Handle>(value);
}

}  // namespace

TEST_CASE("a NULL buffer is refused where bytes are needed and accepted for a count of 0") {
  Fixture fixture;
  for (const Collective& collective : collectives()) {
    Arguments arguments = fixture.good();
    arguments.send = nullptr;
    expectRefusal(collective, arguments, koloInvalidPointer, "sendbuf is NULL, expected");
    arguments = fixture.good();
    arguments.recv = nullptr;
    expectRefusal(collective, arguments, koloInvalidPointer, "recvbuf is NULL, expected");
  }
  fixture.world.run([](Self& self) {
    for (const Collective& collective : collectives()) {
      Arguments arguments;
      arguments.comm = self.comm;
      EXPECT_OK(self, collective.call(arguments));
    }
  });
}

TEST_CASE("counts that are negative or exceed the address space are refused") {
  Fixture fixture;
  for (const Collective& collective : collectives()) {
    for (const size_t count :
         {static_cast<size_t>(-1), static_cast<size_t>(PTRDIFF_MAX) + 1, static_cast<size_t>(-8)}) {
      Arguments arguments = fixture.good();
      arguments.count = count;
      expectRefusal(collective, arguments, koloInvalidCount, "when read as signed");
    }
    Arguments arguments = fixture.good();
    arguments.count = static_cast<size_t>(PTRDIFF_MAX) / sizeof(int) + 1;
    expectRefusal(collective, arguments, koloInvalidCount, "expected at most");
    if (collective.recvDivided || collective.sendDivided) {
      arguments.count = static_cast<size_t>(PTRDIFF_MAX) / sizeof(int) / kRanks + 1;
      expectRefusal(collective, arguments, koloInvalidCount, "3 blocks");
    }
  }
}

TEST_CASE("unknown datatypes and reductions are refused") {
  Fixture fixture;
  for (const Collective& collective : collectives()) {
    for (const int datatype : {-1, static_cast<int>(koloNumDatatypes), INT_MAX, INT_MIN}) {
      Arguments arguments = fixture.good();
      arguments.datatype = static_cast<koloDataType_t>(datatype);
      expectRefusal(collective, arguments, koloInvalidDatatype, "expected a koloDataType_t from 0 to 16");
    }
    if (!collective.reduces) continue;
    for (const int op : {-1, static_cast<int>(koloNumOps), INT_MAX, INT_MIN}) {
      Arguments arguments = fixture.good();
      arguments.op = static_cast<koloRedOp_t>(op);
      expectRefusal(collective, arguments, koloInvalidOperation, "is unknown: expected 0..10");
    }
  }
}

TEST_CASE("a reduction that is undefined for a datatype is refused, for every pair") {
  Fixture fixture;
  int refused = 0;
  for (int op = 0; op < koloNumOps; ++op) {
    for (int datatype = 0; datatype < koloNumDatatypes; ++datatype) {
      const auto o = static_cast<koloRedOp_t>(op);
      const auto d = static_cast<koloDataType_t>(datatype);
      if (koloRedOpIsDefined(o, d) != 0) continue;
      ++refused;
      for (const Collective& collective : collectives()) {
        if (!collective.reduces) continue;
        Arguments arguments = fixture.good();
        arguments.count = 1;
        arguments.op = o;
        arguments.datatype = d;
        expectRefusal(collective, arguments, koloInvalidOperation, "is not defined for");
        CHECK(messageHas(koloRedOpName(o)));
        CHECK(messageHas(koloDataTypeName(d)));
      }
    }
  }
  // bitwise on 6 floating-point and 2 complex types; min, max, logical on the complex ones, at the least
  CHECK(refused >= 3 * 8 + 2 * 2);
  CHECK(koloRedOpIsDefined(koloSum, koloFloat32) == 1);
  CHECK(koloRedOpIsDefined(koloBitAnd, koloFloat32) == 0);
  CHECK(koloRedOpIsDefined(koloMax, koloComplex64) == 0);
  CHECK(koloRedOpIsDefined(koloNumOps, koloInt8) == 0);
  CHECK(koloRedOpIsDefined(koloSum, koloNumDatatypes) == 0);
}

TEST_CASE("roots and peers outside the communicator are refused") {
  Fixture fixture;
  for (const int root : {-1, kRanks, INT_MAX, INT_MIN}) {
    for (const Collective& collective : collectives()) {
      if (!collective.hasRoot) continue;
      Arguments arguments = fixture.good();
      arguments.root = root;
      expectRefusal(collective, arguments, koloInvalidRoot, "expected 0..2");
    }
    koloComm_t comm = fixture.world[kMe];
    CHECK_CODE(koloInvalidRoot, koloSend(fixture.send.data(), 1, koloInt32, root, comm, nullptr));
    CHECK(messageHas("expected 0..2"));
    CHECK_CODE(koloInvalidRoot, koloRecv(fixture.recv.data(), 1, koloInt32, root, comm, nullptr));
    if (root == KOLO_ANY_SOURCE) continue;
    CHECK_CODE(koloInvalidRoot, koloRecvTag(fixture.recv.data(), 1, koloInt32, root, 0, nullptr, comm, nullptr));
    CHECK(messageHas("KOLO_ANY_SOURCE"));
  }
}

TEST_CASE("negative tags are refused, and any-tag when sending") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe];
  for (const int tag : {-1, -2, INT_MIN}) {
    CHECK_CODE(koloInvalidArgument, koloSendTag(fixture.send.data(), 1, koloInt32, 0, tag, comm, nullptr));
    CHECK(messageHas("tag is"));
  }
  CHECK_CODE(koloInvalidArgument, koloRecvTag(fixture.recv.data(), 1, koloInt32, 0, -2, nullptr, comm, nullptr));
  CHECK(messageHas("KOLO_ANY_TAG"));
}

TEST_CASE("messages refuse NULL buffers, absurd counts and unknown datatypes") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe];
  CHECK_CODE(koloInvalidPointer, koloSend(nullptr, 1, koloInt32, 0, comm, nullptr));
  CHECK(messageHas("sendbuf is NULL"));
  CHECK_CODE(koloInvalidPointer, koloRecv(nullptr, 1, koloInt32, 0, comm, nullptr));
  CHECK(messageHas("recvbuf is NULL"));
  CHECK_CODE(koloInvalidCount, koloSend(fixture.send.data(), static_cast<size_t>(-1), koloInt32, 0, comm, nullptr));
  CHECK_CODE(koloInvalidCount, koloRecv(fixture.recv.data(), static_cast<size_t>(-1), koloInt32, 0, comm, nullptr));
  CHECK_CODE(koloInvalidDatatype, koloSend(fixture.send.data(), 1, koloNumDatatypes, 0, comm, nullptr));
  CHECK_CODE(koloInvalidDatatype, koloRecv(fixture.recv.data(), 1, koloNumDatatypes, 0, comm, nullptr));
}

TEST_CASE("NULL, garbage and destroyed communicators are refused by every function") {
  Fixture fixture;
  koloComm_t destroyed = nullptr;
  REQUIRE_OK(koloCommInitAll(&destroyed, 1, nullptr));
  REQUIRE_OK(koloCommDestroy(destroyed));
  int place32 = 0;
  std::uint64_t flags = 0;
  koloUniqueId id{};
  koloResult_t async = koloSuccess;
  koloComm_t made = nullptr;
  koloWindow_t window = nullptr;
  koloRedOp_t op = koloSum;
  koloPlan_t plan;
  for (koloComm_t comm : {koloComm_t{}, destroyed, garbage<koloComm_t>(1), garbage<koloComm_t>(UINTPTR_MAX),
                          garbage<koloComm_t>(reinterpret_cast<std::uintptr_t>(&place32))}) {
    for (const Collective& collective : collectives()) {
      Arguments arguments = fixture.good();
      arguments.comm = comm;
      expectRefusal(collective, arguments, koloInvalidHandle, "is not a communicator");
    }
    CHECK_CODE(koloInvalidHandle, koloBarrier(comm, nullptr));
    CHECK_CODE(koloInvalidHandle, koloSend(fixture.send.data(), 1, koloInt32, 0, comm, nullptr));
    CHECK_CODE(koloInvalidHandle, koloRecv(fixture.recv.data(), 1, koloInt32, 0, comm, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommCount(comm, &place32));
    CHECK_CODE(koloInvalidHandle, koloCommUserRank(comm, &place32));
    CHECK_CODE(koloInvalidHandle, koloCommCores(comm, &place32));
    CHECK_CODE(koloInvalidHandle, koloCommGetAsyncError(comm, &async));
    CHECK_CODE(koloInvalidHandle, koloCommFailedRanks(comm, &place32, &place32));
    CHECK_CODE(koloInvalidHandle, koloCommAgree(comm, &flags));
    CHECK_CODE(koloInvalidHandle, koloCommGetUniqueId(comm, &id));
    if (comm != nullptr) CHECK_CODE(koloInvalidHandle, koloCommGrow(comm, 2, &id, -1, &made, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommSplit(comm, 0, 0, &made, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommShrink(comm, nullptr, 0, &made, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommFinalize(comm));
    CHECK_CODE(koloInvalidHandle, koloCommDestroy(comm));
    CHECK_CODE(koloInvalidHandle, koloCommAbort(comm));
    CHECK_CODE(koloInvalidHandle, koloCommRevoke(comm, "why"));
    CHECK_CODE(koloInvalidHandle, koloWindowRegister(comm, nullptr, 0, &window));
    CHECK_CODE(koloInvalidHandle, koloRedOpCreatePreMulSum(&op, &place32, koloInt32, koloScalarHostImmediate, comm));
    CHECK_CODE(koloInvalidHandle, koloCommSetAlgorithm(comm, ""));
    CHECK_CODE(koloInvalidHandle, koloCommSetProgress(comm, nullptr, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommSetWatch(comm, nullptr, nullptr));
    CHECK_CODE(koloInvalidHandle, koloCommGetPlan(comm, koloCollectiveAllReduce, 1, koloInt32, koloSum, 0, &plan));
  }
  CHECK(place32 == 0);
  CHECK(window == nullptr);
  CHECK(made == nullptr);
}

TEST_CASE("handles of another kind are refused") {
  Fixture fixture;
  koloStream_t stream = nullptr;
  REQUIRE_OK(koloStreamCreate(&stream));
  Arguments arguments = fixture.good();
  arguments.comm = reinterpret_cast<koloComm_t>(stream);
  expectRefusal(collectives()[0], arguments, koloInvalidHandle, "is not a communicator");
  arguments = fixture.good();
  arguments.stream = reinterpret_cast<koloStream_t>(fixture.world[0]);
  expectRefusal(collectives()[0], arguments, koloInvalidHandle, "is not a stream");
  CHECK_CODE(koloInvalidHandle, koloStreamSynchronize(reinterpret_cast<koloStream_t>(fixture.world[0])));
  CHECK_CODE(koloInvalidHandle, koloWindowDeregister(fixture.world[0], reinterpret_cast<koloWindow_t>(stream)));
  REQUIRE_OK(koloStreamDestroy(stream));
}

TEST_CASE("destroyed and garbage streams are refused by every function") {
  Fixture fixture;
  koloStream_t destroyed = nullptr;
  REQUIRE_OK(koloStreamCreate(&destroyed));
  REQUIRE_OK(koloStreamDestroy(destroyed));
  for (koloStream_t stream : {destroyed, garbage<koloStream_t>(12), garbage<koloStream_t>(UINTPTR_MAX)}) {
    for (const Collective& collective : collectives()) {
      Arguments arguments = fixture.good();
      arguments.stream = stream;
      expectRefusal(collective, arguments, koloInvalidHandle, "is not a stream");
    }
    CHECK_CODE(koloInvalidHandle, koloStreamSynchronize(stream));
    CHECK_CODE(koloInvalidHandle, koloStreamQuery(stream));
    CHECK_CODE(koloInvalidHandle, koloStreamDestroy(stream));
  }
  CHECK_CODE(koloInvalidHandle, koloStreamDestroy(nullptr));
  CHECK_CODE(koloInvalidPointer, koloStreamCreate(nullptr));
  CHECK_CODE(koloSuccess, koloStreamSynchronize(nullptr));
}

TEST_CASE("NULL places for results are refused") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe];
  int scalar = 1;
  koloRedOp_t op = koloSum;
  koloUniqueId id{};
  CHECK_CODE(koloInvalidPointer, koloGetVersion(nullptr));
  CHECK_CODE(koloInvalidPointer, koloGetUniqueId(nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommInitAll(nullptr, 1, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommInitRank(nullptr, 1, id, 0));
  CHECK_CODE(koloInvalidPointer, koloCommInitFromEnv(nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommCount(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommUserRank(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommCores(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommGetAsyncError(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommFailedRanks(comm, nullptr, &scalar));
  CHECK_CODE(koloInvalidPointer, koloCommFailedRanks(comm, &scalar, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommAgree(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommGetUniqueId(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommGrow(comm, kRanks + 1, &id, -1, nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommSplit(comm, 0, 0, nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommShrink(comm, nullptr, 0, nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloMemAlloc(nullptr, 1));
  CHECK_CODE(koloInvalidPointer, koloWindowRegister(comm, nullptr, 0, nullptr));
  void* const parts[kRanks] = {};
  const size_t bytes[kRanks] = {8, 8, 8};
  koloWindow_t window = nullptr;
  CHECK_CODE(koloInvalidPointer, koloWindowRegisterMapped(comm, parts, bytes, nullptr));
  CHECK_CODE(koloInvalidPointer, koloWindowRegisterMapped(comm, nullptr, bytes, &window));
  CHECK_CODE(koloInvalidPointer, koloWindowRegisterMapped(comm, parts, nullptr, &window));
  CHECK_CODE(koloInvalidPointer, koloWindowRegisterMapped(comm, parts, bytes, &window));
  CHECK_CODE(koloInvalidPointer, koloWindowIsZeroCopy(nullptr, nullptr));
  CHECK_CODE(koloInvalidPointer, koloRedOpCreatePreMulSum(nullptr, &scalar, koloInt32, koloScalarHostImmediate, comm));
  CHECK_CODE(koloInvalidPointer, koloRedOpCreatePreMulSum(&op, nullptr, koloInt32, koloScalarHostImmediate, comm));
  CHECK_CODE(koloInvalidPointer, koloRedOpCreate(&op, nullptr, 1, nullptr, comm));
  CHECK_CODE(koloInvalidPointer, koloCommSetAlgorithm(comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommGetPlan(comm, koloCollectiveAllReduce, 1, koloInt32, koloSum, 0, nullptr));
  CHECK_CODE(koloInvalidPointer, koloGetInfo(koloInfoBuild, nullptr, 10, nullptr));
}

TEST_CASE("buffers that overlap other than in place are refused, for each collective") {
  Fixture fixture;
  std::vector<unsigned char> memory(4096, kGuard);
  constexpr size_t kCount = 8, kBlock = kCount * sizeof(int);
  for (const Collective& collective : collectives()) {
    for (const size_t shift : {size_t{4}, kBlock - 4}) {
      Arguments arguments = fixture.good();
      arguments.send = memory.data();
      arguments.recv = memory.data() + shift;
      expectRefusal(collective, arguments, koloInvalidOverlap, "overlap; expected them apart");
      arguments.send = memory.data() + shift;
      arguments.recv = memory.data();
      expectRefusal(collective, arguments, koloInvalidOverlap, "overlap; expected them apart");
    }
    // Equal pointers are in place only where both sides have the same shape.
    if (collective.sendDivided == collective.recvDivided) continue;
    Arguments arguments = fixture.good();
    arguments.send = memory.data();
    arguments.recv = memory.data();
    expectRefusal(collective, arguments, koloInvalidOverlap, "or in place");
  }
  CHECK(std::all_of(memory.begin(), memory.end(), [](unsigned char c) { return c == kGuard; }));
}

TEST_CASE("buffers that only touch are no overlap, and in place is none either") {
  World world(2);
  world.run([](Self& self) {
    for (const Collective& collective : collectives()) {
      std::vector<int> memory(64, 3);
      const size_t sendBlocks = collective.sendDivided ? 2 : 1;
      Arguments arguments;
      arguments.comm = self.comm;
      arguments.count = 8;
      arguments.send = memory.data();
      arguments.recv = memory.data() + 8 * sendBlocks;
      EXPECT_OK(self, collective.call(arguments));
      const size_t mine = 8 * static_cast<size_t>(self.rank);
      const size_t sendAt = collective.recvDivided && !collective.sendDivided ? mine : 0;
      const size_t recvAt = collective.sendDivided && !collective.recvDivided ? mine : 0;
      arguments.send = memory.data() + sendAt;
      arguments.recv = memory.data() + recvAt;
      EXPECT_OK(self, collective.call(arguments));
    }
  });
}

TEST_CASE("v-variants refuse missing arrays, absurd counts and blocks of their own that disagree") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe];
  const int* send = fixture.send.data();
  unsigned char* recv = fixture.recv.data();
  const size_t good[kRanks] = {1, 2, 3}, huge[kRanks] = {1, static_cast<size_t>(-1), 1}, other[kRanks] = {1, 3, 3};
  const size_t far[kRanks] = {0, static_cast<size_t>(PTRDIFF_MAX), 0};
  CHECK_CODE(koloInvalidPointer, koloAllGatherv(send, recv, nullptr, nullptr, koloInt32, comm, nullptr));
  CHECK(messageHas("expected an array of 3 counts"));
  CHECK_CODE(koloInvalidCount, koloAllGatherv(send, recv, huge, nullptr, koloInt32, comm, nullptr));
  CHECK_CODE(koloInvalidCount, koloAllGatherv(send, recv, good, far, koloInt32, comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloAllGatherv(nullptr, recv, good, nullptr, koloInt32, comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloReduceScatterv(send, recv, nullptr, nullptr, koloInt32, koloSum, comm, nullptr));
  CHECK_CODE(koloInvalidCount, koloReduceScatterv(send, recv, huge, nullptr, koloInt32, koloSum, comm, nullptr));
  CHECK_CODE(koloInvalidOperation,
             koloReduceScatterv(send, recv, good, nullptr, koloFloat32, koloBitOr, comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloAllToAllv(send, nullptr, nullptr, recv, good, nullptr, koloInt32, comm, nullptr));
  CHECK(messageHas("sendcounts"));
  CHECK_CODE(koloInvalidPointer, koloAllToAllv(send, good, nullptr, recv, nullptr, nullptr, koloInt32, comm, nullptr));
  CHECK(messageHas("recvcounts"));
  CHECK_CODE(koloInvalidCount, koloAllToAllv(send, good, nullptr, recv, other, nullptr, koloInt32, comm, nullptr));
  CHECK(messageHas("equally long in both"));
  CHECK_CODE(koloInvalidOverlap, koloAllToAllv(recv, good, nullptr, recv, good, nullptr, koloInt32, comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloGatherv(send, 2, recv, nullptr, nullptr, koloInt32, kMe, comm, nullptr));
  CHECK_CODE(koloInvalidCount, koloGatherv(send, 5, recv, good, nullptr, koloInt32, kMe, comm, nullptr));
  CHECK(messageHas("the root's own block"));
  CHECK_CODE(koloInvalidRoot, koloGatherv(send, 2, recv, good, nullptr, koloInt32, kRanks, comm, nullptr));
  CHECK_CODE(koloInvalidPointer, koloScatterv(send, nullptr, nullptr, recv, 2, koloInt32, kMe, comm, nullptr));
  CHECK_CODE(koloInvalidCount, koloScatterv(send, good, nullptr, recv, 5, koloInt32, kMe, comm, nullptr));
  CHECK_CODE(koloInvalidRoot, koloScatterv(send, good, nullptr, recv, 2, koloInt32, -1, comm, nullptr));
}

TEST_CASE("numbers of ranks and ranks out of range are refused before anything is contacted") {
  std::array<koloComm_t, 2> comms{};
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  for (const int ranks : {0, -1, INT_MIN, INT_MAX, KOLO_MAX_RANKS + 1}) {
    CHECK_CODE(koloInvalidRankCount, koloCommInitAll(comms.data(), ranks, nullptr));
    CHECK(messageHas("nranks is"));
    CHECK(messageHas("expected 1..131072"));
    CHECK_CODE(koloInvalidRankCount, koloCommInitRank(&comms[0], ranks, id, 0));
  }
  for (const int rank : {-1, 2, INT_MIN, INT_MAX}) {
    CHECK_CODE(koloInvalidRank, koloCommInitRank(&comms[0], 2, id, rank));
    CHECK(messageHas("expected 0..1"));
  }
  // As many are refused by nothing that is checked before.
  CHECK_CODE(koloInvalidRank, koloCommInitRank(&comms[0], KOLO_MAX_RANKS, id, KOLO_MAX_RANKS));
  CHECK(messageHas("expected 0..131071"));
  CHECK(comms[0] == nullptr);
}

TEST_CASE("a rank claimed twice is refused to one claimant, and the job forms without it") {
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  std::array<koloComm_t, 3> comms{};
  std::array<koloResult_t, 3> results{};
  std::array<std::string, 3> messages;
  const std::array<int, 3> claimed = {0, 1, 1};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      results[i] = koloCommInitRank(&comms[i], 2, id, claimed[i]);
      messages[i] = koloGetLastError(nullptr);
    });
  }
  place(KOLO_HERE ": joining");
  for (std::thread& thread : threads) thread.join();
  CHECK(results[0] == koloSuccess);
  const std::size_t refused = results[1] == koloSuccess ? 2 : 1;
  const std::size_t taken = 3 - refused;
  INFO(nameOf(results[refused]) << ": " << messages[refused]);
  CHECK(results[refused] == koloDuplicateRank);
  CHECK(messages[refused].find("rank 1") != std::string::npos);
  CHECK(comms[refused] == nullptr);
  REQUIRE(results[taken] == koloSuccess);
  runOn({comms[0], comms[taken]}, expectWorks);
  REQUIRE_OK(koloCommDestroy(comms[0]));
  REQUIRE_OK(koloCommDestroy(comms[taken]));
}

TEST_CASE("ranks that disagree on their number are told both numbers") {
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  std::array<koloComm_t, 2> comms{};
  std::array<koloResult_t, 2> results{};
  std::array<std::string, 2> messages;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const auto at = static_cast<std::size_t>(i);
      results[at] = koloCommInitRank(&comms[at], i == 0 ? 2 : 3, id, i);
      messages[at] = koloGetLastError(nullptr);
    });
  }
  place(KOLO_HERE ": joining");
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < 2; ++i) {
    INFO(nameOf(results[i]) << ": " << messages[i]);
    CHECK(results[i] == koloInvalidRankCount);
    CHECK(messages[i].find('2') != std::string::npos);
    CHECK(messages[i].find('3') != std::string::npos);
  }
}

TEST_CASE("a unique id that is garbage is refused") {
  koloComm_t comm = nullptr;
  koloUniqueId id{};
  CHECK_CODE(koloInvalidArgument, koloCommInitRank(&comm, 2, id, 0));
  std::memset(&id, 0xff, sizeof id);
  CHECK_CODE(koloInvalidArgument, koloCommInitRank(&comm, 2, id, 0));
  REQUIRE_OK(koloGetUniqueId(&id));
  id.internal[20] = static_cast<char>(id.internal[20] ^ 0x40);
  const koloResult_t got = koloCommInitRank(&comm, 2, id, 0);
  INFO(nameOf(got) << ": " << koloGetLastError(nullptr));
  CHECK((got == koloInvalidArgument || got == koloUnreachable));
  CHECK(comm == nullptr);
}

TEST_CASE("a configuration that was not initialised or has absurd fields is refused") {
  koloComm_t comm = nullptr;
  koloConfig_t config{};
  CHECK_CODE(koloInvalidArgument, koloCommInitAll(&comm, 1, &config));
  CHECK(messageHas("KOLO_CONFIG_INITIALIZER"));
  config = defaultConfig();
  config.magic = 1;
  CHECK_CODE(koloInvalidArgument, koloCommInitAll(&comm, 1, &config));
  config = defaultConfig();
  config.size = 3;
  CHECK_CODE(koloInvalidArgument, koloCommInitAll(&comm, 1, &config));
  config = defaultConfig();
  config.timeoutMs = -5;
  CHECK_CODE(koloInvalidArgument, koloCommInitAll(&comm, 1, &config));
  CHECK(messageHas("timeoutMs is -5"));
  config = defaultConfig();
  config.transports = "pigeon";
  const koloResult_t got = koloCommInitAll(&comm, 2, &config);
  INFO(nameOf(got) << ": " << koloGetLastError(nullptr));
  CHECK((got == koloInvalidArgument || got == koloInvalidEnvironment));
  CHECK(messageHas("pigeon"));
  CHECK(messageHas("shm"));
}

TEST_CASE("malformed algorithm texts are refused and the old wishes stay") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe];
  koloPlan_t before, after;
  for (koloComm_t each : fixture.world.comms()) REQUIRE_OK(koloCommSetAlgorithm(each, "all_reduce:tree"));
  REQUIRE_OK(koloCommGetPlan(comm, koloCollectiveAllReduce, 1000, koloInt32, koloSum, 0, &before));
  CHECK(std::string(before.algorithm) == "tree");
  for (const char* text :
       {"all_reduce", "all_reduce:", "all_reduce:nonsense", "nonsense:ring", ":", "all_reduce:ring@",
        "all_reduce:ring@x-y", "all_reduce:ring@1M", "all_reduce:ring,broadcast", "all_reduce:^^ring", "send_recv:ring",
        " all_reduce:ring", "all_reduce:ring@-1--2", "all_reduce:ring@2M-1M"}) {
    INFO(text);
    koloComm_t made = nullptr;
    const koloConfig_t config = configWithAlgorithm(text);
    CHECK_CODE(koloInvalidArgument, koloCommInitAll(&made, 1, &config));
    CHECK(messageHas("expected"));
    CHECK_CODE(koloInvalidArgument, koloCommSetAlgorithm(comm, text));
    REQUIRE_OK(koloCommGetPlan(comm, koloCollectiveAllReduce, 1000, koloInt32, koloSum, 0, &after));
    CHECK(std::string(after.algorithm) == "tree");
  }
}

TEST_CASE("splits and shrinks refuse colors, counts and ranks out of range") {
  Fixture fixture;
  koloComm_t comm = fixture.world[kMe], made = nullptr;
  CHECK_CODE(koloInvalidArgument, koloCommSplit(comm, -2, 0, &made, nullptr));
  CHECK(messageHas("color is -2"));
  const int outside[] = {3}, self[] = {kMe};
  CHECK_CODE(koloInvalidCount, koloCommShrink(comm, outside, -1, &made, nullptr));
  CHECK_CODE(koloInvalidCount, koloCommShrink(comm, outside, 3, &made, nullptr));
  CHECK_CODE(koloInvalidPointer, koloCommShrink(comm, nullptr, 1, &made, nullptr));
  CHECK_CODE(koloInvalidRank, koloCommShrink(comm, outside, 1, &made, nullptr));
  CHECK_CODE(koloInvalidUsage, koloCommShrink(comm, self, 1, &made, nullptr));
  CHECK(made == nullptr);
}

TEST_CASE("groups that were not opened cannot be closed, and initialisation has no place in them") {
  Fixture fixture;
  CHECK_CODE(koloInvalidUsage, koloGroupEnd());
  CHECK(messageHas("without koloGroupStart"));
  koloComm_t made = nullptr;
  REQUIRE_OK(koloGroupStart());
  CHECK_CODE(koloInvalidUsage, koloCommInitAll(&made, 1, nullptr));
  CHECK_CODE(koloInvalidUsage, koloCommSplit(fixture.world[kMe], 0, 0, &made, nullptr));
  std::uint64_t flags = 1;
  CHECK_CODE(koloInvalidUsage, koloCommAgree(fixture.world[kMe], &flags));
  CHECK_CODE(koloInvalidUsage, koloCommFinalize(fixture.world[kMe]));
  CHECK_CODE(koloInvalidUsage, koloCommDestroy(fixture.world[kMe]));
  CHECK_CODE(koloInvalidUsage, koloGroupEnd());
  CHECK(messageHas("a call that may not be made inside a group"));
  CHECK_CODE(koloInvalidUsage, koloGroupEnd());
  CHECK(messageHas("without koloGroupStart"));
}

TEST_CASE("memory: absurd sizes and foreign pointers are refused, 0 bytes and NULL are not") {
  void* memory = &memory;
  CHECK_CODE(koloSuccess, koloMemAlloc(&memory, 0));
  CHECK(memory == nullptr);
  CHECK_CODE(koloSuccess, koloMemFree(nullptr));
  CHECK_CODE(koloInvalidCount, koloMemAlloc(&memory, static_cast<size_t>(-1)));
  CHECK(memory == nullptr);
  const koloResult_t huge = koloMemAlloc(&memory, static_cast<size_t>(PTRDIFF_MAX) - 4096);
  CHECK((huge == koloOutOfMemory || huge == koloSystemError));
  CHECK(memory == nullptr);
  int here = 0;
  CHECK_CODE(koloInvalidPointer, koloMemFree(&here));
  REQUIRE_OK(koloMemAlloc(&memory, 10));
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0);
  CHECK_CODE(koloInvalidPointer, koloMemFree(static_cast<char*>(memory) + 1));
  CHECK_CODE(koloSuccess, koloMemFree(memory));
  CHECK_CODE(koloInvalidPointer, koloMemFree(memory));
}
