// The MPI that this build of the interposer is for, without its C++ bindings.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>

#include "mpi/called.h"
#include "mpi/loaded.h"

#ifdef OPEN_MPI
// Handles are addresses of objects in a library that is not there yet when the interposer is loaded.
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) (static_cast<type>(kolo::mpi::mpiObject<#global>()))
#endif

namespace kolo::mpi {

#if MPI_VERSION >= 4
inline bool hasLargeCounts() {
  static const bool has = isInMpi("PMPI_Type_get_envelope_c");
  return has;
}
#endif

// Handles are pointers in one MPI and integers in the other; both convert.
template <class Handle>
std::uintptr_t keyOf(Handle handle) {
  return (std::uintptr_t)handle;  // NOLINT
}

// MPI forbids a program to give the same buffer twice. MPICH refuses it where it notices; Open MPI (but for MPI_Reduce)
// does what was meant, and so does MPICH where it does not notice. Programs rely on that, and it may be one rank alone
// that does it.
#ifdef OPEN_MPI
inline constexpr bool kTakesBufferTwice = true;
#else
inline constexpr bool kTakesBufferTwice = false;
#endif

}  // namespace kolo::mpi
