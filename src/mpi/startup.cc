// The functions by which programs initialise the MPI, under their two names. All ranks are in them together, so that
// MPI_COMM_WORLD gets its counterpart here, and even a program's first collective may be a nonblocking one. Where no
// rank calls these by name, the first blocking collective makes it.
#include <new>

#include "mpi/session.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

// call(the functions to go on by)
template <class Call>
int startUp(const Call& call) {
  const int code = PassedOn::carryOutBy(call);
  try {
    if (code == MPI_SUCCESS && !PassedOn::isUnderWay())
      (void)Session::of(MPI_COMM_WORLD);  // else this was a tool's call, in the program's
  } catch (const std::bad_alloc&) {
    // The first collective will try again, and say so.
  }
  return code;
}

}  // namespace

#define FUNCTION(Name, parameters, arguments)                                  \
  KOLO_MPI_DEFINE(Name, parameters) {                                          \
    return startUp([&](const Underneath& its) { return its.Name arguments; }); \
  }
#include "mpi/startup.inc"
#undef FUNCTION

}  // namespace kolo::mpi
