// Random nonblocking collectives: several under way at once on several communicators, started by each rank in an order
// of its own among communicators, in one array with messages and requests that are not active, and completed by all
// functions that MPI has for that. A blocking collective comes in between, datatypes are freed before they have been
// used, and so are communicators. What is received, and all bytes around it, must be what the MPI's own blocking
// function leaves.
//
// With KOLO_TEST_LIBCUDA most buffers lie in a GPU's memory.
//
// usage: kolo-mpi-random-nonblocking-FAMILY ROUNDS SEED single|multiple [SECONDS]
//   ROUNDS are the least; there are more until SECONDS are over. single or multiple is the level of threads that the
//   program asks for.
#include <cstdint>
#include <numeric>
#include <optional>

#include "on_gpu.h"
#include "rounds.h"

using namespace kolo::test;

namespace {

constexpr int kKinds = 16;

// Open MPI itself dies of a communicator that is freed while its own nonblocking collectives are under way there.
#ifdef OPEN_MPI
constexpr bool kMayFreeEarly = false;
#else
constexpr bool kMayFreeEarly = true;
#endif

// One collective, the same on all ranks of its communicator but for what `own` draws.
class Collective {
 public:
  Collective(int kind, MPI_Comm comm, const std::vector<Number>& all, const std::vector<MPI_Datatype>& alike,
             Random shared, Random own)
      : comm_(comm), kind_(kind) {
    MPI_Comm_rank(comm, &rank_);
    MPI_Comm_size(comm, &ranks_);
    const int most[] = {1, 10, 500, 8000};
    count_ = static_cast<int>(shared() % static_cast<unsigned>(most[shared() % 4] + 1));
    root_ = static_cast<int>(shared() % static_cast<unsigned>(ranks_));
    number_ = &all[shared() % all.size()];
    op_ = number_->ops[shared() % number_->ops.size()];
    // MPICH's own MPI_Iallgatherv hangs where the elements of ranks have different extents.
    const std::size_t choice = kind_ == 8 ? shared() : own();
    datatype_ = reduces() ? number_->datatype : alike[choice % alike.size()];
    for (int i = 0, end = 0; i < ranks_; ++i) {
      counts_.push_back(static_cast<int>(shared() % static_cast<unsigned>(count_ + 1)));
      displs_.push_back(end);
      end += counts_.back() + (reduces() ? 0 : 1);
    }
    for (int i = 0; i < ranks_; ++i) {  // in MPI_Ialltoallv every rank sends counts_[j] to rank j
      toMe_.push_back(mine());
      places_.push_back(i * mine());
    }
    send_ = received_ = Buffer((count_ + 1) * ranks_);
    if (reduces()) {
      fill(send_, *number_, op_, count_ * ranks_, own);
      fill(received_, *number_, op_, count_ * ranks_, own);
    } else {
      send_.randomize(own);
      received_.randomize(own);
    }
    expected_ = received_;
    where_ = own;
  }

  // The datatype is the program's no longer when this returns.
  MPI_Request start() {
    MPI_Datatype used = datatype_;
    sends_.emplace(send_, where_);
    receives_.emplace(received_, where_);
    if (!reduces()) MPI_Type_dup(datatype_, &used);
    MPI_Request request = MPI_REQUEST_NULL;
    startWith(used, &request);
    if (!reduces()) MPI_Type_free(&used);
    return request;
  }

  // Collective. The communicator may be another one of the same ranks.
  void check(MPI_Comm comm) {
    sends_->fetch();
    receives_->fetch();
    calculate(comm);
    what = "nonblocking collective " + std::to_string(kind_) + " of " + std::to_string(count_);
    hideUndefined(received_);
    hideUndefined(expected_);
    received_.expectSameAs(expected_);
  }

  MPI_Comm comm() const { return comm_; }

