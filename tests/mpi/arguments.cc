// What MPI programs may do with the arguments of collectives, and what these leave as it was, one thing for each run.
//
// usage: kolo-mpi-arguments-FAMILY arrays|tails|refused|twice|lengths|between
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "expect.h"

namespace {

using kolo::test::expect;
using kolo::test::rank;
using kolo::test::ranks;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// An array for one call, which the program has no more when that has returned.
template <class T>
class Lent {
 public:
  explicit Lent(std::vector<T> values) : values_(std::move(values)) {}
  Lent(const Lent&) = delete;
  ~Lent() { std::memset(static_cast<void*>(values_.data()), 0x55, values_.size() * sizeof(T)); }
  const T* data() const { return values_.data(); }

 private:
  std::vector<T> values_;
};

// ---- arrays

// Two ints for each rank, with gaps before and behind: these lie apart in memory, and their datatype has a gap or none.
constexpr int kApart = 7;

struct Pairs {
  explicit Pairs(bool hasGap) : apart(hasGap ? 2 : 1), buffer(at(kApart * ranks), -1) {
    MPI_Datatype two = MPI_DATATYPE_NULL;
    MPI_Type_vector(2, 1, apart, MPI_INT, &two);
    MPI_Type_create_resized(two, 0, sizeof(int), &datatype);
    MPI_Type_commit(&datatype);
    MPI_Type_free(&two);
  }
  // Of rank i, from the first int on.
  int& value(int i, int which) { return buffer[at(kApart * i + 1 + which * apart)]; }
  void give(int to, int what) {
    value(to, 0) = what;
    value(to, 1) = what + 1;
  }
  void expectAt(int from, int what, const std::string& name) {
    expect(value(from, 0) == what && value(from, 1) == what + 1,
           name + " brings rank " + std::to_string(from) + "'s block");
    value(from, 0) = value(from, 1) = -1;
  }
  void expectNothingElse(const std::string& name) const {
    for (const int each : buffer) expect(each == -1, name + " leaves the gaps alone");
  }

  int apart;
  std::vector<int> buffer;
  MPI_Datatype datatype = MPI_DATATYPE_NULL;
};

// The arguments of one call, gone when it has returned, as are its datatypes.
struct Arrays {
  explicit Arrays(Pairs& out, Pairs& in)
      : ones(std::vector<int>(at(ranks), 1)), displs(places(1)), begins(places(sizeof(int))),
        sent(std::vector<MPI_Datatype>(at(ranks), out.datatype)),
        received(std::vector<MPI_Datatype>(at(ranks), in.datatype)), out(out), in(in) {}
  ~Arrays() {
    MPI_Type_free(&out.datatype);
    MPI_Type_free(&in.datatype);
  }
  static std::vector<int> places(std::size_t unit) {
    std::vector<int> made;
    for (int i = 0; i < ranks; ++i) made.push_back((kApart * i + 1) * static_cast<int>(unit));
    return made;
  }

  Lent<int> ones, displs, begins;
  Lent<MPI_Datatype> sent, received;
  Pairs& out;
  Pairs& in;
};

struct Vector {
  const char* name;
  bool toEach, fromEach;  // whether a rank gives each rank a block of its own, and whether it gets one from each
  int root;               // of what has one: the only rank that gives, or gets; else -1
  std::function<void(const Arrays&, int*, int*, MPI_Request*)> start;
};

std::vector<Vector> vectors() {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int root = ranks - 1;
  return {
      {"MPI_Iallgatherv", false, true, -1,
       [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Iallgatherv(s + 1, 1, a.out.datatype, r, a.ones.data(), a.displs.data(), a.in.datatype, world, request);
       }},
      {"MPI_Igatherv", false, true, root,
       [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Igatherv(s + 1, 1, a.out.datatype, r, a.ones.data(), a.displs.data(), a.in.datatype, root, world, request);
       }},
      {"MPI_Iscatterv", true, false, root,
       [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Iscatterv(s, a.ones.data(), a.displs.data(), a.out.datatype, r + 1, 1, a.in.datatype, root, world,
                       request);
       }},
      {"MPI_Ialltoallv", true, true, -1,
       [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Ialltoallv(s, a.ones.data(), a.displs.data(), a.out.datatype, r, a.ones.data(), a.displs.data(),
                        a.in.datatype, world, request);
       }},
      {"MPI_Ialltoallw", true, true, -1, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Ialltoallw(s, a.ones.data(), a.begins.data(), a.sent.data(), r, a.ones.data(), a.begins.data(),
                        a.received.data(), world, request);
       }}};
}

