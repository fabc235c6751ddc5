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
#define FUNCTION(Name, parameters, arguments) find(its.Name, names, "PMPI_" #Name);
#include "mpi/functions.inc"
#undef FUNCTION
  return its;
}

#if MPI_VERSION >= 4
UnderneathLarge findAllLarge(Names names) {
  reachMpi();
  UnderneathLarge its;
#define KOLO_MPI_COUNTS_ONLY
#define FUNCTION(Name, parameters, arguments) find(its.Name, names, "PMPI_" #Name "_c");
#include "mpi/functions.inc"
#undef FUNCTION
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
#define FUNCTION(Name, parameters, arguments) isOther |= following().Name != underneath().Name;
#include "mpi/functions.inc"
#undef FUNCTION
    return isOther;
  }();
  return is;
}

}  // namespace kolo::mpi
