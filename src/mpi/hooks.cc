// The functions by which programs call: each collective under its two names, MPI_ and PMPI_. Under the second come the calls of Open
// MPI's Fortran, and those of tools that have taken the first.
#include <new>

#include "mpi/accelerated.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

int classOf(koloResult_t result) {
  switch (result) {
    case koloMismatch: return MPI_ERR_TRUNCATE;   // mostly of counts
    case koloOutOfMemory: return MPI_ERR_NO_MEM;
    case koloInvalidOverlap:
    case koloInvalidPointer: return MPI_ERR_BUFFER;
    case koloInvalidCount: return MPI_ERR_COUNT;
    default: return MPI_ERR_OTHER;
  }
}

// As the MPI raises an error: by the communicator's handler, which may not return.
int raise(MPI_Comm comm, int code) {
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

int conclude(Hook hook, const Session& session, koloResult_t result) {
  if (result == koloSuccess) return MPI_SUCCESS;
  complain(std::string(nameOf(hook)) + " on rank " + std::to_string(session.rank()) + ": " + koloGetLastError(nullptr));
  return raise(session.comm(), classOf(result));
}

// attempt(Accelerated&) -> Outcome; pass() calls the MPI underneath.
template <class Attempt, class Pass>
int call(Hook hook, MPI_Comm comm, const Attempt& attempt, const Pass& pass) noexcept {
  const char* why = "the communicator has one rank, or two groups, or is without Kolo";
  try {
    if (Session* const session = Session::of(comm)) {
      Accelerated accelerated(*session);
      const Outcome outcome = attempt(accelerated);
      why = outcome.whyDeclined();
      if (why == nullptr) {
        countAccelerated(hook);
        return conclude(hook, *session, outcome.result());
      }
    }
  } catch (const MpiError& error) {
    return error.code;
  } catch (const std::bad_alloc&) {
    return raise(comm, MPI_ERR_NO_MEM);
  }
  countPassed(hook, why);
  return pass();
}

}  // namespace

namespace narrow {
using Count = int;
using Counts = const int*;
using Displs = const int*;
#define COLLECTIVE(Name, parameters, arguments)                                                             \
  extern "C" __attribute__((visibility("default"))) int MPI_##Name parameters {                             \
    return call(                                                                                            \
        Hook::k##Name, comm, [&](Accelerated& kolo) { return kolo.try##Name arguments; },                   \
        [&] { return underneath().Name arguments; });                                                       \
  }                                                                                                         \
  extern "C" __attribute__((visibility("default"), alias("MPI_" #Name))) int PMPI_##Name parameters;
#include "mpi/collectives.inc"
#undef COLLECTIVE
}  // namespace narrow

#if MPI_VERSION >= 4
namespace wide {
using Count = MPI_Count;
using Counts = const MPI_Count*;
using Displs = const MPI_Aint*;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, parameters, arguments)                                                             \
  extern "C" __attribute__((visibility("default"))) int MPI_##Name##_c parameters {                         \
    return call(                                                                                            \
        Hook::k##Name, comm, [&](Accelerated& kolo) { return kolo.try##Name arguments; },                   \
        [&] { return underneathLarge().Name arguments; });                                                  \
  }                                                                                                         \
  extern "C" __attribute__((visibility("default"), alias("MPI_" #Name "_c"))) int PMPI_##Name##_c parameters;
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
}  // namespace wide
#endif

}  // namespace kolo::mpi
