// A call of a collective, as its arguments describe it: what a rank gives, and what it gets. collectives.inc describes
// each of MPI's collectives once. What Kolo is asked for (accelerated.h), which buffers have copies on the host
// (on_host.h) and how much the call moves follow from the description.
#pragma once

#include <cstddef>

#include "mpi/mpi_header.h"
#include "mpi/regions.h"
#include "mpi/report.h"

namespace kolo::mpi {

// Blocks of elements in one of a call's buffers.
struct Side {
  enum class Blocks : char {
    kNone,
    kOne,      // `count` elements
    kOwn,      // as many as this rank has of `counts`
    kEach,     // for each rank `count` elements, one block behind the other
    kInARow,   // for rank i counts[i] elements, one block behind the other
    kCounted,  // the same, displs[i] elements behind the buffer's begin
    kTyped     // for rank i counts[i] elements of datatypes[i], displs[i] bytes behind the buffer's begin
  };

  void* buffer() const { return *argument; }
  bool isInPlace() const { return buffer() == MPI_IN_PLACE; }
  bool isOfAllRanks() const { return blocks >= Blocks::kEach; }
  bool isCounted() const { return blocks >= Blocks::kInARow; }
  // Elements for rank i. REQUIRES: the arrays are there.
  MPI_Count countOf(int i) const { return isCounted() || blocks == Blocks::kOwn ? counts[i] : count; }

  Blocks blocks = Blocks::kNone;
  void** argument = nullptr;  // the call's, which OnHost gives another value
  MPI_Count count = 0;
  Numbers counts{}, displs{};
  MPI_Datatype datatype{};
  const MPI_Datatype* datatypes = nullptr;
};

// Pointer: void* or const void*.
template <class Pointer>
Side one(Pointer& buffer, MPI_Count count, MPI_Datatype datatype) {
  return {Side::Blocks::kOne, const_cast<void**>(&buffer), count, {}, {}, datatype};
}
template <class Pointer>
Side own(Pointer& buffer, const Numbers& counts, MPI_Datatype datatype) {
  return {Side::Blocks::kOwn, const_cast<void**>(&buffer), 0, counts, {}, datatype};
}
template <class Pointer>
Side each(Pointer& buffer, MPI_Count count, MPI_Datatype datatype) {
  return {Side::Blocks::kEach, const_cast<void**>(&buffer), count, {}, {}, datatype};
}
template <class Pointer>
Side inARow(Pointer& buffer, const Numbers& counts, MPI_Datatype datatype) {
  return {Side::Blocks::kInARow, const_cast<void**>(&buffer), 0, counts, {}, datatype};
}
template <class Pointer>
Side counted(Pointer& buffer, const Numbers& counts, const Numbers& displs, MPI_Datatype datatype) {
  return {Side::Blocks::kCounted, const_cast<void**>(&buffer), 0, counts, displs, datatype};
}
template <class Pointer>
Side typed(Pointer& buffer, const Numbers& counts, const Numbers& displs, const MPI_Datatype* datatypes) {
  return {Side::Blocks::kTyped, const_cast<void**>(&buffer), 0, counts, displs, {}, datatypes};
}

// From which ranks to which: from each to every other, to those of higher rank, or to or from a root.
struct Flow {
  enum class Kind : char { kAmongAll, kUpwards, kToRoot, kFromRoot };
  bool isRooted() const { return kind == Kind::kToRoot || kind == Kind::kFromRoot; }

  Kind kind;
  int root = 0;
};
inline Flow amongAll() { return {Flow::Kind::kAmongAll}; }
inline Flow upwards() { return {Flow::Kind::kUpwards}; }
inline Flow toRoot(int root) { return {Flow::Kind::kToRoot, root}; }
inline Flow fromRoot(int root) { return {Flow::Kind::kFromRoot, root}; }

struct Collective {
  // Whether every rank needs something from every other.
  bool waitsForAll() const { return flow.kind == Flow::Kind::kAmongAll; }
  // How many bytes the call moves: a number that is the same on all ranks of one group, because each rank counts what
  // MPI wants to be alike. It is 0 for collectives in which a rank knows its own part only (MPI_Gatherv, MPI_Scatterv,
  // MPI_Alltoallv and MPI_Alltoallw). REQUIRES: the MPI has accepted the arguments.
  std::size_t volume(int rank, int ranks) const;

  Hook name;  // of the form that blocks
  MPI_Comm comm;
  Side given, taken;
  Flow flow;
  const MPI_Op* op = nullptr;  // of a collective that calculates
};

}  // namespace kolo::mpi
