// What MPI programs may do with the arguments of collectives, and what these leave as it was, one thing for each run.
//
// usage: kolo-mpi-arguments-FAMILY arrays|tails
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
    expect(value(from, 0) == what && value(from, 1) == what + 1, name + " brings rank " + std::to_string(from) + "'s block");
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
      : ones(std::vector<int>(at(ranks), 1)), displs(places(1)), begins(places(sizeof(int))), sent(std::vector<MPI_Datatype>(at(ranks), out.datatype)),
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
  bool toEach, fromEach;   // whether a rank gives each rank a block of its own, and whether it gets one from each
  int root;                // of what has one: the only rank that gives, or gets; else -1
  std::function<void(const Arrays&, int*, int*, MPI_Request*)> start;
};

std::vector<Vector> vectors() {
  const MPI_Comm world = MPI_COMM_WORLD;
  const int root = ranks - 1;
  return {
      {"MPI_Iallgatherv", false, true, -1, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Iallgatherv(s + 1, 1, a.out.datatype, r, a.ones.data(), a.displs.data(), a.in.datatype, world, request);
       }},
      {"MPI_Igatherv", false, true, root, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Igatherv(s + 1, 1, a.out.datatype, r, a.ones.data(), a.displs.data(), a.in.datatype, root, world, request);
       }},
      {"MPI_Iscatterv", true, false, root, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Iscatterv(s, a.ones.data(), a.displs.data(), a.out.datatype, r + 1, 1, a.in.datatype, root, world, request);
       }},
      {"MPI_Ialltoallv", true, true, -1, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Ialltoallv(s, a.ones.data(), a.displs.data(), a.out.datatype, r, a.ones.data(), a.displs.data(), a.in.datatype, world, request);
       }},
      {"MPI_Ialltoallw", true, true, -1, [=](const Arrays& a, int* s, int* r, MPI_Request* request) {
         MPI_Ialltoallw(s, a.ones.data(), a.begins.data(), a.sent.data(), r, a.ones.data(), a.begins.data(), a.received.data(), world, request);
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

// Both MPIs have read the arrays when a nonblocking call returns, and programs (mpi4py) reuse or free them then, though MPI 3.1 forbids it in section 5.12.
void arrays() {
  for (const Vector& vector : vectors()) {
    for (int round = 0; round < 12; ++round) moveWithArrays(vector, round % 2 == 1, round / 2 % 2 == 1, round);
  }
  std::vector<int> in(at(2 * ranks), rank), out(2, -1);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ireduce_scatter(in.data(), out.data(), Lent<int>(std::vector<int>(at(ranks), 2)).data(), MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(out == std::vector<int>(2, ranks * (ranks - 1) / 2), "MPI_Ireduce_scatter has the sum");
}

// ---- tails

struct Scatter {
  const char* name;
  bool areEqual;   // the blocks: of two numbers, else rank i has i + 1
  std::function<void(void*, const int*, MPI_Datatype, MPI_Op, MPI_Request*)> start;
};

std::vector<Scatter> scatters() {
  const MPI_Comm world = MPI_COMM_WORLD;
  return {
      {"MPI_Reduce_scatter", false, [=](void* buffer, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Request*) {
         MPI_Reduce_scatter(MPI_IN_PLACE, buffer, counts, type, op, world);
       }},
      {"MPI_Reduce_scatter_block", true, [=](void* buffer, const int*, MPI_Datatype type, MPI_Op op, MPI_Request*) {
         MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, 2, type, op, world);
       }},
      {"MPI_Ireduce_scatter", false, [=](void* buffer, const int* counts, MPI_Datatype type, MPI_Op op, MPI_Request* request) {
         MPI_Ireduce_scatter(MPI_IN_PLACE, buffer, counts, type, op, world, request);
       }},
      {"MPI_Ireduce_scatter_block", true, [=](void* buffer, const int*, MPI_Datatype type, MPI_Op op, MPI_Request* request) {
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
  expect(buffer == expected, std::string(scatter.name) + " in place has its result at the beginning, and leaves the rest as it was");
}

// Both MPIs leave what lies behind the result; of pairs they calculate for Kolo.
void tails() {
  for (const Scatter& scatter : scatters()) {
    scatterInPlace<int>(scatter, MPI_INT, MPI_SUM, [](int of, int i) { return of + i; },
                        [](int i) { return ranks * i + ranks * (ranks - 1) / 2; });
    scatterInPlace<Place>(scatter, MPI_2INT, MPI_MAXLOC, [](int of, int i) { return Place{of == i % ranks ? 7 : of, of}; },
                          [](int i) { return Place{7, i % ranks}; });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> all = {{"arrays", arrays}, {"tails", tails}};
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
