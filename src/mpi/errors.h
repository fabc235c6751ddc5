// From Kolo's errors to the MPI's.
//
// Thread safety: all functions, raise() as far as the MPI underneath was initialised for threads.
#pragma once

#include <kolo/kolo.h>

#include "mpi/mpi_header.h"

namespace kolo::mpi {

inline int classOf(koloResult_t result) {
  switch (result) {
    case koloSuccess: return MPI_SUCCESS;
    case koloMismatch: return MPI_ERR_TRUNCATE;  // mostly of counts
    case koloOutOfMemory: return MPI_ERR_NO_MEM;
    case koloInvalidOverlap:
    case koloInvalidPointer: return MPI_ERR_BUFFER;
    case koloInvalidCount: return MPI_ERR_COUNT;
    default: return MPI_ERR_OTHER;
  }
}

// As the MPI raises an error: by the communicator's handler, which may not return.
inline int raise(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace kolo::mpi
