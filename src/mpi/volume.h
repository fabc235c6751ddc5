// How much data a collective moves: a number that is the same on all ranks, because each rank counts what MPI wants to
// be alike. It is 0 for collectives in which a rank knows its own part only (MPI_Gatherv, MPI_Scatterv, MPI_Alltoallv
// and MPI_Alltoallw).
//
// REQUIRES: the MPI has accepted the arguments.
#pragma once

#include <cstddef>

#include "mpi/regions.h"

namespace kolo::mpi {

class Volume {
 public:
  using Count = MPI_Count;
  using Counts = Numbers;
  using Displs = Numbers;

  // Of a communicator of one group.
  Volume(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

#define COLLECTIVE(Name, INonblocking, parameters, arguments) std::size_t Name parameters const;
#include "mpi/collectives.inc"
#undef COLLECTIVE

 private:
  std::size_t ofBlocks(MPI_Count count, MPI_Datatype datatype) const;
  std::size_t ofAll(const Numbers& counts, MPI_Datatype datatype) const;

  int rank_, ranks_;
};

}  // namespace kolo::mpi
