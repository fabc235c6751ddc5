// MPI 4's large counts, in collectives and in the constructors of datatypes, and elements of more than 2 GiB, one thing
// for each run.
//
// usage: kolo-mpi-large-FAMILY types|counts|element
//   "counts" ends with "no large counts" where the MPI is of version 3; "types" has that version's constructors then.
#include <algorithm>
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

#if MPI_VERSION >= 4
using Count = MPI_Count;
using Place = MPI_Count;
#define LARGE(name, ...) name##_c(__VA_ARGS__)
#else
using Count = int;
using Place = MPI_Aint;
#define LARGE(name, ...) name(__VA_ARGS__)
#endif

// ---- types

// Four ints, and where they lie, in the order of the signature.
struct Type {
  const char* name;
  std::vector<std::size_t> places;
  std::function<void(MPI_Datatype*)> make;
};

std::vector<Type> types() {
  static const Count ones[] = {1, 3}, twos[] = {2, 2};
  static const Count last[] = {5, 0}, blocks[] = {4, 0};
  static const Place lastBytes[] = {20, 0}, blockBytes[] = {16, 0}, swapped[] = {8, 0}, inOrder[] = {0, 8};
  static const Count sizes[] = {2, 4}, parts[] = {2, 2}, starts[] = {0, 1}, whole[] = {4};
  static const int blockwise[] = {MPI_DISTRIBUTE_BLOCK}, usual[] = {MPI_DISTRIBUTE_DFLT_DARG}, one[] = {1};
  static const MPI_Datatype ints[] = {MPI_INT, MPI_INT};
  constexpr int c = MPI_ORDER_C;
  const auto of = [](const auto& made, const auto& make) {
    return [=](MPI_Datatype* type) {
      MPI_Datatype inner = MPI_DATATYPE_NULL;
      made(&inner);
      make(inner, type);
      MPI_Type_free(&inner);
    };
  };
  const auto contiguous = [](MPI_Datatype* type) { LARGE(MPI_Type_contiguous, 4, MPI_INT, type); };
  const auto pair = [](MPI_Datatype* type) { LARGE(MPI_Type_vector, 1, 2, 2, MPI_INT, type); };
  const auto twice = [](MPI_Datatype inner, MPI_Datatype* type) { LARGE(MPI_Type_contiguous, 2, inner, type); };
  const auto apart = [](MPI_Datatype inner, MPI_Datatype* type) { LARGE(MPI_Type_create_resized, inner, 0, 24, type); };
  const auto same = [](MPI_Datatype inner, MPI_Datatype* type) { MPI_Type_dup(inner, type); };
  return {
      {"contiguous", {0, 1, 2, 3}, contiguous},
      {"vector", {0, 1, 5, 6}, [](MPI_Datatype* t) { LARGE(MPI_Type_vector, 2, 2, 5, MPI_INT, t); }},
      {"dense vector", {0, 1, 2, 3}, [](MPI_Datatype* t) { LARGE(MPI_Type_vector, 2, 2, 2, MPI_INT, t); }},
      {"hvector", {0, 1, 4, 5}, [](MPI_Datatype* t) { LARGE(MPI_Type_create_hvector, 2, 2, 16, MPI_INT, t); }},
      {"indexed", {5, 0, 1, 2}, [](MPI_Datatype* t) { LARGE(MPI_Type_indexed, 2, ones, last, MPI_INT, t); }},
      {"hindexed",
       {5, 0, 1, 2},
       [](MPI_Datatype* t) { LARGE(MPI_Type_create_hindexed, 2, ones, lastBytes, MPI_INT, t); }},
      {"indexed block",
       {4, 5, 0, 1},
       [](MPI_Datatype* t) { LARGE(MPI_Type_create_indexed_block, 2, 2, blocks, MPI_INT, t); }},
      {"hindexed block",
       {4, 5, 0, 1},
       [](MPI_Datatype* t) { LARGE(MPI_Type_create_hindexed_block, 2, 2, blockBytes, MPI_INT, t); }},
      {"struct", {2, 3, 0, 1}, [](MPI_Datatype* t) { LARGE(MPI_Type_create_struct, 2, twos, swapped, ints, t); }},
      {"dense struct", {0, 1, 2, 3}, [](MPI_Datatype* t) { LARGE(MPI_Type_create_struct, 2, twos, inOrder, ints, t); }},
      {"subarray",
       {1, 2, 5, 6},
       [](MPI_Datatype* t) { LARGE(MPI_Type_create_subarray, 2, sizes, parts, starts, c, MPI_INT, t); }},
      {"darray",
       {0, 1, 2, 3},
       [](MPI_Datatype* t) { LARGE(MPI_Type_create_darray, 1, 0, 1, whole, blockwise, usual, one, c, MPI_INT, t); }},
      {"resized", {0, 1, 2, 3}, of(contiguous, apart)},
      {"duplicate", {0, 1, 2, 3}, of(contiguous, same)},
      {"contiguous of vectors", {0, 1, 2, 3}, of(pair, twice)}};
}

