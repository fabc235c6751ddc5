// The functions by which programs call: each collective under its two names, MPI_ and PMPI_. Under the second come the
// calls of Open MPI's Fortran, and those of tools that have taken the first.
#include <memory>
#include <new>

#include "mpi/accelerated.h"
#include "mpi/collective.h"
#include "mpi/errors.h"
#include "mpi/on_host.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/started.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

int fail(Hook hook, const Session& session, koloResult_t result) {
  complain(std::string(nameOf(hook)) + " on rank " + std::to_string(session.rank()) + ": " + koloGetLastError(nullptr));
  return raise(session.comm(), classOf(result));
}

constexpr const char* kTooYoung =
    "the communicator's use so far is not worth the cost of a counterpart (KOLO_MPI_COMM_AFTER)";

// Whether the MPI began with a call that ended with this. It refuses wrong arguments on one rank alone, and then that
// rank has called nothing yet. Whatever else fails the ranks have called alike.
bool hasBegun(int code) {
  if (code == MPI_SUCCESS) return true;
  int its = MPI_ERR_UNKNOWN;
  PMPI_Error_class(code, &its);
  return its == MPI_ERR_TRUNCATE || its == MPI_ERR_OTHER || its == MPI_ERR_INTERN || its == MPI_ERR_UNKNOWN;
}

// A call for the MPI, or a tool before it. How much it moves counts for a young session.
template <class Pass>
int passOn(Hook hook, const Collective& its, Session* young, const char* why, const Pass& pass, bool blocks) {
  countPassed(hook, young != nullptr ? kTooYoung : why);
  const int code = PassedOn::carryOut(pass);
  if (young != nullptr && hasBegun(code))
    young->grow(its.volume(young->rank(), young->ranks()), blocks && its.waitsForAll());
  return code;
}

// After a call that succeeded: what its copies of a GPU's buffers have for the program. request: of the nonblocking
// form, else nullptr.
int store(MPI_Comm comm, std::unique_ptr<OnHost> buffers, const MPI_Request* request) {
  if (buffers == nullptr) return MPI_SUCCESS;
  const int code = request == nullptr ? buffers->store() : storeWhenComplete(*request, std::move(buffers));
  return code == MPI_SUCCESS ? code : raise(comm, code);
}

// pass(whether to what follows) calls the MPI underneath, or a tool before it. request: of the nonblocking form. That
// one may not wait for other ranks, and so makes no counterpart.
template <bool blocks, class Pass>
int call(Hook hook, const Collective& its, MPI_Request* request, const Pass& pass) noexcept {
  if (PassedOn::isUnderWay()) return pass(false);
  const char* why = "the communicator has one rank, or two groups, or is without Kolo";
  Session* young = nullptr;
  try {
    std::unique_ptr<OnHost> buffers = OnHost::isNeeded() ? OnHost::of(hook, its) : nullptr;
    Session* const session = blocks               ? Session::of(its.comm, &young)
                             : request != nullptr ? Session::existing(its.comm, &young)
                                                  : nullptr;
    if (session != nullptr) {
      std::unique_ptr<Task> task;
      const Outcome outcome = blocks ? carryOut(its, *session) : start(its, *session, task);
      why = outcome.whyDeclined;
      if (why == nullptr) {
        countAccelerated(hook);
        if (outcome.result != koloSuccess) return fail(hook, *session, outcome.result);
        if (!blocks) return giveRequest(*session, hook, std::move(task), std::move(buffers), request);
        return store(its.comm, std::move(buffers), nullptr);
      }
    }
    const int code = passOn(hook, its, young, why, pass, blocks);
    return code == MPI_SUCCESS ? store(its.comm, std::move(buffers), request) : code;
  } catch (const MpiError& error) {
    return error.code;
  } catch (const std::bad_alloc&) {
    return raise(its.comm, MPI_ERR_NO_MEM);
  }
}

}  // namespace

#define KOLO_MPI_HOOKS(Name, INonblocking, suffix, its, next, parameters, arguments, description) \
  KOLO_MPI_DEFINE(Name##suffix, parameters) {                                                     \
    const Collective collective{Hook::k##Name, comm, KOLO_MPI_WITHOUT_PARENTHESES description};   \
    return call<true>(Hook::k##Name, collective, nullptr,                                         \
                      [&](bool isNext) { return (isNext ? next() : its()).Name arguments; });     \
  }                                                                                               \
  KOLO_MPI_DEFINE(INonblocking##suffix, KOLO_MPI_NONBLOCKING(parameters)) {                       \
    const Collective collective{Hook::k##Name, comm, KOLO_MPI_WITHOUT_PARENTHESES description};   \
    return call<false>(Hook::k##INonblocking, collective, request, [&](bool isNext) {             \
      return (isNext ? next() : its()).INonblocking KOLO_MPI_WITH_REQUEST(arguments);             \
    });                                                                                           \
  }

namespace narrow {
using Count = int;
using Counts = const int*;
using Displs = const int*;
#define COLLECTIVE(Name, INonblocking, parameters, arguments, description) \
  KOLO_MPI_HOOKS(Name, INonblocking, , underneath, following, parameters, arguments, description)
#include "mpi/collectives.inc"
#undef COLLECTIVE
}  // namespace narrow

#if MPI_VERSION >= 4
namespace wide {
using Count = MPI_Count;
using Counts = const MPI_Count*;
using Displs = const MPI_Aint*;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, INonblocking, parameters, arguments, description) \
  KOLO_MPI_HOOKS(Name, INonblocking, _c, underneathLarge, followingLarge, parameters, arguments, description)
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
}  // namespace wide
#endif

}  // namespace kolo::mpi
