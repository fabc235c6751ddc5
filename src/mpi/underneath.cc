#include "mpi/underneath.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace kolo::mpi {
namespace {

enum class Names { kOwn, kProfiling };

// The address of MPI_... or PMPI_....
template <class Function>
void find(Function& place, Names names, const char* profiling) {
  const char* const name = profiling + (names == Names::kOwn ? 1 : 0);
  place = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
  if (place != nullptr) return;
  std::fprintf(
      stderr,
      "kolo-mpi: the program's MPI, %s, has no %s; expected the one that this library was built for, or a newer one\n",
      nameOfMpi().c_str(), name);
  std::abort();
}

Underneath findAll(Names names) {
  reachMpi();
  Underneath its;
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  find(its.Name, names, "PMPI_" #Name);                       \
  find(its.INonblocking, names, "PMPI_" #INonblocking);
#include "mpi/collectives.inc"
#undef COLLECTIVE
#define COMPLETION(Name, parameters, arguments) find(its.Name, names, "PMPI_" #Name);
#include "mpi/completions.inc"
#undef COMPLETION
#define MEMORY(Name, parameters, arguments) find(its.Name, names, "PMPI_" #Name);
#include "mpi/memory.inc"
#undef MEMORY
#define STARTUP(Name, parameters, arguments) find(its.Name, names, "PMPI_" #Name);
#include "mpi/startup.inc"
#undef STARTUP
  return its;
}

#if MPI_VERSION >= 4
UnderneathLarge findAllLarge(Names names) {
  reachMpi();
  UnderneathLarge its;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  find(its.Name, names, "PMPI_" #Name "_c");                  \
  find(its.INonblocking, names, "PMPI_" #INonblocking "_c");
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
  return its;
}
#endif

}  // namespace

const Underneath& underneath() {
  static const Underneath found = findAll(Names::kProfiling);
  return found;
}

const Underneath& following() {
  static const Underneath found = findAll(Names::kOwn);
  return found;
}

#if MPI_VERSION >= 4
const UnderneathLarge& underneathLarge() {
  static const UnderneathLarge found = findAllLarge(Names::kProfiling);
  return found;
}

const UnderneathLarge& followingLarge() {
  static const UnderneathLarge found = findAllLarge(Names::kOwn);
  return found;
}
#endif

// In an MPI both names are one function.
bool isToolBehind() {
  static const bool is = [] {
    bool isOther = false;
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  isOther |= following().Name != underneath().Name || following().INonblocking != underneath().INonblocking;
#include "mpi/collectives.inc"
#undef COLLECTIVE
#define COMPLETION(Name, parameters, arguments) isOther |= following().Name != underneath().Name;
#include "mpi/completions.inc"
#undef COMPLETION
#define MEMORY(Name, parameters, arguments) isOther |= following().Name != underneath().Name;
#include "mpi/memory.inc"
#undef MEMORY
#define STARTUP(Name, parameters, arguments) isOther |= following().Name != underneath().Name;
#include "mpi/startup.inc"
#undef STARTUP
    return isOther;
  }();
  return is;
}

}  // namespace kolo::mpi