// A broadcast between elements of two types, blocking or not; all ranks but the root have the second.
void broadcast(const Type& given, const Type& taken, int root, bool isLater) {
  const Type& its = rank == root ? given : taken;
  const std::string name = std::string("a broadcast from ") + given.name + " to " + taken.name;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  its.make(&type);
  MPI_Type_commit(&type);
  std::vector<int> buffer(8, -1), expected(8, -1);
  for (int i = 0; i < 4; ++i) {
    expected[its.places[at(i)]] = i;
    if (rank == root) buffer[its.places[at(i)]] = i;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  if (isLater) {
    MPI_Ibcast(buffer.data(), 1, type, root, MPI_COMM_WORLD, &request);
  } else {
    MPI_Bcast(buffer.data(), 1, type, root, MPI_COMM_WORLD);
  }
  MPI_Type_free(&type);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  expect(buffer == expected, name + " brings all, and nothing else");
}

void constructors() {
  const std::vector<Type> all = types();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const bool isLater : {false, true}) {
      broadcast(all[i], all[i], static_cast<int>(i) % ranks, isLater);
      broadcast(all[i], all[(i + 3) % all.size()], static_cast<int>(i) % ranks, isLater);
    }
  }
}

// ---- counts

#if MPI_VERSION >= 4

// What a rank gives each rank, or takes from each: as many elements as the number of the rank that takes them, and one
// more.
template <class Number, class Displacement>
struct Arrays {
  Arrays() {
    for (int i = 0; i < ranks; ++i) {
      ofEach.push_back(static_cast<Number>(i + 1));
      mine.push_back(static_cast<Number>(rank + 1));
      places.push_back(static_cast<Displacement>(6 * i));
      bytes.push_back(static_cast<Displacement>(6 * i * 12));
    }
  }
  std::vector<Number> ofEach, mine;
  std::vector<Displacement> places, bytes;
};

struct Data {
  std::vector<int> sent, received;
};
Data fresh() {
  Data data{std::vector<int>(at(18 * ranks + 36)), std::vector<int>(at(18 * ranks + 36), -1)};
  for (std::size_t i = 0; i < data.sent.size(); ++i) data.sent[i] = 1000 * rank + static_cast<int>(i);
  return data;
}

