// Random collectives on random communicators, each done twice on the same input: as programs call it, and by the MPI's
// own function. What is received, and all bytes around it, must be the same.
//
// With KOLO_TEST_LIBCUDA most buffers of the former lie in a GPU's memory.
//
// usage: kolo-mpi-random-FAMILY ROUNDS SEED [SECONDS]
//   ROUNDS are the least; there are more until SECONDS are over.
#include "on_gpu.h"
#include "rounds.h"

using namespace kolo::test;

namespace {

// Of a few numbers Open MPI's own MPI_Reduce_scatter in place leaves the whole result in the first rank's buffer.
#ifdef OPEN_MPI
constexpr bool kMayLeaveWhole = true;
#else
constexpr bool kMayLeaveWhole = false;
#endif

// MPICH's own functions fail, or crash, where a message of more than 8 KiB has elements like MPI_LONG_INT, with gaps.
int mostOf(MPI_Datatype datatype, int count) {
#ifdef OPEN_MPI
  (void)datatype;
  return count;
#else
  int bytes = 0;
  MPI_Type_size(datatype, &bytes);
  return bytes < layoutOf(datatype).extent ? std::min(count, 100) : count;
#endif
}

struct Test {
  MPI_Comm comm;
  int rank, ranks;
  Random shared, own;  // the same draws on all ranks; this rank's

