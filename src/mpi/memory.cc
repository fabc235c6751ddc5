// The functions by which programs get memory, under their two names. What other ranks can map comes from here (pool.h); sessions
// tell them of it.
#include <cstdlib>
#include <new>
#include <optional>

#include "mpi/errors.h"
#include "mpi/pool.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

// What the program asks for by MPI 4's hint, or 1; nothing for what the pool cannot promise.
std::optional<std::size_t> alignmentOf(MPI_Info info) {
  constexpr std::size_t kMost = 4096;
  char text[32] = "";
  int isThere = 0;
  if (info != MPI_INFO_NULL) PMPI_Info_get(info, const_cast<char*>("mpi_minimum_memory_alignment"), sizeof text - 1, text, &isThere);
  if (isThere == 0) return 1;
  const std::size_t asked = std::strtoul(text, nullptr, 10);
  const bool isPowerOfTwo = asked != 0 && (asked & (asked - 1)) == 0;
  return isPowerOfTwo && asked <= kMost ? std::optional(asked) : std::nullopt;
}

int getAlloc_mem(MPI_Aint size, MPI_Info info, void* baseptr) {
  if (size > 0 && baseptr != nullptr && Session::mayBe()) {
    const auto alignment = alignmentOf(info);
    void* const block = alignment ? pool().take(static_cast<std::size_t>(size), *alignment) : nullptr;
    if (block != nullptr) {
      countAllocated();
      *static_cast<void**>(baseptr) = block;
      return MPI_SUCCESS;
    }
  }
  return underneath().Alloc_mem(size, info, baseptr);
}

int getFree_mem(void* base) { return pool().give(base) ? MPI_SUCCESS : underneath().Free_mem(base); }

}  // namespace

#define MEMORY(Name, parameters, arguments)                                                   \
  extern "C" __attribute__((visibility("default"))) int MPI_##Name parameters {               \
    try {                                                                                     \
      return get##Name arguments;                                                             \
    } catch (const std::bad_alloc&) {                                                         \
      return raise(MPI_COMM_SELF, MPI_ERR_NO_MEM);                                            \
    }                                                                                         \
  }                                                                                           \
  extern "C" __attribute__((visibility("default"), alias("MPI_" #Name))) int PMPI_##Name parameters;
#include "mpi/memory.inc"
#undef MEMORY

}  // namespace kolo::mpi