// call(function, arrays, send, recv, request...)
template <class Own, class Large, class LargeLater, class Call>
void compare(const std::string& name, Own own, Large large, LargeLater later, const Call& call) {
  const Arrays<int, int> narrow;
  const Arrays<MPI_Count, MPI_Aint> wide;
  Data expected = fresh(), now = fresh(), then = fresh();
  MPI_Request request = MPI_REQUEST_NULL;
  call(own, narrow, expected.sent.data(), expected.received.data());
  call(large, wide, now.sent.data(), now.received.data());
  call(later, wide, then.sent.data(), then.received.data(), &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (const Data* each : {&now, &then}) {
    expect(each->received == expected.received && each->sent == expected.sent,
           name + (each == &now ? "_c" : "_c, nonblocking,") + " does what the MPI's own does with narrow counts");
  }
}
#define COMPARE(Name, INonblocking, ...)                     \
  compare("MPI_" #Name, ITS_OWN(MPI_##Name), MPI_##Name##_c, \
          MPI_##INonblocking##_c, [=](auto f, const auto& a, auto s, auto r, auto... q) __VA_ARGS__)

void moveMany(MPI_Datatype type, int root) {
  const MPI_Comm comm = MPI_COMM_WORLD;
  const std::vector<MPI_Datatype> types(at(ranks), type);
  const MPI_Datatype* const t = types.data();
  const int m = rank + 1;
  COMPARE(Bcast, Ibcast, { (void)a, (void)s, f(r, 3, type, root, comm, q...); });
  COMPARE(Allgather, Iallgather, { (void)a, f(s, 3, type, r, 3, type, comm, q...); });
  COMPARE(Allgatherv, Iallgatherv, { f(s, m, type, r, a.ofEach.data(), a.places.data(), type, comm, q...); });
  COMPARE(Gather, Igather, { (void)a, f(s, 3, type, r, 3, type, root, comm, q...); });
  COMPARE(Gatherv, Igatherv, { f(s, m, type, r, a.ofEach.data(), a.places.data(), type, root, comm, q...); });
  COMPARE(Scatter, Iscatter, { (void)a, f(s, 3, type, r, 3, type, root, comm, q...); });
  COMPARE(Scatterv, Iscatterv, { f(s, a.ofEach.data(), a.places.data(), type, r, m, type, root, comm, q...); });
  COMPARE(Alltoall, Ialltoall, { (void)a, f(s, 3, type, r, 3, type, comm, q...); });
  COMPARE(Alltoallv, Ialltoallv,
          { f(s, a.ofEach.data(), a.places.data(), type, r, a.mine.data(), a.places.data(), type, comm, q...); });
  COMPARE(Alltoallw, Ialltoallw,
          { f(s, a.ofEach.data(), a.bytes.data(), t, r, a.mine.data(), a.bytes.data(), t, comm, q...); });
}

void reduceMany(int root) {
  const MPI_Comm comm = MPI_COMM_WORLD;
  const MPI_Datatype type = MPI_INT;
  const MPI_Op op = MPI_SUM;
  COMPARE(Allreduce, Iallreduce, { (void)a, f(s, r, 5, type, op, comm, q...); });
  COMPARE(Reduce, Ireduce, { (void)a, f(s, r, 5, type, op, root, comm, q...); });
  COMPARE(Reduce_scatter_block, Ireduce_scatter_block, { (void)a, f(s, r, 5, type, op, comm, q...); });
  COMPARE(Reduce_scatter, Ireduce_scatter, { f(s, r, a.ofEach.data(), type, op, comm, q...); });
  COMPARE(Scan, Iscan, { (void)a, f(s, r, 5, type, op, comm, q...); });
  COMPARE(Exscan, Iexscan, { (void)a, f(s, r, 5, type, op, comm, q...); });
}

// Two ints of three.
void counts() {
  MPI_Datatype gapped = MPI_DATATYPE_NULL, apart = MPI_DATATYPE_NULL;
  MPI_Type_vector_c(2, 1, 2, MPI_INT, &gapped);
  MPI_Type_create_resized_c(gapped, 0, 3 * sizeof(int), &apart);
  MPI_Type_commit(&apart);
  for (int root = 0; root < ranks; ++root) {
    moveMany(apart, root);
    reduceMany(root);
  }
  MPI_Type_free(&gapped);
  MPI_Type_free(&apart);
}

#else

void counts() {
  if (rank == 0) std::printf("no large counts\n");
}

#endif

// ---- an element of more than 2 GiB

// The same MiB, which has a gap, again and again: that many bytes move, and few are in memory but for the copies.
void element() {
  constexpr int kPieces = 2049, kHalf = 1 << 17, kGap = 7;  // of ints
  MPI_Datatype piece = MPI_DATATYPE_NULL, many = MPI_DATATYPE_NULL;
  MPI_Type_vector(2, kHalf, kHalf + kGap, MPI_INT, &piece);
  MPI_Type_create_hvector(kPieces, 1, 0, piece, &many);
  MPI_Type_commit(&many);
  MPI_Count size = 0;
  MPI_Type_size_x(many, &size);
  expect(size > (MPI_Count{1} << 31), "an element has more than 2 GiB");
  std::vector<int> buffer(2 * kHalf + kGap, -1), expected(buffer.size(), -1);
  for (int i = 0; i < 2 * kHalf; ++i) expected[at(i < kHalf ? i : i + kGap)] = i;
  if (rank == 0) buffer = expected;
  MPI_Bcast(buffer.data(), 1, many, 0, MPI_COMM_WORLD);
  expect(buffer == expected, "a broadcast brings it, and leaves the gap");
  MPI_Type_free(&piece);
  MPI_Type_free(&many);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> all = {
      {"types", constructors}, {"counts", counts}, {"element", element}};
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
