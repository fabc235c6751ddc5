// What an MPI program may rely on beside results, one thing for each run.
//
// usage: kolo-mpi-behaviour-FAMILY
// progress|errors|lifetime|threads|modes|fork|passing|absolute|tool|profiled|exit|abort|abort-nonblocking
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cfloat>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "expect.h"

namespace {

using kolo::test::expect;
using kolo::test::rank;
using kolo::test::ranks;

int sumOfRanks(MPI_Comm comm) {
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
  return sum;
}

// Each rank owes a long message to the next when it enters the collective, and the next cannot come before it has it.
void progress() {
  std::vector<char> out(16 << 20, static_cast<char>(rank)), in(out.size());
  for (int round = 0; round < 4; ++round) {
    for (int sender = 0; sender < ranks; ++sender) {
      MPI_Request request = MPI_REQUEST_NULL;
      const int receiver = (sender + 1) % ranks;
      if (rank == sender)
        MPI_Isend(out.data(), static_cast<int>(out.size()), MPI_CHAR, receiver, 0, MPI_COMM_WORLD, &request);
      if (rank == receiver) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        MPI_Recv(in.data(), static_cast<int>(in.size()), MPI_CHAR, sender, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(in.back() == static_cast<char>(sender), "the message is whole");
      }
      if (round % 2 == 0) {
        MPI_Barrier(MPI_COMM_WORLD);
      } else {
        MPI_Bcast(in.data(), 1000, MPI_CHAR, receiver, MPI_COMM_WORLD);
      }
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
  }
}

// MPI forbids it, MPICH refuses it, though not on all ranks; Open MPI does what was meant, be it on one rank alone.
void sameBufferTwice() {
#ifdef OPEN_MPI
  std::vector<int> buffer(static_cast<std::size_t>(ranks), rank), expected(buffer.size());
  for (int i = 0; i < ranks; ++i) expected[static_cast<std::size_t>(i)] = i;
  const auto reset = [&] { buffer.assign(buffer.size(), rank); };
  reset();
  MPI_Allgather(buffer.data(), 1, MPI_INT, buffer.data(), 1, MPI_INT, MPI_COMM_WORLD);
  expect(buffer == expected, "MPI_Allgather works on one buffer");
  for (int root = 0; root < ranks; ++root) {
    reset();
    MPI_Gather(buffer.data(), 1, MPI_INT, buffer.data(), 1, MPI_INT, root, MPI_COMM_WORLD);
    expect(rank != root || buffer == expected, "MPI_Gather works on one buffer of the root's");
    MPI_Scatter(buffer.data(), 1, MPI_INT, buffer.data(), 1, MPI_INT, root, MPI_COMM_WORLD);
    expect(buffer[0] == rank, "MPI_Scatter works on one buffer of the root's");
  }
  reset();
  MPI_Allreduce(buffer.data(), buffer.data(), ranks, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(buffer.back() == ranks * (ranks - 1) / 2, "MPI_Allreduce works on one buffer");
#endif
}

int classOf(int code) {
  int its = 0;
  MPI_Error_class(code, &its);
  return its;
}

// The bits of the sums of one float of each rank up to this one, and up to the one before it, by both forms of a scan.
std::array<std::uint32_t, 4> scansOf(float mine) {
  std::array<float, 4> sums{};
  std::array<MPI_Request, 2> requests{};
  MPI_Scan(&mine, &sums[0], 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Exscan(&mine, &sums[1], 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Iscan(&mine, &sums[2], 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
  MPI_Iexscan(&mine, &sums[3], 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE);
  if (rank == 0) sums[1] = sums[3] = 0;  // undefined
  return std::bit_cast<std::array<std::uint32_t, 4>>(sums);
}

// Whatever floating-point mode a program has set, scans fold in the usual one, as reductions do.
void modes() {
  const auto all = [](std::uint32_t to, std::uint32_t before) {
    return std::array<std::uint32_t, 4>{to, rank == 0 ? 0 : before, to, rank == 0 ? 0 : before};
  };
  constexpr std::uint32_t kSubnormal = 1000, kOne = std::bit_cast<std::uint32_t>(1.0F);
  const auto before = static_cast<std::uint32_t>(rank) * kSubnormal;
#if defined(__x86_64__)
  const unsigned usual = _mm_getcsr();
  _mm_setcsr(usual | 0x8040);  // flushes subnormal results and operands
#endif
  expect(scansOf(std::bit_cast<float>(kSubnormal)) == all(before + kSubnormal, before),
         "subnormal sums are not flushed");
#if defined(__x86_64__)
  expect(_mm_getcsr() == (usual | 0x8040), "the mode is the program's again");
  _mm_setcsr(usual);
#endif
  std::fesetround(FE_UPWARD);
  expect(scansOf(rank == 0 ? 1.0F : FLT_EPSILON / 8) == all(kOne, kOne), "sums are rounded to nearest");
  expect(std::fegetround() == FE_UPWARD, "the rounding is the program's again");
  std::fesetround(FE_TONEAREST);
}

// The classes that the MPI itself returns for the same call.
void errors() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int one = 1, other = 2;
  const auto alike = [&](const char* what, int got, int own) {
    expect(classOf(got) == classOf(own),
           std::string(what) + " has class " + std::to_string(classOf(own)) + ", not " + std::to_string(classOf(got)));
  };
  const MPI_Comm world = MPI_COMM_WORLD;
  alike("a wrong root", MPI_Bcast(&one, 1, MPI_INT, ranks, world), ITS_OWN(MPI_Bcast)(&one, 1, MPI_INT, ranks, world));
  alike("a negative count", MPI_Bcast(&one, -1, MPI_INT, 0, world), ITS_OWN(MPI_Bcast)(&one, -1, MPI_INT, 0, world));
  alike("no datatype", MPI_Bcast(&one, 1, MPI_DATATYPE_NULL, 0, world),
        ITS_OWN(MPI_Bcast)(&one, 1, MPI_DATATYPE_NULL, 0, world));
  sameBufferTwice();
  alike("an operation for other types", MPI_Allreduce(&one, &other, 1, MPI_FLOAT, MPI_BAND, world),
        ITS_OWN(MPI_Allreduce)(&one, &other, 1, MPI_FLOAT, MPI_BAND, world));
  alike("no operation", MPI_Allreduce(&one, &other, 1, MPI_INT, MPI_OP_NULL, world),
        ITS_OWN(MPI_Allreduce)(&one, &other, 1, MPI_INT, MPI_OP_NULL, world));
  expect(sumOfRanks(world) == ranks * (ranks - 1) / 2, "the communicator still works");
  // What the ranks disagree on ends the communicator, and is reported to each of them by its handler.
  MPI_Comm spoilt = MPI_COMM_NULL;
  MPI_Comm_dup(world, &spoilt);
  std::vector<int> many(1000);
  const int code =
      MPI_Allreduce(many.data(), std::vector<int>(1000).data(), rank == 0 ? 1000 : 999, MPI_INT, MPI_SUM, spoilt);
  expect(classOf(code) == MPI_ERR_TRUNCATE, "ranks that disagree on the count are told so");
}

int openFiles() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int collectiveAtTheEnd(MPI_Comm, int, void*, void*) {
  expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "collectives work at the beginning of MPI_Finalize");
  return MPI_SUCCESS;
}

// Communicators come and go; what belonged to them goes too.
void lifetime() {
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, collectiveAtTheEnd, &keyval, nullptr);
  expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is right");
  int files = 0;
  for (int round = 0; round < 40; ++round) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    expect(sumOfRanks(copy) == ranks * (ranks - 1) / 2, "the sum is right on a copy");
    MPI_Comm_free(&copy);
    MPI_Barrier(MPI_COMM_WORLD);
    if (round == 10) files = openFiles();
  }
  expect(openFiles() <= files + 2,
         "no file stays open: " + std::to_string(files) + ", then " + std::to_string(openFiles()));
  MPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr);  // set after the interposer's, and so deleted before it
}

void threads() {
  std::vector<MPI_Comm> comms(3);
  for (MPI_Comm& each : comms) MPI_Comm_dup(MPI_COMM_WORLD, &each);
  std::vector<std::thread> running;
  for (const MPI_Comm comm : comms) {
    running.emplace_back([comm] {
      for (int i = 0; i < 200; ++i) expect(sumOfRanks(comm) == ranks * (ranks - 1) / 2, "the sum is right in a thread");
    });
  }
  for (std::thread& each : running) each.join();
  for (MPI_Comm& each : comms) MPI_Comm_free(&each);
}

void forks() {
  expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is right");
  // One that becomes another program, and one that ends by itself; also while a collective is under way in a thread of
  // the interposer's.
  for (const bool isOther : {true, false}) {
    std::vector<int> in(1 << 20, rank), out(in.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(in.data(), out.data(), 1 << 20, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    const pid_t child = fork();
    if (child == 0) {
      if (isOther) execl("/bin/true", "true", nullptr);
      const std::vector<char> memory(1 << 20, 'x');
      _exit(memory.back() == 'x' && !isOther ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    expect(status == 0, "the child ends well");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(out.back() == ranks * (ranks - 1) / 2, "the sum that was under way is right");
    expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is right after a fork");
  }
}

void keepLeft(void* in, void* inout, int* count, MPI_Datatype*) {
  std::memcpy(inout, in, static_cast<std::size_t>(*count) * sizeof(int));
}

// What is not covered works as before: operations of the program's own, and two groups.
void passing() {
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(keepLeft, 0, &op);
  int first = -1;
  MPI_Allreduce(&rank, &first, 1, MPI_INT, op, MPI_COMM_WORLD);
  expect(first == 0, "the leftmost operand stays");
  MPI_Op_free(&op);
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &between);
  int sum = 0, theirs = 0;
  for (int i = 1 - rank % 2; i < ranks; i += 2) theirs += i;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, between);
  expect(sum == theirs, "the other group's sum comes");
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}

// A tool that has taken MPI_Allreduce calls on under the other name; so does Open MPI's Fortran.
void tool() {
  int sum = 0;
  for (int i = 0; i < 7; ++i) PMPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(sum == ranks * (ranks - 1) / 2, "the sum is right");
}

// What a tool has to count: calls that are accelerated, and some that are passed on.
void profiled() {
  for (int i = 0; i < 5; ++i) expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is right");
  MPI_Op op = MPI_OP_NULL;
  MPI_Op_create(keepLeft, 0, &op);
  int first = -1, greatest = -1;
  for (int i = 0; i < 2; ++i) MPI_Allreduce(&rank, &first, 1, MPI_INT, op, MPI_COMM_WORLD);
  expect(first == 0, "the leftmost operand stays");
  MPI_Op_free(&op);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&rank, &greatest, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(greatest == ranks - 1, "the greatest is right");
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "mpi_minimum_memory_alignment", "65536");  // which the interposer's memory has not
  for (const MPI_Info each : {MPI_INFO_NULL, info}) {
    void* memory = nullptr;
    MPI_Alloc_mem(100, each, static_cast<void*>(&memory));
    std::memset(memory, 1, 100);
    MPI_Free_mem(memory);
  }
  MPI_Info_free(&info);
}

// Data that a datatype of absolute addresses says where to find: the buffer is MPI_BOTTOM.
void absolute() {
  constexpr int kHere = 3, kThere = 2, kBoth = kHere + kThere;
  std::vector<int> here(kHere), there(kThere), all(static_cast<std::size_t>(ranks) * kBoth);
  MPI_Aint places[2];
  MPI_Get_address(here.data(), &places[0]);
  MPI_Get_address(there.data(), &places[1]);
  const int lengths[] = {kHere, kThere};
  const MPI_Datatype ints[] = {MPI_INT, MPI_INT};
  MPI_Datatype both = MPI_DATATYPE_NULL;
  MPI_Type_create_struct(2, lengths, places, ints, &both);
  MPI_Type_commit(&both);
  const auto fill = [&](int with) {
    for (int i = 0; i < kHere; ++i) here[static_cast<std::size_t>(i)] = with + i;
    for (int i = 0; i < kThere; ++i) there[static_cast<std::size_t>(i)] = with + kHere + i;
  };
  const auto isFilled = [&](int with) { return here.front() == with && there.back() == with + kBoth - 1; };
  const auto isGathered = [&] {
    bool is = true;
    for (int i = 0; i < ranks * kBoth; ++i) is &= all[static_cast<std::size_t>(i)] == 10 * (i / kBoth) + i % kBoth;
    return is;
  };
  const auto inSome = [&](const auto& call) {  // whatever was there before
    std::fill(all.begin(), all.end(), -1);
    fill(10 * rank);
    call();
    return isGathered();
  };
  MPI_Request request = MPI_REQUEST_NULL;
  for (const bool isNonblocking : {false, true}) {
    const auto end = [&] { MPI_Wait(&request, MPI_STATUS_IGNORE); };
    fill(10 * rank);
    if (isNonblocking) MPI_Ibcast(MPI_BOTTOM, 1, both, 1, MPI_COMM_WORLD, &request), end();
    else MPI_Bcast(MPI_BOTTOM, 1, both, 1, MPI_COMM_WORLD);
    expect(isFilled(10), "a broadcast of data at absolute addresses");
    expect(inSome([&] {
             if (isNonblocking)
               MPI_Iallgather(MPI_BOTTOM, 1, both, all.data(), kBoth, MPI_INT, MPI_COMM_WORLD, &request), end();
             else MPI_Allgather(MPI_BOTTOM, 1, both, all.data(), kBoth, MPI_INT, MPI_COMM_WORLD);
           }),
           "an all-gather of data at absolute addresses");
    const bool gathered = inSome([&] {
      if (isNonblocking)
        MPI_Igather(MPI_BOTTOM, 1, both, all.data(), kBoth, MPI_INT, 0, MPI_COMM_WORLD, &request), end();
      else MPI_Gather(MPI_BOTTOM, 1, both, all.data(), kBoth, MPI_INT, 0, MPI_COMM_WORLD);
    });
    expect(rank != 0 || gathered, "a gather of data at absolute addresses");
    for (int i = 0; i < ranks * kBoth; ++i) all[static_cast<std::size_t>(i)] = 100 * (i / kBoth) + i % kBoth;
    if (isNonblocking)
      MPI_Iscatter(all.data(), kBoth, MPI_INT, MPI_BOTTOM, 1, both, 0, MPI_COMM_WORLD, &request), end();
    else MPI_Scatter(all.data(), kBoth, MPI_INT, MPI_BOTTOM, 1, both, 0, MPI_COMM_WORLD);
    expect(isFilled(100 * rank), "a scatter to absolute addresses");
    const std::vector<int> one(static_cast<std::size_t>(ranks), 1), some(one.size(), kBoth), zeros(one.size(), 0);
    std::vector<int> begins(one.size());
    for (int i = 0; i < ranks; ++i) begins[static_cast<std::size_t>(i)] = i * kBoth * static_cast<int>(sizeof(int));
    const std::vector<MPI_Datatype> given(one.size(), both), taken(one.size(), MPI_INT);
    expect(inSome([&] {
             if (isNonblocking)
               MPI_Ialltoallw(MPI_BOTTOM, one.data(), zeros.data(), given.data(), all.data(), some.data(),
                              begins.data(), taken.data(), MPI_COMM_WORLD, &request),
                   end();
             else
               MPI_Alltoallw(MPI_BOTTOM, one.data(), zeros.data(), given.data(), all.data(), some.data(), begins.data(),
                             taken.data(), MPI_COMM_WORLD);
           }),
           "an all-to-all of data at absolute addresses");
    for (int i = 0; i < ranks; ++i) begins[static_cast<std::size_t>(i)] = i * kBoth;
    expect(inSome([&] {
             if (isNonblocking)
               MPI_Iallgatherv(MPI_BOTTOM, 1, both, all.data(), some.data(), begins.data(), MPI_INT, MPI_COMM_WORLD,
                               &request),
                   end();
             else MPI_Allgatherv(MPI_BOTTOM, 1, both, all.data(), some.data(), begins.data(), MPI_INT, MPI_COMM_WORLD);
           }),
           "an all-gather of vectors of data at absolute addresses");
  }
  MPI_Type_free(&both);
}

// As many at once.
void sumNonblocking(int count) {
  std::vector<int> sums(static_cast<std::size_t>(count), -1);
  std::vector<MPI_Request> requests(sums.size(), MPI_REQUEST_NULL);
  for (std::size_t i = 0; i < sums.size(); ++i)
    MPI_Iallreduce(&rank, &sums[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
  for (MPI_Request& each : requests) MPI_Wait(&each, MPI_STATUS_IGNORE);
  for (const int sum : sums) expect(sum == ranks * (ranks - 1) / 2, "the nonblocking sum is right");
}

// What C++ programs do in the destructors of their global objects; those of others, made later, have run before.
void atExit() {
  std::vector<std::vector<char>> filled(200, std::vector<char>(56, 'x'));  // in the place of what has been freed
  std::vector<int> all(static_cast<std::size_t>(ranks), -1);
  MPI_Allgather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD);
  for (int i = 0; i < ranks; ++i) expect(all[static_cast<std::size_t>(i)] == i, "blocks are gathered");
  expect(sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2, "the sum is right");
  sumNonblocking(2);  // what main()'s thread has kept of its own is gone
  if (rank == 0) std::printf("exit: ok\n");
  MPI_Finalize();
}

void abortWhileNonblockingIsUnderWay() {
  sumOfRanks(MPI_COMM_WORLD);
  int sum = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank != 0) MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // others' threads wait for rank 0
  if (rank == ranks - 1) MPI_Abort(MPI_COMM_WORLD, 3);
  if (rank == 0) MPI_Recv(&sum, 1, MPI_INT, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

void abortWhileOthersWait() {
  if (rank == ranks - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int initialized = 1, finalized = 1, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized != 0 || finalized != 0) return 1;
  MPI_Init_thread(&argc, &argv, what == "threads" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (what == "progress") progress();
  else if (what == "errors") errors();
  else if (what == "lifetime") lifetime();
  else if (what == "threads") threads();
  else if (what == "modes") modes();
  else if (what == "fork") forks();
  else if (what == "passing") passing();
  else if (what == "absolute") absolute();
  else if (what == "tool") tool();
  else if (what == "profiled") profiled();
  else if (what == "exit") {
    std::atexit(atExit);  // before the first collective
    sumNonblocking(1);
    return sumOfRanks(MPI_COMM_WORLD) == ranks * (ranks - 1) / 2 ? 0 : 1;
  } else if (what == "abort-nonblocking") abortWhileNonblockingIsUnderWay();
  else if (what == "abort") abortWhileOthersWait();
  else expect(false, "the first argument says what to do");
  if (rank == 0) std::printf("%s: ok\n", what.c_str());
  MPI_Finalize();
  MPI_Finalized(&finalized);
  return finalized == 1 ? 0 : 1;
}
