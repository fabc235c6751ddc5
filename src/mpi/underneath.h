// The MPI underneath: its own collectives. By their names, MPI_ and PMPI_ alike, they are the interposer's; so they are looked up
// behind it.
//
// Thread safety: all functions.
#pragma once

#include "mpi/mpi_header.h"

namespace kolo::mpi {

struct Underneath {
  using Count = int;
  using Counts = const int*;
  using Displs = const int*;
#define COLLECTIVE(Name, parameters, arguments) int(*Name) parameters;
#include "mpi/collectives.inc"
#undef COLLECTIVE
};

// Ends the process where the MPI has no such function: then it is none.
const Underneath& underneath();

#if MPI_VERSION >= 4
struct UnderneathLarge {
  using Count = MPI_Count;
  using Counts = const MPI_Count*;
  using Displs = const MPI_Aint*;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, parameters, arguments) int(*Name) parameters;
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
};
const UnderneathLarge& underneathLarge();
#endif

}  // namespace kolo::mpi
