// The MPI that this build of the interposer is for, without its C++ bindings.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>

// MPI 4's functions for datatypes of large counts. The MPI underneath may be an older one of the same binary interface:
// it has neither these nor such datatypes.
#if MPI_VERSION >= 4
#pragma weak PMPI_Type_get_envelope_c
#pragma weak PMPI_Type_get_contents_c
#pragma weak PMPI_Pack_c
#pragma weak PMPI_Unpack_c
#endif

namespace kolo::mpi {

#if MPI_VERSION >= 4
inline bool hasLargeCounts() { return PMPI_Type_get_envelope_c != nullptr; }
#endif

// Handles are pointers in one MPI and integers in the other; both convert.
template <class Handle>
std::uintptr_t keyOf(Handle handle) {
  return (std::uintptr_t)handle;   // NOLINT
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
