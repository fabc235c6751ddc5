// What MPI programs may do with communicators: use them hardly, or a lot, and free them whatever others do. One thing
// for each run; each rank must end by itself, or the job hangs.
//
// usage: kolo-mpi-communicators-FAMILY
// freed|given|disconnected|pending|finalized|raced|many|threads|grown|large|mixed|rooted|gives|refused
#include <dirent.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

namespace {

using kolo::test::expect;
using kolo::test::rank;
using kolo::test::ranks;

MPI_Comm duplicate() {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  return comm;
}

int sumOfRanks(MPI_Comm comm) {
  int sum = -1;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
  return sum;
}

void expectSum(MPI_Comm comm) { expect(sumOfRanks(comm) == ranks * (ranks - 1) / 2, "the sum is right"); }

// By a message of the MPI's.
void tell(int to) { MPI_Send(&rank, 1, MPI_INT, to, 7, MPI_COMM_WORLD); }
void hearOf(int from) {
  int who = -1;
  MPI_Recv(&who, 1, MPI_INT, from, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  expect(who == from, "the message comes");
}

// The others come only after the first rank has left the communicator, where it has given what they get. leave:
// MPI_Comm_free, or another function that does not wait.
void leaveFirst(const std::function<void(MPI_Comm*)>& leave) {
  for (int round = 0; round < 5; ++round) {
    MPI_Comm comm = duplicate();
    int value = -1;
    const auto broadcast = [&](int what) {
      value = rank == 0 ? what : -1;
      MPI_Bcast(&value, 1, MPI_INT, 0, comm);
      expect(value == what, "the value comes");
    };
    for (int i = 0; i < 3; ++i) broadcast(i);  // a root that repeats itself does not wait
    MPI_Barrier(comm);
    if (rank != 0) hearOf(0);
    for (int i = 0; i < 10; ++i) broadcast(10 + i);
    leave(&comm);
    for (int other = 1; rank == 0 && other < ranks; ++other) tell(other);
  }
  expectSum(MPI_COMM_WORLD);
}

void freed() {
  leaveFirst([](MPI_Comm* comm) { MPI_Comm_free(comm); });
}

// The MPI's own functions wait in Open MPI's form of it.
void disconnected() {
#ifdef OPEN_MPI
  freed();
#else
  leaveFirst([](MPI_Comm* comm) { MPI_Comm_disconnect(comm); });
#endif
}

// The same of all who give to a root.
void given() {
  const auto size = static_cast<std::size_t>(ranks);
  for (int round = 0; round < 5; ++round) {
    MPI_Comm comm = duplicate();
    std::vector<int> all(size);
    const auto gather = [&] {
      all.assign(size, -1);
      MPI_Gather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, 0, comm);
      for (int i = 0; rank == 0 && i < ranks; ++i)
        expect(all[static_cast<std::size_t>(i)] == i, "each rank's value comes");
    };
    for (int i = 0; i < 3; ++i) gather();
    MPI_Barrier(comm);
    for (int other = 1; rank == 0 && other < ranks; ++other) hearOf(other);
    for (int i = 0; i < 10; ++i) gather();
    MPI_Comm_free(&comm);
    if (rank != 0) tell(0);
  }
  expectSum(MPI_COMM_WORLD);
}

// Nonblocking collectives are under way when their communicator is freed, and are completed later.
void pending() {
  for (int round = 0; round < 10; ++round) {
    MPI_Comm comm = duplicate();
    MPI_Barrier(comm);
    std::vector<int> sums(4, -1);
    std::vector<MPI_Request> requests(sums.size(), MPI_REQUEST_NULL);
    if (rank != 0) hearOf(0);
    for (std::size_t i = 0; i < sums.size(); ++i)
      MPI_Iallreduce(&rank, &sums[i], 1, MPI_INT, MPI_SUM, comm, &requests[i]);
    MPI_Comm_free(&comm);
    for (int other = 1; rank == 0 && other < ranks; ++other) tell(other);
    if (round % 2 == 0) expectSum(MPI_COMM_WORLD);
    MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    for (const int sum : sums) expect(sum == ranks * (ranks - 1) / 2, "the sum that was under way is right");
  }
}

// What MPI_Finalize does first may be what the others wait for; communicators are left to it.
int tellAtTheEnd(MPI_Comm, int, void*, void*) {
  for (int other = 1; rank == 0 && other < ranks; ++other) tell(other);
  return MPI_SUCCESS;
}

void finalized() {
  int keyval = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, tellAtTheEnd, &keyval, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr);
  MPI_Comm comms[] = {duplicate(), duplicate()};
  int value = 5;
  const auto broadcast = [&] {
    for (const MPI_Comm comm : comms) MPI_Bcast(&value, 1, MPI_INT, 0, comm);
  };
  for (int i = 0; i < 3; ++i) broadcast();
  for (const MPI_Comm comm : comms) MPI_Barrier(comm);
  if (rank != 0) hearOf(0);
  broadcast();
  MPI_Comm_free(&comms[0]);
}