void moveWithArrays(const Vector& vector, bool sendGap, bool recvGap, int round) {
  Pairs out(sendGap), in(recvGap);
  const auto given = [&](int from, int to) { return 1000 * round + 2 * (ranks * from + (vector.toEach ? to : 0)); };
  for (int i = 0; i < ranks; ++i) out.give(i, given(rank, i));
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const Arrays arrays(out, in);
    vector.start(arrays, out.buffer.data(), in.buffer.data(), &request);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  const bool isRoot = rank == vector.root, hasRoot = vector.root >= 0;
  if (!vector.fromEach) {
    in.expectAt(0, given(vector.root, rank), vector.name);
  } else if (isRoot || !hasRoot) {
    for (int i = 0; i < ranks; ++i) in.expectAt(i, given(i, rank), vector.name);
  }
  in.expectNothingElse(vector.name);
}

// Both MPIs have read the arrays when a nonblocking call returns, and programs (mpi4py) reuse or free them then, though
// MPI 3.1 forbids it in section 5.12.
void arrays() {
  for (const Vector& vector : vectors()) {
    for (int round = 0; round < 12; ++round) moveWithArrays(vector, round % 2 == 1, round / 2 % 2 == 1, round);
  }
  std::vector<int> in(at(2 * ranks), rank), out(2, -1);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ireduce_scatter(in.data(), out.data(), Lent<int>(std::vector<int>(at(ranks), 2)).data(), MPI_INT, MPI_SUM,
                      MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(out == std::vector<int>(2, ranks * (ranks - 1) / 2), "MPI_Ireduce_scatter has the sum");
}

// ---- tails

struct Scatter {
  const char* name;
  bool areEqual;  // the blocks: of two numbers, else rank i has i + 1
  std::function<void(void*, const int*, MPI_Datatype, MPI_Op, MPI_Request*)> start;
};

std::vector<Scatter> scatters() {
  const MPI_Comm world = MPI_COMM_WORLD;
  return {{"MPI_Reduce_scatter", false,
           [=](void* buffer, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Request*) {
             MPI_Reduce_scatter(MPI_IN_PLACE, buffer, counts, type, op, world);
           }},
          {"MPI_Reduce_scatter_block", true,
           [=](void* buffer, const int*, MPI_Datatype type, MPI_Op op, MPI_Request*) {
             MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, 2, type, op, world);
           }},
          {"MPI_Ireduce_scatter", false,
           [=](void* buffer, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Request* request) {
             MPI_Ireduce_scatter(MPI_IN_PLACE, buffer, counts, type, op, world, request);
           }},
          {"MPI_Ireduce_scatter_block", true,
           [=](void* buffer, const int*, MPI_Datatype type, MPI_Op op, MPI_Request* request) {
             MPI_Ireduce_scatter_block(MPI_IN_PLACE, buffer, 2, type, op, world, request);
           }}};
}

struct Place {
  int value, owner;
  bool operator==(const Place& other) const { return value == other.value && owner == other.owner; }
};

