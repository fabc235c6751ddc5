// The functions by which programs call: each collective under its two names, MPI_ and PMPI_. Under the second come the
// calls of Open MPI's Fortran, and those of tools that have taken the first.
#include <new>

#include "mpi/accelerated.h"
#include "mpi/errors.h"
#include "mpi/on_host.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/started.h"
#include "mpi/underneath.h"
#include "mpi/volume.h"

namespace kolo::mpi {
namespace {

int fail(Hook hook, const Session& session, koloResult_t result) {
  complain(std::string(nameOf(hook)) + " on rank " + std::to_string(session.rank()) + ": " + koloGetLastError(nullptr));
  return raise(session.comm(), classOf(result));
}

constexpr const char* kTooYoung =
    "the communicator's use so far is not worth the cost of a counterpart (KOLO_MPI_COMM_AFTER)";

// Whether every rank needs something from every other.
constexpr bool waitsForAll(Hook hook) {
  switch (hook) {
    case Hook::kBcast:
    case Hook::kIbcast:
    case Hook::kReduce:
    case Hook::kIreduce:
    case Hook::kScan:
    case Hook::kIscan:
    case Hook::kExscan:
    case Hook::kIexscan:
    case Hook::kGather:
    case Hook::kIgather:
    case Hook::kGatherv:
    case Hook::kIgatherv:
    case Hook::kScatter:
    case Hook::kIscatter:
    case Hook::kScatterv:
    case Hook::kIscatterv: return false;
    default: return true;
  }
}

// Whether the MPI began with a call that ended with this. It refuses wrong arguments on one rank alone, and then that
// rank has called nothing yet. Whatever else fails the ranks have called alike.
bool hasBegun(int code) {
  if (code == MPI_SUCCESS) return true;
  int its = MPI_ERR_UNKNOWN;
  PMPI_Error_class(code, &its);
  return its == MPI_ERR_TRUNCATE || its == MPI_ERR_OTHER || its == MPI_ERR_INTERN || its == MPI_ERR_UNKNOWN;
}

// A call for the MPI, or a tool before it. volume(const Volume&): how much it moves, which counts for a young session.
template <class Pass, class Measure>
int passOn(Hook hook, Session* young, const char* why, const Pass& pass, const Measure& volume, bool blocks) {
  countPassed(hook, young != nullptr ? kTooYoung : why);
  const int code = PassedOn::carryOut(pass);
  if (young != nullptr && hasBegun(code)) {
    young->grow(volume(Volume(young->rank(), young->ranks())), blocks && waitsForAll(hook));
  }
  return code;
}

// attempt(Accelerated&) -> Outcome; pass(whether to what follows) calls the MPI underneath, or a tool before it;
// volume(const Volume&).
template <class Attempt, class Pass, class Measure>
[[gnu::always_inline]] inline int call(Hook hook, MPI_Comm comm, const Attempt& attempt, const Pass& pass,
                                       const Measure& volume) noexcept {
  if (PassedOn::isUnderWay()) return pass(false);
  const char* why = "the communicator has one rank, or two groups, or is without Kolo";
  Session* young = nullptr;
  try {
    if (Session* const session = Session::of(comm, &young)) {
      Accelerated accelerated(*session, nullptr, waitsForAll(hook));
      const Outcome outcome = attempt(accelerated);
      why = outcome.whyDeclined();
      if (why == nullptr) {
        countAccelerated(hook);
        return outcome.result() == koloSuccess ? MPI_SUCCESS : fail(hook, *session, outcome.result());
      }
    }
    return passOn(hook, young, why, pass, volume, true);
  } catch (const MpiError& error) {
    return error.code;
  } catch (const std::bad_alloc&) {
    return raise(comm, MPI_ERR_NO_MEM);
  }
}

// Does what call() does, for nonblocking forms. They may not wait for other ranks, and so make no counterpart. buffers:
// nullptr, or what the arguments are copies of.
template <class Attempt, class Pass, class Measure>
int start(Hook hook, MPI_Comm comm, MPI_Request* request, const Attempt& attempt, const Pass& pass,
          const Measure& volume, std::unique_ptr<OnHost> buffers) noexcept {
  if (PassedOn::isUnderWay()) return pass(false);
  const char* why = "the communicator has one rank, or two groups, or is without Kolo";
  Session* young = nullptr;
  try {
    Session* const session = request != nullptr ? Session::existing(comm, &young) : nullptr;
    if (session != nullptr) {
      std::unique_ptr<Task> task;
      Accelerated accelerated(*session, &task, waitsForAll(hook));
      const Outcome outcome = attempt(accelerated);
      why = outcome.whyDeclined();
      if (why == nullptr) {
        countAccelerated(hook);
        if (outcome.result() != koloSuccess) return fail(hook, *session, outcome.result());
        return giveRequest(*session, hook, std::move(task), std::move(buffers), request);
      }
    }
    const int code = passOn(hook, young, why, pass, volume, false);
    if (buffers == nullptr || code != MPI_SUCCESS || request == nullptr) return code;
    const int stored = storeWhenComplete(*request, std::move(buffers));
    return stored == MPI_SUCCESS ? stored : raise(comm, stored);
  } catch (const MpiError& error) {
    return error.code;
  } catch (const std::bad_alloc&) {
    return raise(comm, MPI_ERR_NO_MEM);
  }
}

int storeNow(MPI_Comm comm, const OnHost& buffers) {
  const int code = buffers.store();
  return code == MPI_SUCCESS ? code : raise(comm, code);
}

// replace(OnHost&) gives the call's arguments copies for what is a GPU's; carryOut(std::unique_ptr<OnHost>) is the call
// then: nullptr: with the program's own buffers.
template <class Replace, class CarryOut>
int withBuffersOnHost(Hook hook, MPI_Comm comm, const Replace& replace, const CarryOut& carryOut) noexcept {
  if (PassedOn::isUnderWay()) return carryOut(nullptr);
  std::unique_ptr<OnHost> buffers;
  try {
    buffers = std::make_unique<OnHost>(hook, comm);
    replace(*buffers);
  } catch (const MpiError& error) {
    return raise(comm, error.code);
  } catch (const std::bad_alloc&) {
    return raise(comm, MPI_ERR_NO_MEM);
  }
  return carryOut(buffers->isAny() ? std::move(buffers) : nullptr);
}

}  // namespace

// A function under its two names.
#define KOLO_MPI_DEFINE(name, parameters)                                                            \
  extern "C" __attribute__((visibility("default"))) int MPI_##name parameters;                       \
  extern "C" __attribute__((visibility("default"), alias("MPI_" #name))) int PMPI_##name parameters; \
  extern "C" int MPI_##name parameters

#define KOLO_MPI_HOOKS(Name, INonblocking, suffix, its, next, parameters, arguments)                            \
  KOLO_MPI_DEFINE(Name##suffix, parameters) {                                                                   \
    const auto carryOut = [&](const std::unique_ptr<OnHost>& buffers) __attribute__((always_inline)) {          \
      const int code = call(                                                                                    \
          Hook::k##Name, comm, [&](Accelerated& kolo) { return kolo.try##Name arguments; },                     \
          [&](bool isNext) { return (isNext ? next() : its()).Name arguments; },                                \
          [&](const Volume& volume) { return volume.Name arguments; });                                         \
      return buffers == nullptr || code != MPI_SUCCESS ? code : storeNow(comm, *buffers);                       \
    };                                                                                                          \
    if (!OnHost::isNeeded()) return carryOut(nullptr);                                                          \
    return withBuffersOnHost(                                                                                   \
        Hook::k##Name, comm, [&](OnHost& onHost) { onHost.Name arguments; }, carryOut);                         \
  }                                                                                                             \
  KOLO_MPI_DEFINE(INonblocking##suffix, KOLO_MPI_NONBLOCKING(parameters)) {                                     \
    const auto carryOut = [&](std::unique_ptr<OnHost> buffers) {                                                \
      return start(                                                                                             \
          Hook::k##INonblocking, comm, request, [&](Accelerated& kolo) { return kolo.try##Name arguments; },    \
          [&](bool isNext) { return (isNext ? next() : its()).INonblocking KOLO_MPI_WITH_REQUEST(arguments); }, \
          [&](const Volume& volume) { return volume.Name arguments; }, std::move(buffers));                     \
    };                                                                                                          \
    if (!OnHost::isNeeded()) return carryOut(nullptr);                                                          \
    return withBuffersOnHost(                                                                                   \
        Hook::k##INonblocking, comm, [&](OnHost& onHost) { onHost.Name arguments; }, carryOut);                 \
  }

namespace narrow {
using Count = int;
using Counts = const int*;
using Displs = const int*;
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  KOLO_MPI_HOOKS(Name, INonblocking, , underneath, following, parameters, arguments)
#include "mpi/collectives.inc"
#undef COLLECTIVE
}  // namespace narrow

#if MPI_VERSION >= 4
namespace wide {
using Count = MPI_Count;
using Counts = const MPI_Count*;
using Displs = const MPI_Aint*;
#define KOLO_MPI_COUNTS_ONLY
#define COLLECTIVE(Name, INonblocking, parameters, arguments) \
  KOLO_MPI_HOOKS(Name, INonblocking, _c, underneathLarge, followingLarge, parameters, arguments)
#include "mpi/collectives.inc"
#undef COLLECTIVE
#undef KOLO_MPI_COUNTS_ONLY
}  // namespace wide
#endif

}  // namespace kolo::mpi