 private:
  bool reduces() const { return kind_ < 6; }
  int mine() const { return counts_[static_cast<std::size_t>(rank_)]; }
  // Data may lie before the address of an element.
  unsigned char* at(unsigned char* buffer) const { return buffer - std::min<MPI_Aint>(0, layoutOf(datatype_).begin); }
  const int* counts() const { return counts_.data(); }
  const int* displs() const { return displs_.data(); }
  const int* inBytes(const std::vector<int>& displs, std::vector<int>& bytes) const {
    bytes = displs;
    for (int& each : bytes) each *= static_cast<int>(layoutOf(datatype_).extent);
    return bytes.data();
  }

  void startWith(MPI_Datatype type, MPI_Request* request) {
    unsigned char* const s = at(sends_->data());
    unsigned char* const r = at(receives_->data());
    switch (kind_) {
      case 0: MPI_Iallreduce(s, r, count_, type, op_, comm_, request); break;
      case 1: MPI_Ireduce(s, r, count_, type, op_, root_, comm_, request); break;
      case 2: MPI_Iscan(s, r, count_, type, op_, comm_, request); break;
      case 3: MPI_Iexscan(s, r, count_, type, op_, comm_, request); break;
      case 4: MPI_Ireduce_scatter_block(s, r, count_, type, op_, comm_, request); break;
      case 5: MPI_Ireduce_scatter(s, r, counts(), type, op_, comm_, request); break;
      case 6: MPI_Ibcast(r, count_, type, root_, comm_, request); break;
      case 7: MPI_Iallgather(s, count_, type, r, count_, type, comm_, request); break;
      case 8: MPI_Iallgatherv(s, mine(), type, r, counts(), displs(), type, comm_, request); break;
      case 9: MPI_Igather(s, count_, type, r, count_, type, root_, comm_, request); break;
      case 10: MPI_Igatherv(s, mine(), type, r, counts(), displs(), type, root_, comm_, request); break;
      case 11: MPI_Iscatter(s, count_, type, r, count_, type, root_, comm_, request); break;
      case 12: MPI_Iscatterv(s, counts(), displs(), type, r, mine(), type, root_, comm_, request); break;
      case 13: MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, r, count_, type, comm_, request); break;
      case 14:
        MPI_Ialltoallv(s, counts(), displs(), type, r, toMe_.data(), places_.data(), type, comm_, request);
        break;
      default:
        types_.assign(counts_.size(), type);
        MPI_Ialltoallw(s, counts(), inBytes(displs_, sentFrom_), types_.data(), r, toMe_.data(),
                       inBytes(places_, receivedAt_), types_.data(), comm_, request);
    }
  }

  void calculate(MPI_Comm comm) {
    unsigned char* const s = at(send_.data());
    unsigned char* const r = at(expected_.data());
    const MPI_Datatype type = datatype_;
    switch (kind_) {
      case 0: ITS_OWN(MPI_Allreduce)(s, r, count_, type, op_, comm); break;
      case 1: ITS_OWN(MPI_Reduce)(s, r, count_, type, op_, root_, comm); break;
      case 2: ITS_OWN(MPI_Scan)(s, r, count_, type, op_, comm); break;
      case 3: ITS_OWN(MPI_Exscan)(s, r, count_, type, op_, comm); break;
      case 4: ITS_OWN(MPI_Reduce_scatter_block)(s, r, count_, type, op_, comm); break;
      case 5: ITS_OWN(MPI_Reduce_scatter)(s, r, counts(), type, op_, comm); break;
      case 6: ITS_OWN(MPI_Bcast)(r, count_, type, root_, comm); break;
      case 7: ITS_OWN(MPI_Allgather)(s, count_, type, r, count_, type, comm); break;
      case 8: ITS_OWN(MPI_Allgatherv)(s, mine(), type, r, counts(), displs(), type, comm); break;
      case 9: ITS_OWN(MPI_Gather)(s, count_, type, r, count_, type, root_, comm); break;
      case 10: ITS_OWN(MPI_Gatherv)(s, mine(), type, r, counts(), displs(), type, root_, comm); break;
      case 11: ITS_OWN(MPI_Scatter)(s, count_, type, r, count_, type, root_, comm); break;
      case 12: ITS_OWN(MPI_Scatterv)(s, counts(), displs(), type, r, mine(), type, root_, comm); break;
      case 13: ITS_OWN(MPI_Alltoall)(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, r, count_, type, comm); break;
      default:
        ITS_OWN(MPI_Alltoallv)
        (s, counts(), displs(), type, r, toMe_.data(), places_.data(), type, comm);  // and MPI_Alltoallw
    }
  }