// own(rank, i): the number at i that a rank has; folded(i): that of all ranks.
template <class T, class Own, class Folded>
void scatterInPlace(const Scatter& scatter, MPI_Datatype type, MPI_Op op, const Own& own, const Folded& folded) {
  std::vector<int> counts;
  std::size_t before = 0, total = 0;
  for (int i = 0; i < ranks; ++i) {
    counts.push_back(scatter.areEqual ? 2 : i + 1);
    if (i == rank) before = total;
    total += at(counts.back());
  }
  std::vector<T> buffer, expected;
  for (std::size_t i = 0; i < total; ++i) buffer.push_back(own(rank, static_cast<int>(i)));
  expected = buffer;
  for (std::size_t i = 0; i < at(counts[at(rank)]); ++i) expected[i] = folded(static_cast<int>(before + i));
  MPI_Request request = MPI_REQUEST_NULL;
  scatter.start(buffer.data(), counts.data(), type, op, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(buffer == expected,
         std::string(scatter.name) + " in place has its result at the beginning, and leaves the rest as it was");
}

// Both MPIs leave what lies behind the result; of pairs they calculate for Kolo.
void tails() {
  for (const Scatter& scatter : scatters()) {
    scatterInPlace<int>(
        scatter, MPI_INT, MPI_SUM, [](int of, int i) { return of + i; },
        [](int i) { return ranks * i + ranks * (ranks - 1) / 2; });
    scatterInPlace<Place>(
        scatter, MPI_2INT, MPI_MAXLOC,
        [](int of, int i) {
          return Place{of == i % ranks ? 7 : of, of};
        },
        [](int i) {
          return Place{7, i % ranks};
        });
  }
}

// ---- refused

int sumOfRanks() { return ranks * (ranks - 1) / 2; }

int classOf(int code) {
  int its = MPI_SUCCESS;
  MPI_Error_class(code, &its);
  return its;
}

// A call that is refused on one rank. What overlaps but in part, only Kolo notices, in a nonblocking call when it comes
// to that.
constexpr int kWrongCalls = 7;
int callWrongly(int how, int root, MPI_Comm comm) {
  int values[] = {rank, rank, rank};
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_SUCCESS;
  switch (how) {
    case 0: return MPI_Reduce(values, values, 1, MPI_INT, MPI_SUM, root, comm);
    case 1: return MPI_Bcast(values, 1, MPI_INT, ranks, comm);
    case 2: return MPI_Ireduce(values, values, 1, MPI_INT, MPI_SUM, root, comm, &request);
    case 3: return MPI_Allgather(values, -1, MPI_INT, values + 1, 1, MPI_INT, comm);
    case 4: return MPI_Allgather(values, 1, MPI_DATATYPE_NULL, values + 1, 1, MPI_INT, comm);
    case 5: return MPI_Allreduce(values, values + 1, 2, MPI_INT, MPI_SUM, comm);
    default:
      code = MPI_Iallreduce(values, values + 1, 2, MPI_INT, MPI_SUM, comm, &request);
      return code != MPI_SUCCESS ? code : MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
}

// It waits for nobody, though other ranks come to what is under way after this one only.
void refuseWhileOthersWait() {
  int sum = -1, token = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank != 0) MPI_Recv(&token, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  if (rank == 0) {
    expect(callWrongly(1, 0, MPI_COMM_WORLD) != MPI_SUCCESS, "a call is refused while another is under way");
    for (int i = 1; i < ranks; ++i) MPI_Send(&token, 1, MPI_INT, i, 0, MPI_COMM_WORLD);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(sum == sumOfRanks(), "the sum that was under way is right");
}

// A rank whose call was refused makes up for it. Many times, for ranks look for new memory at the first call, at the
// third, at the seventh and so on.
void refused() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  for (int round = 0; round < 6 * kWrongCalls; ++round) {
    const int how = round % kWrongCalls, root = round / kWrongCalls % ranks;
    const std::string name = "way " + std::to_string(how);
    if (rank == root) {
      expect(callWrongly(how, root, MPI_COMM_WORLD) != MPI_SUCCESS, name + " to call wrongly is refused");
    }
    int sum = -1;
    expect(MPI_Reduce(&rank, &sum, 1, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD) == MPI_SUCCESS,
           "the right call succeeds after " + name);
    expect(rank != root || sum == sumOfRanks(), "the sum is right after " + name);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    expect(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS && sum == sumOfRanks(),
           "later calls succeed after " + name);
  }
  refuseWhileOthersWait();
}

// ---- the same buffer twice

// Three ints in the place of each rank's block, one or two of which are the block.
struct Blocks {
  explicit Blocks(int sent, int received)
      : sent(at(ranks), sent), received(at(ranks), received), types(at(ranks), MPI_INT) {
    for (int i = 0; i < ranks; ++i) {
      displs.push_back(3 * i);
      begins.push_back(displs.back() * static_cast<int>(sizeof(int)));
    }
  }

  std::vector<int> sent, received, displs, begins;
  std::vector<MPI_Datatype> types;
};

constexpr int kMovements = 9;
bool isScatter(int kind) { return kind == 2 || kind == 3; }
bool isForEachPair(int kind) { return kind >= 6; }

// As many ints as there are in the first rank's block. isOne: the arrays of what is sent are those of what is received.
int move(int kind, const int* send, int* recv, int root, const Blocks& b, bool isOne, MPI_Comm comm) {
  const MPI_Datatype type = MPI_INT;
  const int given = b.sent[0], taken = b.received[0];
  const std::vector<int>& sent = isOne ? b.received : b.sent;
  const std::vector<MPI_Datatype> others = b.types;
  switch (kind) {
    case 0: return MPI_Gather(send, given, type, recv, taken, type, root, comm);
    case 1: return MPI_Gatherv(send, given, type, recv, b.received.data(), b.displs.data(), type, root, comm);
    case 2: return MPI_Scatter(send, given, type, recv, taken, type, root, comm);
    case 3: return MPI_Scatterv(send, b.sent.data(), b.displs.data(), type, recv, taken, type, root, comm);
    case 4: return MPI_Allgather(send, given, type, recv, taken, type, comm);
    case 5: return MPI_Allgatherv(send, given, type, recv, b.received.data(), b.displs.data(), type, comm);
    case 6: return MPI_Alltoall(send, given, type, recv, taken, type, comm);
    case 7:
      return MPI_Alltoallv(send, sent.data(), b.displs.data(), type, recv, b.received.data(), b.displs.data(), type,
                           comm);
    default:
      return MPI_Alltoallw(send, sent.data(), b.begins.data(), (isOne ? b.types : others).data(), recv,
                           b.received.data(), b.begins.data(), b.types.data(), comm);
  }
}

#ifdef OPEN_MPI
constexpr bool kTakesBufferTwice = true;
#else
constexpr bool kTakesBufferTwice = false;
#endif

// Where a rank's block begins in a buffer with all: three ints apart, if that is said.
std::size_t placeOf(int kind, int i) { return at(kind == 1 || kind == 3 || kind == 5 || kind >= 7 ? 3 * i : i); }

void moveTwice(int kind, int who, bool isOne) {
  const Blocks blocks(1, 1);
  const std::string name = "movement " + std::to_string(kind) + " with one buffer on rank " + std::to_string(who);
  std::vector<int> send(at(3 * ranks), -1), recv(at(3 * ranks), -1);
  for (int i = 0; i < ranks; ++i) send[placeOf(kind, i)] = 100 * rank + i;
  const std::vector<int> given = send;
  int* const place = rank == who ? send.data() : recv.data();
  int code = move(kind, send.data(), place, who, blocks, isOne, MPI_COMM_WORLD);
  const bool isNoticed = kind == 6 || (kind > 6 && isOne) || (kind < 6 && who == 0);
  const bool isRefused = rank == who && !kTakesBufferTwice && isNoticed;
  expect((code != MPI_SUCCESS) == isRefused, name + (isRefused ? " is refused" : " succeeds"));
  if (isRefused) code = move(kind, given.data(), place, who, blocks, isOne, MPI_COMM_WORLD);
  expect(code == MPI_SUCCESS, name + " succeeds in the end");
  if (isScatter(kind)) {
    expect(place[0] == 100 * who + rank, name + " brings the root's block");
  } else if (kind >= 4 || rank == who) {
    const int own = isForEachPair(kind) ? rank : 0;  // the block that others have for this rank
    for (int i = 0; i < ranks; ++i) {
      expect(place[placeOf(kind, i)] == 100 * i + own, name + " brings rank " + std::to_string(i) + "'s block");
    }
  }
}

// MPI forbids it. MPICH refuses it where it notices: in a gather or scatter where a rank's own block lies where it
// goes. Else both MPIs do what was meant, while the other ranks have called rightly.
void twice() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int kind = 0; kind < kMovements; ++kind) {
    for (int who = 0; who < ranks; ++who) {
      moveTwice(kind, who, false);
      if (kind > 6) moveTwice(kind, who, true);
    }
  }
}