// A thread is still waiting for a collective while another frees its communicator.
void raced() {
  for (int round = 0; round < 100; ++round) {
    MPI_Comm comm = duplicate();
    MPI_Barrier(comm);
    int sum = -1;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm, &request);
    std::thread waiting([&] { MPI_Wait(&request, MPI_STATUS_IGNORE); });
    MPI_Comm_free(&comm);
    waiting.join();
    expect(sum == ranks * (ranks - 1) / 2, "the sum is right");
  }
}

int openFiles() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

void many() {
  std::vector<MPI_Comm> comms(300);
  const int before = openFiles();
  for (MPI_Comm& each : comms) {
    each = duplicate();
    MPI_Barrier(each);
    expectSum(each);
  }
  expect(openFiles() <= before + 2,
         "no file is open for them: " + std::to_string(before) + " before, " + std::to_string(openFiles()) + " after");
  for (MPI_Comm& each : comms) MPI_Comm_free(&each);
}

void threads() {
  std::vector<MPI_Comm> comms(8);
  for (MPI_Comm& each : comms) each = duplicate();
  std::vector<std::thread> running;
  for (const MPI_Comm comm : comms) {
    running.emplace_back([comm] {
      for (int i = 0; i < 20; ++i) {
        MPI_Comm copy = MPI_COMM_NULL;
        MPI_Comm_dup(comm, &copy);
        expectSum(copy);
        MPI_Comm_free(&copy);
      }
    });
  }
  for (std::thread& each : running) each.join();
  for (MPI_Comm& each : comms) MPI_Comm_free(&each);
}

// A communicator is used so often that its counterpart pays.
void grown() {
  MPI_Comm comm = duplicate(), other = duplicate();
  for (int i = 0; i < 400; ++i) expectSum(comm);
  for (int i = 0; i < 3; ++i) MPI_Barrier(other);
  MPI_Comm_free(&comm);
  MPI_Comm_free(&other);
}

// As much data as does in few calls; and of each rank's own kind.
void large() {
  MPI_Comm comm = duplicate();
  const int count = 1 << 18;
  std::vector<int> in(count, rank), out(count), blocks(count * static_cast<std::size_t>(ranks));
  MPI_Datatype pair = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_commit(&pair);
  const bool isOdd = rank % 2 != 0;
  for (int i = 0; i < 8; ++i) {
    MPI_Gather(in.data(), isOdd ? count / 2 : count, isOdd ? pair : MPI_INT, blocks.data(), count, MPI_INT, 0, comm);
    MPI_Allreduce(in.data(), out.data(), count, MPI_INT, MPI_SUM, comm);
    expect(out.back() == ranks * (ranks - 1) / 2, "the sum is right");
  }
  MPI_Type_free(&pair);
  MPI_Comm_free(&comm);
}

