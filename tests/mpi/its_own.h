// The MPI's own collectives, whatever is preloaded: found in its library itself. They are what results are compared
// with.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>

namespace kolo::test {

// `interposed` gives the type: itsOwn("PMPI_Bcast", MPI_Bcast).
template <class Function>
Function itsOwn(const char* name, Function) {
  Dl_info where{};
  void* library = dladdr(reinterpret_cast<void*>(&MPI_Get_processor_name), &where) != 0
                      ? dlopen(where.dli_fname, RTLD_LAZY)
                      : nullptr;
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    std::fprintf(stderr, "%s is not in the MPI's own library\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}
#define ITS_OWN(name) kolo::test::itsOwn("P" #name, name)

}  // namespace kolo::test