// ---- lengths

// The first rank, a root, gives itself two ints, and takes another number. It fails on all ranks, and so does what they
// call later.
void differ(int kind, int taken) {
  const std::string name =
      "movement " + std::to_string(kind) + " of which a rank takes " + std::to_string(taken) + " ints of two";
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Barrier(comm);
  const std::vector<int> send(at(3 * ranks), rank);
  std::vector<int> recv(send.size(), -1);
  int code = move(kind, send.data(), recv.data(), 0, Blocks(2, rank == 0 ? taken : 2), false, comm);
  expect(rank != 0 || code != MPI_SUCCESS, name + " fails there");
  if (code == MPI_SUCCESS) code = MPI_Barrier(comm);  // who had done its part before is told here
  expect(classOf(code) == MPI_ERR_TRUNCATE, name + " fails on all ranks");
  expect(MPI_Barrier(comm) != MPI_SUCCESS, name + " ends the communicator's collectives");
  MPI_Comm_free(&comm);
}

void lengths() {
  for (int kind = 0; kind < kMovements; ++kind) {
    differ(kind, 1);
    differ(kind, 3);
  }
  // Where all ranks do so it is the MPI's affair, which does not mind blocks that are shorter than their places.
  std::vector<int> recv(at(3 * ranks), -1);
  MPI_Allgather(&rank, 1, MPI_INT, recv.data(), 3, MPI_INT, MPI_COMM_WORLD);
  for (int i = 0; i < ranks; ++i) expect(recv[at(3 * i)] == i, "short blocks come if all ranks call alike");
}