  int draw(int below) { return static_cast<int>(shared() % static_cast<unsigned>(below)); }
  bool coin() { return draw(2) == 0; }
  // Of all sizes that are dealt with in different ways; many are small.
  int drawCount() {
    const int most[] = {1, 4, 10, 100, 1000, 20000};
    return draw(most[draw(6)] + 1);
  }
  MPI_Datatype pick(const std::vector<MPI_Datatype>& types) { return types[own() % types.size()]; }
};

// Calls `collective(send, recv, own)` twice, and compares what it left in both buffers. own: whether it shall be the
// MPI's. hide(recv) overwrites what is undefined.
template <class Collective, class Hide>
void compare(Test& test, Buffer& send, Buffer& recv, const Collective& collective, const Hide& hide) {
  Buffer otherSend = send, otherRecv = recv;
  const Placed placedSend(send, test.own), placedRecv(recv, test.own);
  collective(placedSend.data(), placedRecv.data(), false);
  placedSend.fetch();
  placedRecv.fetch();
  collective(otherSend.data(), otherRecv.data(), true);
  hide(recv.data());
  hide(otherRecv.data());
  send.expectSameAs(otherSend);
  recv.expectSameAs(otherRecv);
}

// ---- reductions

constexpr int kReductions = 6, kMovements = 10;

void reduce(Test& test, const Number& number, int kind) {
  const MPI_Datatype type = number.datatype;
  const MPI_Op op = number.ops[static_cast<std::size_t>(test.draw(static_cast<int>(number.ops.size())))];
  const int count = test.drawCount() / (kind >= 4 ? test.ranks : 1), root = test.draw(test.ranks);
  // MPICH's own MPI_Reduce dies in place on other roots than 0.
  const bool isPassedOn = layoutOf(type).extent > 16 || std::getenv("KOLO_TEST_PASSED_ON") != nullptr;
  const bool inPlace = test.coin() && !(kind == 1 && isPassedOn);
  std::vector<int> counts(static_cast<std::size_t>(test.ranks));
  int total = kind == 4 ? count * test.ranks : count;
  if (kind == 5) {
    for (int& each : counts) each = test.draw(count + 1);
    total = 0;
    for (const int each : counts) total += each;
  }
  what = "reduction " + std::to_string(kind) + " of " + std::to_string(total) + (inPlace ? " in place" : "");
  Buffer send(total), recv(total);
  fill(send, number, op, total, test.own);
  fill(recv, number, op, total, test.own);
  compare(
      test, send, recv,
      [&](unsigned char* s, unsigned char* r, bool own) {
        const void* const from = inPlace ? MPI_IN_PLACE : s;
        const void* const toRoot = inPlace && test.rank == root ? MPI_IN_PLACE : s;
        switch (kind) {
          case 0: (own ? ITS_OWN(MPI_Allreduce) : MPI_Allreduce)(from, r, count, type, op, test.comm); break;
          case 1: {
            const std::vector<unsigned char> copy(r, r + (own ? count * layoutOf(type).extent : 0));
            const void* const input = toRoot == MPI_IN_PLACE && own ? copy.data() : toRoot;
            (own ? ITS_OWN(MPI_Reduce) : MPI_Reduce)(input, r, count, type, op, root, test.comm);
            break;
          }
          case 2: (own ? ITS_OWN(MPI_Scan) : MPI_Scan)(from, r, count, type, op, test.comm); break;
          case 3: (own ? ITS_OWN(MPI_Exscan) : MPI_Exscan)(from, r, count, type, op, test.comm); break;
          case 4:
            (own ? ITS_OWN(MPI_Reduce_scatter_block) : MPI_Reduce_scatter_block)(from, r, count, type, op, test.comm);
            break;
          default:
            (own ? ITS_OWN(MPI_Reduce_scatter) : MPI_Reduce_scatter)(from, r, counts.data(), type, op, test.comm);
        }
      },
      [&](unsigned char* r) {
        const auto extent = static_cast<std::size_t>(layoutOf(type).extent);
        const bool isWhole = kind == 5 && inPlace && kMayLeaveWhole;
        const std::size_t first = isWhole ? static_cast<std::size_t>(counts[0]) * extent : 0;
        if (test.rank == 0 && (kind == 3 || isWhole)) {
          std::memset(r + first, 0, static_cast<std::size_t>(total) * extent - first);
        }
      });
}

// ---- movements

struct Plan {  // of the blocks of all ranks in one buffer
  std::vector<int> counts, displs;
  int end;
};
// Blocks of these lengths, in this rank's own order and with gaps of its own.
Plan place(const std::vector<int>& counts, bool inARow, Random& random) {
  Plan plan{counts, std::vector<int>(counts.size()), 0};
  std::vector<std::size_t> order(counts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (!inARow) std::shuffle(order.begin(), order.end(), random);
  for (const std::size_t i : order) {
    if (!inARow) plan.end += static_cast<int>(random() % 3);
    plan.displs[i] = plan.end;
    plan.end += counts[i];
  }
  return plan;
}

// The same blocks, each of a datatype of its own, and where they begin, in bytes.
struct Mixed {
  Mixed(Test& test, const std::vector<MPI_Datatype>& alike, const Plan& plan) {
    for (const int place : plan.displs) {
      types.push_back(test.pick(alike));
      begins.push_back(place * Buffer::kMostExtent -
                       static_cast<int>(std::min<MPI_Aint>(0, layoutOf(types.back()).begin)));
    }
  }
  std::vector<MPI_Datatype> types;
  std::vector<int> begins;
};

void move(Test& test, const std::vector<MPI_Datatype>& alike, int drawn) {
  // Where a rank is alone, Open MPI's own MPI_Alltoallw moves nothing.
  const int kind = test.ranks > 1 ? drawn : drawn % (kMovements - 1);
  const int count = mostOf(alike[0], test.drawCount() / (4 * test.ranks)), root = test.draw(test.ranks);
  // MPICH's own MPI_Alltoallv and MPI_Alltoallw fail in place with this datatype.
  const bool inPlace = test.coin() && !(kind >= 8 && alike[0] == MPI_LONG_DOUBLE_INT);
  // Where a rank is alone, MPICH's own MPI_Allgatherv puts its block at the beginning, wherever it belongs.
  const bool atRoot = test.rank == root, inARow = test.coin() || (kind == 5 && test.ranks == 1);
  const MPI_Datatype sendType = test.pick(alike), recvType = test.pick(alike);
  const auto n = static_cast<std::size_t>(test.ranks);
  // lengths[i][j]: of the block that rank i sends to rank j
  std::vector<std::vector<int>> lengths(n, std::vector<int>(n));
  for (auto& row : lengths) {
    for (int& each : row) each = test.draw(count + 1);
  }
  if (inPlace && kind >= 8) {  // what is sent has the length of what comes
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < i; ++j) lengths[i][j] = lengths[j][i];
    }
  }
  const auto me = static_cast<std::size_t>(test.rank);
  std::vector<int> toOthers = lengths[me], toMe(n), ofEach(n);
  for (std::size_t i = 0; i < n; ++i) toMe[i] = lengths[i][me], ofEach[i] = lengths[i][i];
  const Plan out = place(kind >= 8 ? toOthers : ofEach, inARow, test.own),
             in = place(kind >= 8 ? toMe : ofEach, inARow, test.own);
  const int mine = ofEach[me];
  what = "movement " + std::to_string(kind) + " of " + std::to_string(count) + (inPlace ? " in place" : "");