  // The result of an exclusive scan on the first rank is undefined.
  void hideUndefined(Buffer& buffer) {
    if (kind_ == 3 && rank_ == 0)
      std::memset(buffer.data(), 0, static_cast<std::size_t>(count_ * layoutOf(datatype_).extent));
  }

  MPI_Comm comm_;
  int kind_, count_ = 0, root_ = 0, rank_ = 0, ranks_ = 0;
  const Number* number_ = nullptr;
  MPI_Op op_ = MPI_OP_NULL;
  MPI_Datatype datatype_ = MPI_DATATYPE_NULL;
  std::vector<int> counts_, displs_, toMe_, places_, sentFrom_, receivedAt_;
  std::vector<MPI_Datatype> types_;  // of MPI_Ialltoallw
  Buffer send_{0}, received_{0}, expected_{0};
  Random where_;
  std::optional<Placed> sends_, receives_;  // where the call has them
};

// ---- completion

void waitForEach(std::vector<MPI_Request>& requests, Random& own) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), own);
  for (const std::size_t i : order) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
}

void testEach(std::vector<MPI_Request>& requests, bool asksFirst) {
  for (MPI_Request& request : requests) {
    for (int flag = 0; flag == 0;) {
      if (asksFirst) {
        MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE);
      } else {
        MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
      }
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
}

// All functions that return when some are complete, until none is left.
void takeAny(std::vector<MPI_Request>& requests, int how) {
  const int count = static_cast<int>(requests.size());
  std::vector<int> indices(requests.size());
  for (int taken = 0; taken != MPI_UNDEFINED;) {
    int flag = 0;
    switch (how) {
      case 0: MPI_Waitany(count, requests.data(), &taken, MPI_STATUS_IGNORE); break;
      case 1: MPI_Waitsome(count, requests.data(), &taken, indices.data(), MPI_STATUSES_IGNORE); break;
      case 2: MPI_Testsome(count, requests.data(), &taken, indices.data(), MPI_STATUSES_IGNORE); break;
      default:
        MPI_Testany(count, requests.data(), &taken, &flag, MPI_STATUS_IGNORE);
        if (flag == 0) taken = 0;
    }
  }
}

void completeAll(std::vector<MPI_Request>& requests, Random& own) {
  const int count = static_cast<int>(requests.size());
  std::vector<MPI_Status> statuses(requests.size());
  const auto how = own() % 9;
  switch (how) {
    case 0: MPI_Waitall(count, requests.data(), statuses.data()); break;
    case 1: MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE); break;
    case 2: waitForEach(requests, own); break;
    case 3: testEach(requests, false); break;
    case 4: testEach(requests, true); break;
    case 5: {
      for (int flag = 0; flag == 0;) MPI_Testall(count, requests.data(), &flag, statuses.data());
      break;
    }
    default: takeAny(requests, static_cast<int>(how - 6));
  }
}

// ---- rounds

struct World {
  int rank = 0, ranks = 0;
  std::vector<Number> numbers;
  std::vector<MPI_Datatype> alike;
  std::vector<MPI_Comm> comms;
  MPI_Request inactive = MPI_REQUEST_NULL;
  Deck kinds{kKinds};
};

struct Call {
  MPI_Comm comm;
  Collective* started;  // nullptr: the blocking one
};
// Keeps the order in which ranks call on a communicator, and no other.
std::vector<Call> interleave(const std::vector<Call>& calls, Random& own) {
  std::vector<std::size_t> order(calls.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), own);
  std::vector<Call> interleaved;
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t j = i + 1; j < order.size(); ++j) {
      if (calls[order[i]].comm == calls[order[j]].comm && order[i] > order[j]) std::swap(order[i], order[j]);
    }
    interleaved.push_back(calls[order[i]]);
  }
  return interleaved;
}

