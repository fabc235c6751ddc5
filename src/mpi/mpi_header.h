// The MPI that this build of the interposer is for, without its C++ bindings.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdint>

namespace kolo::mpi {

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
