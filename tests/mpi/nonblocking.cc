// What MPI programs may rely on with nonblocking collectives beside results, one thing for each run. All of it on
// communicators where Kolo has begun; each rank must end by itself, or the job hangs.
//
// usage: kolo-mpi-nonblocking-FAMILY CASE        (those of main)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"
#include "on_gpu.h"

namespace {

using kolo::test::expect;
using kolo::test::Gpu;
using kolo::test::rank;
using kolo::test::ranks;

// A sum of all ranks under way.
struct Sum {
  explicit Sum(MPI_Comm comm) { MPI_Iallreduce(&own, &total, 1, MPI_INT, MPI_SUM, comm, &request); }
  Sum(const Sum&) = delete;
  Sum& operator=(const Sum&) = delete;
  void check() const { expect(total == ranks * (ranks - 1) / 2, "the sum is right, not " + std::to_string(total)); }

  int own = rank, total = -1;
  MPI_Request request = MPI_REQUEST_NULL;
};

// A copy of the world on which Kolo has begun.
MPI_Comm begun() {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Barrier(comm);
  return comm;
}

// The first rank is in a receive, for a message that the second sends after the collective: nobody but the MPI runs on
// that rank.
void receive() {
  for (int round = 0; round < 20; ++round) {
    Sum sum(MPI_COMM_WORLD);
    int message = round;
    if (rank == 0) MPI_Recv(&message, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(&message, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
    sum.check();
  }
}

// A number that all ranks of this host see, without a call of the MPI's. Collective, like its end.
class Counter {
 public:
  Counter() {
    int where[] = {static_cast<int>(getpid()), rank == 0 ? memfd_create("counter", 0) : -1};
    expect(rank != 0 || ftruncate(where[1], sizeof *number_) == 0, "there is memory for a number");
    MPI_Bcast(where, 2, MPI_INT, 0, MPI_COMM_WORLD);
    const std::string path = "/proc/" + std::to_string(where[0]) + "/fd/" + std::to_string(where[1]);
    const int file = open(path.c_str(), O_RDWR);
    void* const memory = mmap(nullptr, sizeof *number_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    expect(memory != MAP_FAILED, "the number is shared");
    number_ = static_cast<std::atomic<int>*>(memory);
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);  // all have it
    if (rank == 0) close(where[1]);
  }
  ~Counter() { munmap(number_, sizeof *number_); }
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;

  std::atomic<int>& number() { return *number_; }

 private:
  std::atomic<int>* number_ = nullptr;
};

// The first rank calculates between the call and the wait until the others have the sum, for which they need its data.
void computes() {
  constexpr double kLongest = 30;  // seconds
  Counter ended;
  for (int round = 1; round <= 2; ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    Sum sum(MPI_COMM_WORLD);
    if (rank == 0) {
      while (ended.number() < round * (ranks - 1) && MPI_Wtime() - begin < kLongest) {
      }
      expect(ended.number() == round * (ranks - 1), "who waits does not wait for who calculates");
    }
    MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    if (rank != 0) ++ended.number();
    sum.check();
  }
}

// The first rank waits for a collective that a thread of Kolo's executes, or is in a blocking one behind it. The second
// comes only when it has received a long message of the first's, for which the MPI has to go on there.
void behind() {
  std::vector<int> message(1 << 20, rank);
  for (int round = 0; round < 10; ++round) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(message.data(), 1 << 20, MPI_INT, 1, round, MPI_COMM_WORLD, &request);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      MPI_Recv(message.data(), 1 << 20, MPI_INT, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    Sum sum(MPI_COMM_WORLD);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (round % 2 == 0) MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    int from = rank;
    MPI_Bcast(&from, 1, MPI_INT, round % ranks, MPI_COMM_WORLD);
    MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    sum.check();
    expect(from == round % ranks && (rank > 1 || message.back() == 0), "the broadcast and the message came");
  }
}

// On two communicators each rank starts in its own order, and waits in another.
void orders() {
  MPI_Comm comms[] = {begun(), begun()};
  for (int round = 0; round < 20; ++round) {
    const int first = (rank + round) % 2;
    Sum one(comms[first]), other(comms[1 - first]);
    MPI_Wait(rank / 2 % 2 == 0 ? &one.request : &other.request, MPI_STATUS_IGNORE);
    MPI_Wait(&one.request, MPI_STATUS_IGNORE);
    MPI_Wait(&other.request, MPI_STATUS_IGNORE);
    one.check();
    other.check();
  }
  MPI_Comm_free(&comms[0]);
  MPI_Comm_free(&comms[1]);
}

// Blocking collectives and messages while others are under way, of Kolo's and of the MPI's own (which has the products
// of long doubles).
void blocking() {
  for (int round = 0; round < 20; ++round) {
    Sum before(MPI_COMM_WORLD);
    long double factor = 2, product = 0;
    MPI_Request own = MPI_REQUEST_NULL;
    MPI_Iallreduce(&factor, &product, 1, MPI_LONG_DOUBLE, MPI_PROD, MPI_COMM_WORLD, &own);
    Sum after(MPI_COMM_WORLD);
    int from = -1, root = round % ranks;
    int sent = rank == root ? round : -1;
    MPI_Bcast(&sent, 1, MPI_INT, root, MPI_COMM_WORLD);
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 0, &from, 1, MPI_INT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Request all[] = {after.request, own, before.request};
    MPI_Waitall(3, all, MPI_STATUSES_IGNORE);
    before.check();
    after.check();
    expect(sent == round && from == (rank + ranks - 1) % ranks, "the broadcast and the message came");
    expect(product == static_cast<long double>(1 << ranks), "the product is right");
  }
}

// The first collective of a communicator may not wait for others: the first rank comes only when the others tell it to.
void first() {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  int token = 0;
  if (rank == 0) MPI_Recv(&token, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  Sum sum(comm);
  if (rank == 1) MPI_Send(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
  MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
  sum.check();
  MPI_Comm_free(&comm);
}

// A program that only tests, and answers messages meanwhile: the last rank comes when all others have had an answer.
void tests() {
  for (int round = 0; round < 20; ++round) {
    if (rank == ranks - 1) {
      for (int other = 0; other + 1 < ranks; ++other) {
        int answer = -1;
        MPI_Sendrecv(&rank, 1, MPI_INT, other, 0, &answer, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        expect(answer == other, "the answer comes");
      }
    }
    Sum sum(MPI_COMM_WORLD);
    int flag = 0, isAnswered = rank == ranks - 1 ? 1 : 0;
    while (flag == 0) {
      MPI_Test(&sum.request, &flag, MPI_STATUS_IGNORE);
      if (isAnswered != 0) continue;
      expect(flag == 0, "nobody gets out before the last has come");
      int question = 0;
      MPI_Iprobe(ranks - 1, 0, MPI_COMM_WORLD, &isAnswered, MPI_STATUS_IGNORE);
      if (isAnswered == 0) continue;
      MPI_Recv(&question, 1, MPI_INT, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(&rank, 1, MPI_INT, ranks - 1, 1, MPI_COMM_WORLD);
    }
    sum.check();
  }
}

// Requests that are freed before their collectives are over; a blocking one comes after those.
void freed() {
  std::vector<int> twos(1000, 2), left(2000, -1);
  MPI_Datatype gaps = MPI_DATATYPE_NULL;
  MPI_Type_vector(1000, 1, 2, MPI_INT, &gaps);
  MPI_Type_commit(&gaps);
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  MPI_Ibcast(rank == 1 ? twos.data() : left.data(), rank == 1 ? 1000 : 1, rank == 1 ? MPI_INT : gaps, 1, MPI_COMM_WORLD,
             &request);
  MPI_Request_free(&request);
  expect(request == MPI_REQUEST_NULL, "a freed request is none");
  MPI_Type_free(&gaps);
  Sum sum(MPI_COMM_WORLD);
  MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
  MPI_Barrier(MPI_COMM_WORLD);
  Sum last(MPI_COMM_WORLD);  // where the interposer has an occasion
  MPI_Request_free(&last.request);
  MPI_Barrier(MPI_COMM_WORLD);
  last.check();
  for (std::size_t i = 0; rank != 1 && i < left.size(); ++i)
    expect(left[i] == (i % 2 == 0 ? 2 : -1), "what a freed request is for comes");
}

// Collectives end though their communicator has been freed, and a new one may have its handle.
void communicator() {
  for (int round = 0; round < 20; ++round) {
    MPI_Comm comm = begun();
    std::vector<int> in(5000, rank), out(5000);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(in.data(), out.data(), 5000, MPI_INT, MPI_MAX, comm, &request);
    MPI_Comm_free(&comm);
    comm = begun();
    Sum sum(comm);
    MPI_Wait(&sum.request, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    sum.check();
    expect(out.front() == ranks - 1 && out.back() == ranks - 1, "the maximum is right");
    MPI_Comm_free(&comm);
  }
}

// An empty status, and a request that lives on in Fortran's handles and among inactive ones.
void statuses() {
  Sum sum(MPI_COMM_WORLD);
  sum.request = MPI_Request_f2c(MPI_Request_c2f(sum.request));
  MPI_Request all[] = {MPI_REQUEST_NULL, sum.request, MPI_REQUEST_NULL};
  MPI_Send_init(&rank, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &all[2]);
  MPI_Status status;
  std::memset(&status, 0x77, sizeof status);
  int index = -1, count = -1, cancelled = -1;
  MPI_Waitany(3, all, &index, &status);
  expect(index == 1 && all[1] == MPI_REQUEST_NULL, "the collective's request is the one that completes");
  MPI_Get_count(&status, MPI_INT, &count);
  MPI_Test_cancelled(&status, &cancelled);
  expect(count == 0 && cancelled == 0, "the status is empty");
  expect(status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG, "the status has no source and no tag");
  MPI_Waitany(3, all, &index, &status);
  expect(index == MPI_UNDEFINED, "nothing is left to wait for");
  MPI_Request_free(&all[2]);
  sum.check();

  Sum other(MPI_COMM_WORLD);  // MPI forbids to cancel a collective; that changes nothing
  MPI_Cancel(&other.request);
  MPI_Wait(&other.request, &status);
  MPI_Test_cancelled(&status, &cancelled);
  expect(cancelled == 0, "a collective is not cancelled");
  other.check();
}

// Requests are the program's again and again: whichever function completes one, the next collective has one that is as
// good.
void again() {
  const int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
  for (int round = 0; round < 200; ++round) {
    Sum one(MPI_COMM_WORLD), other(MPI_COMM_WORLD);
    int message = -1, sent = round, flag = 0, index = -1, count = 0, indices[4] = {};
    MPI_Request all[4] = {one.request, MPI_REQUEST_NULL, other.request, MPI_REQUEST_NULL};
    MPI_Irecv(&message, 1, MPI_INT, from, round, MPI_COMM_WORLD, &all[1]);
    MPI_Isend(&sent, 1, MPI_INT, to, round, MPI_COMM_WORLD, &all[3]);
    MPI_Status statuses[4];
    std::memset(statuses, 0x77, sizeof statuses);
    constexpr int kUntouched = 0x77777777;
    const auto isEmpty = [](const MPI_Status& status) {
      return status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG;
    };
    const bool areMixed = round % 9 < 4;
    switch (round % 9) {
      case 0: MPI_Waitall(4, all, statuses); break;
      case 1:
        while (flag == 0) MPI_Testall(4, all, &flag, statuses);
        break;
      case 2:
        for (int left = 4; left > 0; --left) {
          MPI_Status status;
          MPI_Waitany(4, all, &index, &status);
          statuses[index] = status;
        }
        break;
      case 3:
        for (int left = 4; left > 0; left -= count) {
          MPI_Status some[4];
          MPI_Waitsome(4, all, &count, indices, some);
          for (int i = 0; i < count; ++i) statuses[indices[i]] = some[i];
        }
        break;
      case 4:
        MPI_Wait(&all[0], &statuses[0]);
        MPI_Get_count(&statuses[0], MPI_INT, &count);
        expect(count == 0 && statuses[0].MPI_ERROR == kUntouched, "a wait for one request leaves MPI_ERROR alone");
        while (flag == 0) MPI_Test(&all[2], &flag, &statuses[2]);
        break;
      case 5:
        while (flag == 0) MPI_Request_get_status(all[0], &flag, &statuses[0]);
        expect(all[0] != MPI_REQUEST_NULL, "a request that was asked about is still there");
        MPI_Wait(&all[0], &statuses[0]);
        MPI_Wait(&all[2], &statuses[2]);
        break;
      case 6: {
        MPI_Request both[] = {all[0], all[2]};
        while (flag == 0) MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
        all[0] = both[0];
        all[2] = both[1];
        break;
      }
      case 7: {
        MPI_Request both[] = {all[0], all[2]};
        MPI_Status its[2];
        std::memset(its, 0x77, sizeof its);
        MPI_Waitall(2, both, its);
        for (const MPI_Status& each : its) {
          int cancelled = -1;
          MPI_Get_count(&each, MPI_INT, &count);
          MPI_Test_cancelled(&each, &cancelled);
          expect(isEmpty(each) && count == 0 && cancelled == 0 && each.MPI_ERROR == MPI_SUCCESS,
                 "each status is empty, and tells no error");
        }
        all[0] = both[0];
        all[2] = both[1];
        break;
      }
      default:
        MPI_Wait(&all[2], &statuses[2]);
        MPI_Request_free(&all[0]);  // of one that is over
        break;
    }
    if (!areMixed) MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
    one.check();
    other.check();
    expect(message == round, "the message came");
    for (const MPI_Request each : all) expect(each == MPI_REQUEST_NULL, "no request is left");
    if (areMixed) {
      expect(isEmpty(statuses[0]) && isEmpty(statuses[2]), "the status of a collective is empty");
      expect(statuses[1].MPI_SOURCE == from && statuses[1].MPI_TAG == round, "the status of a message is its own");
    }
  }
}

// More than Kolo has requests.
void many() {
  constexpr int kMany = 20'000;
  std::vector<int> totals(kMany, -1);
  std::vector<MPI_Request> requests(kMany, MPI_REQUEST_NULL);
  for (std::size_t i = 0; i < kMany; ++i) {
    MPI_Iallreduce(&rank, &totals[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[i]);
  }
  MPI_Waitall(kMany, requests.data(), MPI_STATUSES_IGNORE);
  for (const int total : totals) expect(total == ranks * (ranks - 1) / 2, "all sums are right");
}

// Scans fold when they are completed, so that any program's may be Kolo's: short ones.
void scans() {
  for (const int count : {1, 1000, 1 << 20}) {
    const auto size = static_cast<std::size_t>(count);
    std::vector<int> in(size, rank + 1), upToMe(size, -1), beforeMe(size, -1);
    MPI_Request both[2];
    MPI_Iscan(in.data(), upToMe.data(), count, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &both[0]);
    MPI_Iexscan(in.data(), beforeMe.data(), count, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &both[1]);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    const int before = rank * (rank + 1) / 2;
    expect(upToMe == std::vector<int>(size, before + rank + 1), "the sum up to this rank is right");
    expect(rank == 0 || beforeMe == std::vector<int>(size, before), "the sum of those before is right");
  }
  struct {
    double value;
    int at;
  } own{rank == 1 ? 7.0 : 1.0, rank}, greatest{0, -1};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iscan(&own, &greatest, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(greatest.at == (rank > 0 ? 1 : 0), "the place of the greatest is right");
}

// A rank that only gives has done so when the call returns, if it has made the call before and there is room: whatever
// the others do.
void gives() {
  const auto size = static_cast<std::size_t>(ranks);
  std::vector<int> one(2), all(2 * size), counts(size, 2), begins(size);
  for (std::size_t i = 0; i < size; ++i) begins[i] = 2 * static_cast<int>(i);
  struct Kind {
    const char* name;
    bool isFromRoot;
    std::function<void(MPI_Request*)> start;
  };
  const std::vector<Kind> kinds = {
      {"broadcast", true,
       [&](MPI_Request* request) { MPI_Ibcast(one.data(), 2, MPI_INT, 0, MPI_COMM_WORLD, request); }},
      {"scatter", true,
       [&](MPI_Request* request) {
         MPI_Iscatter(all.data(), 2, MPI_INT, one.data(), 2, MPI_INT, 0, MPI_COMM_WORLD, request);
       }},
      {"scatterv", true,
       [&](MPI_Request* request) {
         MPI_Iscatterv(all.data(), counts.data(), begins.data(), MPI_INT, one.data(), 2, MPI_INT, 0, MPI_COMM_WORLD,
                       request);
       }},
      {"gather", false,
       [&](MPI_Request* request) {
         MPI_Igather(one.data(), 2, MPI_INT, all.data(), 2, MPI_INT, 0, MPI_COMM_WORLD, request);
       }},
      {"gatherv", false,
       [&](MPI_Request* request) {
         MPI_Igatherv(one.data(), 2, MPI_INT, all.data(), counts.data(), begins.data(), MPI_INT, 0, MPI_COMM_WORLD,
                      request);
       }},
      {"reduce", false, [&](MPI_Request* request) {
         MPI_Ireduce(one.data(), all.data(), 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD, request);
       }}};
  for (const Kind& kind : kinds) {
    const std::string name = kind.name;
    for (int round = 0; round < 40; ++round) {
      one.assign(2, kind.isFromRoot ? rank == 0 ? round : -1 : round + rank);
      all.assign(all.size(), kind.isFromRoot ? round : -1);
      MPI_Request request = MPI_REQUEST_NULL;
      kind.start(&request);
      if (kind.isFromRoot == (rank == 0) && round > 0) {
        int flag = 0;
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        expect(flag != 0, "who only gives has done so: " + name + ", round " + std::to_string(round));
      }
      MPI_Wait(&request, MPI_STATUS_IGNORE);
      if (kind.isFromRoot) {
        expect(one[0] == round && one[1] == round, "all have what the root gave: " + name);
      } else if (rank == 0 && name == "reduce") {
        expect(all[1] == ranks * round + ranks * (ranks - 1) / 2, "the root has the sum");
      } else if (rank == 0) {
        for (int i = 0; i < ranks; ++i)
          expect(all[2 * static_cast<std::size_t>(i) + 1] == round + i, "the root has what all gave: " + name);
      }
      if (round % 8 == 7) MPI_Barrier(MPI_COMM_WORLD);  // none is so far ahead that there is no room
    }
  }
}

// Threads with a communicator each; and requests that one thread starts and others wait for.
void threads() {
  std::vector<MPI_Comm> comms = {begun(), begun(), begun()};
  std::vector<std::thread> running;
  for (const MPI_Comm comm : comms) {
    running.emplace_back([comm] {
      for (int i = 0; i < 100; ++i) {
        Sum one(comm), other(comm);
        std::thread waiting([&one] { MPI_Wait(&one.request, MPI_STATUS_IGNORE); });
        MPI_Wait(&other.request, MPI_STATUS_IGNORE);
        waiting.join();
        one.check();
        other.check();
      }
    });
  }
  for (std::thread& each : running) each.join();
  for (MPI_Comm& each : comms) MPI_Comm_free(&each);
}

// What the ranks disagree on is told to each when it completes the request.
void errors() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  MPI_Comm spoilt[] = {begun(), begun(), begun()};
  std::vector<int> in(1000), out(1000);
  const auto start = [&](MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Iallreduce(in.data(), out.data(), rank == 0 ? 1000 : 999, MPI_INT, MPI_SUM, comm, &request);
    expect(code == MPI_SUCCESS, "the call itself is right");
    return request;
  };
  const auto classOf = [](int code) {
    int its = 0;
    MPI_Error_class(code, &its);
    return its;
  };
  MPI_Request request = start(spoilt[0]);
  expect(classOf(MPI_Wait(&request, MPI_STATUS_IGNORE)) == MPI_ERR_TRUNCATE, "MPI_Wait tells the error");
  MPI_Request all[] = {MPI_REQUEST_NULL, start(spoilt[1])};
  MPI_Status statuses[2];
  expect(classOf(MPI_Waitall(2, all, statuses)) == MPI_ERR_IN_STATUS, "MPI_Waitall says where to look");
  expect(statuses[1].MPI_ERROR != MPI_SUCCESS,
         "the status tells of an error");  // MPICH says MPI_ERR_OTHER, whatever it is
  Sum sum(MPI_COMM_WORLD);
  MPI_Request both[] = {sum.request, start(spoilt[2])};
  expect(classOf(MPI_Waitall(2, both, statuses)) == MPI_ERR_IN_STATUS, "MPI_Waitall says it of collectives alone, too");
  expect(statuses[1].MPI_ERROR != MPI_SUCCESS, "the status of the one that failed tells of it");
  sum.check();
#ifndef OPEN_MPI  // whose MPI_STATUS_IGNORE this is
  Sum another(MPI_COMM_WORLD);
  expect(classOf(MPI_Wait(&another.request, nullptr)) == MPI_ERR_ARG,
         "a status that is nowhere is the MPI's to refuse");
#endif
  MPI_Barrier(MPI_COMM_WORLD);
}

// Ints in a GPU's memory.
class Ints {
 public:
  explicit Ints(const std::vector<int>& values)
      : count_(values.size()), data_(Gpu::get()->allocate(count_ * sizeof(int))) {
    put(0, values);
  }
  ~Ints() { free(); }
  Ints(const Ints&) = delete;
  int* data() const { return reinterpret_cast<int*>(data_); }
  void put(std::size_t at, const std::vector<int>& values) {
    Gpu::get()->upload(data_ + at * sizeof(int), values.data(), values.size() * sizeof(int));
  }
  std::vector<int> get() const {
    std::vector<int> values(count_);
    Gpu::get()->download(values.data(), data_, count_ * sizeof(int));
    return values;
  }
  void free() {
    if (data_ != nullptr) Gpu::get()->free(data_);
    data_ = nullptr;
  }

 private:
  std::size_t count_;
  unsigned char* data_;
};

// Of collectives of the MPI's own results come by whichever function completes the request.
void completeOnGpu(MPI_Comm comm) {
  for (int how = 0; how < 9; ++how) {
    Ints own({rank, 1}), total({-1, -1});
    MPI_Request requests[] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Iallreduce(own.data(), total.data(), 2, MPI_INT, MPI_SUM, comm, &requests[1]);
    int flag = 0, index = -1, indices[2], done = 0;
    const auto until = [&](const auto& test) {
      while (flag == 0) test();
    };
    switch (how) {
      case 0: MPI_Wait(&requests[1], MPI_STATUS_IGNORE); break;
      case 1: MPI_Waitall(2, requests, MPI_STATUSES_IGNORE); break;
      case 2: MPI_Waitany(2, requests, &index, MPI_STATUS_IGNORE); break;
      case 3: MPI_Waitsome(2, requests, &done, indices, MPI_STATUSES_IGNORE); break;
      case 4: until([&] { MPI_Test(&requests[1], &flag, MPI_STATUS_IGNORE); }); break;
      case 5: until([&] { MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE); }); break;
      case 6: until([&] { MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE); }); break;
      case 7: until([&] { MPI_Testsome(2, requests, &flag, indices, MPI_STATUSES_IGNORE); }); break;
      default: until([&] { MPI_Request_get_status(requests[1], &flag, MPI_STATUS_IGNORE); });
    }
    expect(total.get() == std::vector<int>{ranks * (ranks - 1) / 2, ranks},
           "the sum is in the GPU's memory by way " + std::to_string(how));
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
  }
}

// Between data that arrive the program goes on writing.
void writeBetween() {
  MPI_Datatype every = MPI_DATATYPE_NULL;
  MPI_Type_vector(3, 1, 2, MPI_INT, &every);
  MPI_Type_commit(&every);
  const bool isRoot = rank == 0;
  Ints buffer(isRoot ? std::vector<int>{1, 0, 2, 0, 3, 0} : std::vector<int>(6, -1));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(buffer.data(), 1, every, 0, MPI_COMM_WORLD, &request);
  buffer.put(1, {10});
  buffer.put(3, {20});
  MPI_Type_free(&every);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(buffer.get() == std::vector<int>{1, 10, 2, 20, 3, isRoot ? 0 : -1}, "what was written between the data stays");
}

// Where the driver cannot copy, the call fails.
void failToCopy() {
  const auto isOfBuffer = [](int code) {
    int its = 0;
    MPI_Error_class(code, &its);
    return its == MPI_ERR_BUFFER;
  };
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  Ints in({1, 2}), out({0, 0});
  expect(isOfBuffer(MPI_Allreduce(in.data(), out.data(), 2000, MPI_INT, MPI_SUM, MPI_COMM_WORLD)),
         "a buffer that is too short is an error");
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(in.data(), out.data(), 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  out.free();
  expect(isOfBuffer(MPI_Wait(&request, MPI_STATUS_IGNORE)), "a buffer that is gone is an error");
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  // Whoever comes last may find its collective over, and the sum in its place, at once; so rank 0 comes when the
  // others' buffers are gone.
  Ints other({0, 0});
  if (rank == 0) {
    for (int peer = 1; peer < ranks; ++peer) MPI_Recv(nullptr, 0, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Iallreduce(in.data(), other.data(), 2, MPI_INT, MPI_SUM, comm, &request);
  if (rank != 0) {
    other.free();
    MPI_Send(nullptr, 0, MPI_INT, 0, 0, MPI_COMM_WORLD);
  }
  const int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(rank == 0 ? code == MPI_SUCCESS : isOfBuffer(code), "it is one where the collective is the MPI's own, too");
  MPI_Comm_free(&comm);
}

void gpu() {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  completeOnGpu(comm);  // the MPI's own: Kolo has not begun there
  MPI_Barrier(comm);
  completeOnGpu(comm);
  MPI_Comm_free(&comm);
  writeBetween();
  failToCopy();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> all = {{"receive", receive},
                                                            {"computes", computes},
                                                            {"behind", behind},
                                                            {"many", many},
                                                            {"scans", scans},
                                                            {"orders", orders},
                                                            {"blocking", blocking},
                                                            {"first", first},
                                                            {"tests", tests},
                                                            {"freed", freed},
                                                            {"communicator", communicator},
                                                            {"statuses", statuses},
                                                            {"again", again},
                                                            {"gives", gives},
                                                            {"threads", threads},
                                                            {"errors", errors},
                                                            {"gpu", gpu}};
  const std::string what = argc > 1 ? argv[1] : "";
  if (all.find(what) == all.end()) return 2;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, what == "threads" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  all.at(what)();  // no blocking collective comes before
  if (rank == 0) std::printf("%s: ok\n", what.c_str());
  MPI_Finalize();
  return 0;
}