void round(World& world, Random& shared, Random& own) {
  // Copies of communicators are used as those are, and freed while their collectives are under way.
  MPI_Comm shortLived = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &shortLived);
  if (shared() % 2 == 0) MPI_Barrier(shortLived);
  std::vector<MPI_Comm> comms = world.comms;
  comms.push_back(shortLived);

  std::vector<Collective> collectives;
  for (auto left = 1 + shared() % 6; left > 0; --left) {
    const std::uint64_t seed = shared();
    const int kind = world.kinds.draw(shared);
    collectives.emplace_back(kind, comms[shared() % comms.size()], world.numbers, world.alike, Random(seed),
                             Random(seed * 1000 + static_cast<unsigned>(world.rank)));
  }
  std::vector<MPI_Request> requests = {MPI_REQUEST_NULL, world.inactive};
  int out = world.rank, in = -1;
  MPI_Irecv(&in, 1, MPI_INT, (world.rank + world.ranks - 1) % world.ranks, 0, MPI_COMM_WORLD, &requests.emplace_back());
  std::vector<Call> calls;
  for (Collective& each : collectives) calls.push_back({each.comm(), &each});
  calls.insert(calls.begin() + static_cast<std::ptrdiff_t>(shared() % (calls.size() + 1)), {world.comms[1], nullptr});
  int sum = world.rank;
  for (const Call& call : interleave(calls, own)) {
    if (call.started != nullptr) {
      requests.push_back(call.started->start());
    } else {
      MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, call.comm);
    }
  }
  MPI_Isend(&out, 1, MPI_INT, (world.rank + 1) % world.ranks, 0, MPI_COMM_WORLD, &requests.emplace_back());
  if (kMayFreeEarly) MPI_Comm_free(&shortLived);
  std::shuffle(requests.begin(), requests.end(), own);
  completeAll(requests, own);
  if (!kMayFreeEarly) MPI_Comm_free(&shortLived);
  what = "message or sum beside nonblocking collectives";
  const int from = (world.rank + world.ranks - 1) % world.ranks, total = world.ranks * (world.ranks - 1) / 2;
  expectSame(&in, &from, sizeof in);
  expectSame(&sum, &total, sizeof sum);
  for (Collective& each : collectives) {
    const bool isGone = std::find(world.comms.begin(), world.comms.end(), each.comm()) == world.comms.end();
    each.check(isGone ? MPI_COMM_WORLD : each.comm());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, std::string(argv[3]) == "multiple" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE,
                  &provided);
  Rounds rounds(std::atoi(argv[1]), argc > 4 ? std::atof(argv[4]) : 0);
  const std::uint64_t seed = std::strtoull(argv[2], nullptr, 0);
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.ranks);
  world.numbers = numbers();
  world.alike = fourInts();
  world.comms.resize(3, MPI_COMM_WORLD);
  MPI_Comm_dup(MPI_COMM_WORLD, &world.comms[1]);
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, -world.rank, &world.comms[2]);
  for (MPI_Comm each : world.comms) MPI_Barrier(each);
  MPI_Send_init(&world.rank, 1, MPI_INT, world.rank, 1, MPI_COMM_WORLD, &world.inactive);

  Random shared(seed), own(seed * 1000 + static_cast<unsigned>(world.rank));
  while (rounds.next()) round(world, shared, own);

  MPI_Request_free(&world.inactive);
  MPI_Comm_free(&world.comms[1]);
  MPI_Comm_free(&world.comms[2]);
  for (MPI_Datatype& each : world.alike) MPI_Type_free(&each);
  if (world.rank == 0) std::printf("%d rounds agree\n", rounds.done());
  MPI_Finalize();
  return 0;
}