  Buffer send(std::max(count * test.ranks, out.end)), recv(std::max(count * test.ranks, in.end));
  send.randomize(test.own);
  recv.randomize(test.own);
  const void* const here = MPI_IN_PLACE;
  // Datatypes with data before their address need room there.
  const auto shifted = [](unsigned char* buffer, MPI_Datatype type) {
    return buffer - std::min<MPI_Aint>(0, layoutOf(type).begin);
  };
  const Mixed outMixed(test, alike, out), inMixed(test, alike, in);
  compare(
      test, send, recv,
      [&](unsigned char* sent, unsigned char* received, bool own) {
        unsigned char* const s = shifted(sent, sendType);
        unsigned char* const r = shifted(received, recvType);
        const void* const from = inPlace ? here : s;
        const void* const toRoot = inPlace && atRoot ? here : s;
        void* const atPlace = inPlace && atRoot ? MPI_IN_PLACE : r;
        const MPI_Comm comm = test.comm;
        switch (kind) {
          case 0: (own ? ITS_OWN(MPI_Bcast) : MPI_Bcast)(r, count, recvType, root, comm); break;
          case 1:
            (own ? ITS_OWN(MPI_Allgather) : MPI_Allgather)(from, count, sendType, r, count, recvType, comm);
            break;
          case 2:
            (own ? ITS_OWN(MPI_Gather) : MPI_Gather)(toRoot, count, sendType, r, count, recvType, root, comm);
            break;
          case 3:
            (own ? ITS_OWN(MPI_Scatter) : MPI_Scatter)(s, count, sendType, atPlace, count, recvType, root, comm);
            break;
          case 4: (own ? ITS_OWN(MPI_Alltoall) : MPI_Alltoall)(from, count, sendType, r, count, recvType, comm); break;
          case 5:
            (own ? ITS_OWN(MPI_Allgatherv) : MPI_Allgatherv)(from, mine, sendType, r, in.counts.data(),
                                                             in.displs.data(), recvType, comm);
            break;
          case 6:
            (own ? ITS_OWN(MPI_Gatherv) : MPI_Gatherv)(toRoot, mine, sendType, r, in.counts.data(), in.displs.data(),
                                                       recvType, root, comm);
            break;
          case 7:
            (own ? ITS_OWN(MPI_Scatterv) : MPI_Scatterv)(s, out.counts.data(), out.displs.data(), sendType, atPlace,
                                                         mine, recvType, root, comm);
            break;
          case 8:
            (own ? ITS_OWN(MPI_Alltoallv) : MPI_Alltoallv)(from, out.counts.data(), out.displs.data(), sendType, r,
                                                           in.counts.data(), in.displs.data(), recvType, comm);
            break;
          default:
            (own ? ITS_OWN(MPI_Alltoallw) : MPI_Alltoallw)(
                inPlace ? here : sent, out.counts.data(), outMixed.begins.data(), outMixed.types.data(), received,
                in.counts.data(), inMixed.begins.data(), inMixed.types.data(), comm);
        }
      },
      [](unsigned char*) {});
}

// ---- communicators

std::vector<MPI_Comm> communicators() {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<MPI_Comm> made(5, MPI_COMM_WORLD);
  MPI_Comm_dup(MPI_COMM_WORLD, &made[1]);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &made[2]);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &made[3]);  // in reverse
  int dims[] = {0}, periods[] = {1};
  MPI_Dims_create(ranks, 1, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 1, &made[4]);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Rounds rounds(std::atoi(argv[1]), argc > 3 ? std::atof(argv[3]) : 0);
  Random order(std::strtoull(argv[2], nullptr, 0));  // the same on all ranks of the world
  int worldRank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &worldRank);
  const std::vector<Number> all = numbers();
  const std::vector<MPI_Datatype> derived = fourInts();
  std::vector<MPI_Comm> comms = communicators();
  Deck kinds(kReductions + kMovements + 1);
  while (rounds.next()) {
    MPI_Comm& comm = comms[order() % comms.size()];
    const std::uint64_t seed = order(), choice = order();
    Test test{comm, 0, 0, Random(seed), Random(seed * 1000 + static_cast<unsigned>(worldRank))};
    MPI_Comm_rank(comm, &test.rank);
    MPI_Comm_size(comm, &test.ranks);
    const int kind = kinds.draw(order);
    const Number& number = all[choice / 2 % all.size()];
    if (kind < kReductions) {
      reduce(test, number, kind);
    } else if (kind < kReductions + kMovements) {
      // Predefined ones, with gaps or without, or any of those that are alike, on each rank another.
      move(test, choice % 2 == 0 ? derived : std::vector<MPI_Datatype>{number.datatype}, kind - kReductions);
    } else {
      MPI_Barrier(comm);
    }
    if (choice % 100 == 0 && comm != MPI_COMM_WORLD) {  // a handle may be given out again
      MPI_Comm_free(&comm);
      MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    }
  }
  for (MPI_Comm& each : comms) {
    if (each != MPI_COMM_WORLD && each != comms[1]) MPI_Comm_free(&each);  // one is left to MPI_Finalize
  }
  if (worldRank == 0) std::printf("%d rounds agree\n", rounds.done());
  MPI_Finalize();
  return 0;
}
