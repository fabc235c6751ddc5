#include "mpi/underneath.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace kolo::mpi {
namespace {

template <class Function>
void find(Function& place, const char* name) {
  place = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (place != nullptr) return;
  std::fprintf(stderr, "kolo-mpi: the MPI that was loaded has no %s; expected the one that this library was built for\n", name);
  std::abort();
}

}  // namespace

const Underneath& underneath() {
  static const Underneath found = [] {
    Underneath its;
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  find(its.Name, "PMPI_" #Name);                              \
  find(its.INonblocking, "PMPI_" #INonblocking);
#include "mpi/collectives.inc"
#undef COLLECTIVE
#define COMPLETION(Name, parameters, arguments) find(its.Name, "PMPI_" #Name);
#include "mpi/completions.inc"
#undef COMPLETION
#define MEMORY(Name, parameters, arguments) find(its.Name, "PMPI_" #Name);
#include "mpi/memory.inc"
#undef MEMORY
    return its;
  }();
  return found;
}

#if MPI_VERSION >= 4
const UnderneathLarge& underneathLarge() {
  static const UnderneathLarge found = [] {
    UnderneathLarge its;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  find(its.Name, "PMPI_" #Name "_c");                         \
  find(its.INonblocking, "PMPI_" #INonblocking "_c");
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
    return its;
  }();
  return found;
}
#endif

}  // namespace kolo::mpi