// Nonblocking collectives count too, though only a blocking one makes the counterpart, and only one that is all ranks'.
void mixed() {
  MPI_Comm comm = duplicate();
  std::vector<MPI_Request> requests(6, MPI_REQUEST_NULL);
  std::vector<int> sums(6, -1);
  for (std::size_t i = 0; i < 6; ++i) MPI_Iallreduce(&rank, &sums[i], 1, MPI_INT, MPI_SUM, comm, &requests[i]);
  int value = rank;
  for (int i = 0; i < 3; ++i) MPI_Bcast(&value, 1, MPI_INT, 0, comm);
  for (int i = 0; i < 3; ++i) expectSum(comm);  // the first makes it
  for (std::size_t i = 0; i < 6; ++i) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  for (const int sum : sums) expect(sum == ranks * (ranks - 1) / 2, "the sum is right");
  MPI_Comm_free(&comm);
}

void rooted() {
  MPI_Comm comm = duplicate();
  for (int i = 0; i < 100; ++i) {
    int value = rank == i % ranks ? i : -1;
    MPI_Bcast(&value, 1, MPI_INT, i % ranks, comm);
    expect(value == i, "the value comes");
  }
  MPI_Comm_free(&comm);
}

// Rank 0 gives, and says so by a message: the others receive that before they take what they were given. Nobody has
// called anything of the kind before.
template <class Collective>
void givesFirst(const Collective& collective) {
  if (rank == 0) collective();
  for (int peer = 1; peer < ranks && rank == 0; ++peer) MPI_Send(nullptr, 0, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
  if (rank == 0) return;
  MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  collective();
}

void gives() {
  MPI_Comm comm = duplicate();
  MPI_Barrier(comm);
  for (const MPI_Comm each : {MPI_COMM_WORLD, comm}) {
    for (const int count : {1, 100, 2000}) {
      std::vector<int> values(static_cast<std::size_t>(count), rank == 0 ? count : -1);
      givesFirst([&] { MPI_Bcast(values.data(), count, MPI_INT, 0, each); });
      expect(values.front() == count && values.back() == count, "the values come");
      values.assign(values.size(), rank == 0 ? -count : 0);
      givesFirst([&] {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Ibcast(values.data(), count, MPI_INT, 0, each, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
      });
      expect(values.front() == -count && values.back() == -count, "the values come by a nonblocking one");
      const std::vector<int> all(values.size() * static_cast<std::size_t>(ranks), count + 1);
      givesFirst([&] { MPI_Scatter(all.data(), count, MPI_INT, values.data(), count, MPI_INT, 0, each); });
      expect(values.front() == count + 1 && values.back() == count + 1, "the shares come");
    }
  }
  MPI_Comm_free(&comm);
}

// A call that the MPI refuses on one rank counts for nobody.
void refused() {
  MPI_Comm comm = duplicate();
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int own = rank, total = -1;
  for (int i = 0; i < 30; ++i) {
    if (rank == 0 && (i == 1 || i == 2))
      expect(MPI_Reduce(&own, &own, 1, MPI_INT, MPI_SUM, 0, comm) != MPI_SUCCESS, "the MPI refuses aliased buffers");
    MPI_Reduce(&own, &total, 1, MPI_INT, MPI_SUM, 0, comm);
    expect(rank != 0 || total == ranks * (ranks - 1) / 2, "the sum is right on the root");
    expectSum(comm);
  }
  MPI_Comm_free(&comm);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> all = {
      {"freed", freed},     {"given", given},         {"disconnected", disconnected},
      {"pending", pending}, {"finalized", finalized}, {"raced", raced},
      {"many", many},       {"threads", threads},     {"grown", grown},
      {"large", large},     {"mixed", mixed},         {"rooted", rooted},
      {"gives", gives},     {"refused", refused}};
  const std::string what = argc > 1 ? argv[1] : "";
  if (all.find(what) == all.end()) return 2;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, what == "threads" || what == "raced" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE,
                  &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  all.at(what)();
  if (rank == 0) std::printf("%s: ok\n", what.c_str());
  MPI_Finalize();
  return 0;
}
