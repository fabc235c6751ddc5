// MPI's predefined operations, and for which numbers MPI defines them.
#pragma once

#include <kolo/kolo.h>

#include "mpi/datatypes.h"
#include "mpi/mpi_header.h"

namespace kolo::mpi {

struct Operator {
  bool isDefinedFor(Kind kind) const { return (kinds >> static_cast<int>(kind) & 1U) != 0; }

  MPI_Op op;
  bool isNative;  // Kolo has it, as `kolo`
  koloRedOp_t kolo;
  unsigned kinds;  // bit k: for Kind k
};

// nullptr: the program's own, or none for collectives.
const Operator* findOperator(MPI_Op op);

// Whether MPI defines a predefined operation on a predefined datatype, of a length that Kolo can carry.
bool isCovered(MPI_Op op, MPI_Datatype datatype);
// Whether Kolo calculates it itself, of what is covered.
bool isNative(MPI_Op op, MPI_Datatype datatype);

}  // namespace kolo::mpi