// ---- between

// What a rank gives lies between the places of what it takes, or the other way round: no byte is both.
void between() {
  const Blocks blocks(1, 1);
  const int root = ranks - 1;
  for (const int kind : {1, 3, 5, 7, 8}) {
    const std::string name = "movement " + std::to_string(kind) + " between";
    std::vector<int> buffer(at(3 * ranks + 1), -1);
    const bool givesAll = isScatter(kind) || isForEachPair(kind), takesAll = !isScatter(kind);
    int* const given = buffer.data() + 1;  // the places of blocks are three ints apart
    for (int i = 0; i < (givesAll ? ranks : 1); ++i) given[3 * i] = 100 * rank + i;
    const std::vector<int> before = buffer;
    expect(move(kind, given, buffer.data(), root, blocks, false, MPI_COMM_WORLD) == MPI_SUCCESS, name + " succeeds");
    std::vector<int> expected = before;
    const int own = isForEachPair(kind) ? rank : 0;
    if (isScatter(kind)) expected[0] = 100 * root + rank;
    for (int i = 0; takesAll && (kind != 1 || rank == root) && i < ranks; ++i) expected[at(3 * i)] = 100 * i + own;
    expect(buffer == expected, name + " brings all blocks, and leaves what was given");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> all = {{"arrays", arrays},   {"tails", tails},
                                                            {"refused", refused}, {"twice", twice},
                                                            {"lengths", lengths}, {"between", between}};
  const std::string what = argc > 1 ? argv[1] : "";
  if (all.find(what) == all.end()) return 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  all.at(what)();
  if (rank == 0) std::printf("%s: ok\n", what.c_str());
  MPI_Finalize();
  return 0;
}
