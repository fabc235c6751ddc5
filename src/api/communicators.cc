// Version, unique ids, and the life of communicators.
#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <thread>

#include "api/checks.h"
#include "api/guard.h"
#include "api/ownership.h"
#include "base/insist.h"
#include "base/log.h"
#include "base/of_thread.h"
#include "base/quiet_thread.h"
#include "bootstrap/control.h"
#include "comm/agreement.h"
#include "comm/factory.h"

namespace kolo::api {
namespace {

// How long an abort waits for what ends by itself.
constexpr std::chrono::milliseconds kAbortPatience{50};

Status initRank(koloComm_t* comm, int ranks, const koloUniqueId& id, int rank, const koloConfig_t* config) {
  KOLO_TRY(checkResult("comm", comm));
  KOLO_TRY(checkRanks(ranks));
  if (rank < 0 || rank >= ranks) return error(koloInvalidRank, "rank is {}, expected 0..{}", rank, ranks - 1);
  const Result<std::uint32_t> growth = bootstrap::growthOf(id);
  if (growth.ok() && growth.value() != 0)
    return error(koloInvalidArgument, "the id is of koloCommGetUniqueId, with which koloCommGrow is to be called");
  const Result<comm::Options> options = comm::Options::make(config, nullptr);
  const auto create = [comm, ranks, id, rank, options]() -> Status {
    const InUse inUse;
    KOLO_ASSIGN(comm::Owned created, comm::createFromId(id, rank, ranks, options));
    return deliver(comm, std::move(created));
  };
  if (caller.openGroups == 0 || !options.ok()) return create();
  comm::groupDefer(create);
  return {};
}

// Waits for what was issued, here and, as far as this rank gave to them, by the others. A communicator that failed is
// not waited for: everything returns by itself. mayWait: otherwise koloInProgress says that others have still to enter,
// and nothing was done.
Status finalize(comm::Communicator& communicator, bool mayWait = true) {
  comm::Requests& started = communicator.requests();
  if (!mayWait && started.hasCollectives()) return Status(koloInProgress, {});
  started.executeCollectives();
  const comm::InTurn served(communicator.turn());
  if (!mayWait && !(started.settlesAtOnce() && communicator.backend().settlesAtOnce()))
    return Status(koloInProgress, {});
  communicator.setFinalized();
  Status messages = started.settle();
  Status others = communicator.backend().settle();
  return messages.ok() ? others : messages;
}

// Then waits for the calls of other threads that are still on their way out.
void destroy(koloComm_t comm, comm::Communicator* communicator) {
  communicators.release(reinterpret_cast<std::uintptr_t>(comm));
  // Windows go with their communicator. Where they cannot, it stays: their handles lead to it.
  const bool areGone = insist([&] {
    const auto isIts = [&](const WindowEntry& entry) { return entry.communicator == communicator; };
    for (WindowEntry* entry : windows.removeAll(isIts)) delete entry;
  });
  if (areGone) return void(delete communicator);
  log::warn("communicator {} is not freed: there is no memory to look for its windows", communicator->options().name);
}

// Frees a communicator that this rank has given up, as soon as no call has it any more. What keeps a call may be
// another rank: that for whose operation, on another communicator, a stream waits before it comes to this one, or that
// whose process runs the hub and does not answer a farewell. So a thread of its own waits, and this one for no longer
// than kAbortPatience. Where there is no thread, this one waits as long, and the communicator is not freed after that.
void destroyInTime(koloComm_t comm, comm::Communicator* communicator) {
  const auto waitAndFree = [comm, communicator] {
    communicator->turn().drain();
    destroy(comm, communicator);
  };
  std::future<void> freed;
  try {
    std::packaged_task<void()> task([waitAndFree] {
      caller.isLibrarys = true;
      waitAndFree();
    });
    freed = task.get_future();
    startQuietly(std::move(task)).detach();
  } catch (const std::exception&) {
    const auto end = std::chrono::steady_clock::now() + kAbortPatience;
    const std::uint64_t place = communicator->turn().take();
    if (!communicator->turn().waitUnless(place, [end] { return std::chrono::steady_clock::now() > end; }))
      return log::warn("communicator {} is not freed: the system gives no thread for it", communicator->options().name);
    communicator->turn().done(place);
    return destroy(comm, communicator);
  }
  (void)freed.wait_for(kAbortPatience);
}

// What nranks and rank may be where a communicator of `old` ranks grows. Its own ranks give -1, or the number they
// have.
Status checkGrowth(int old, int ranks, int rank, int own) {
  KOLO_TRY(checkRanks(ranks));
  if (ranks <= old) {
    return error(koloInvalidRankCount, "nranks is {}, expected more than the {} of the communicator that grows", ranks,
                 old);
  }
  if (own >= 0 && rank != -1 && rank != own)
    return error(koloInvalidRank, "rank is {}, expected -1 or the caller's, {}", rank, own);
  if (own < 0 && (rank < old || rank >= ranks)) {
    return error(koloInvalidRank, "rank is {}, expected {}..{}: the first {} are those of the communicator that grows",
                 rank, old, ranks - 1, old);
  }
  return {};
}

// A new process's part in growing.
Status joinGrown(koloComm_t* newcomm, int ranks, const koloUniqueId* id, int rank, const koloConfig_t* config) {
  if (id == nullptr) return error(koloInvalidPointer, "uniqueId is NULL, expected that of koloCommGetUniqueId");
  KOLO_ASSIGN(const std::uint32_t growth, bootstrap::growthOf(*id));
  const int old = comm::oldRanksIn(growth);
  if (old == 0) return error(koloInvalidArgument, "the id is of koloGetUniqueId, expected one of koloCommGetUniqueId");
  KOLO_TRY(checkGrowth(old, ranks, rank, -1));
  const InUse inUse;
  KOLO_ASSIGN(comm::Owned grown, comm::createFromId(*id, rank, ranks, comm::Options::make(config, nullptr)));
  return deliver(newcomm, std::move(grown));
}

Status refuseEnd() {
  KOLO_TRY(refuseInGroupOrReduction());
  return refuseInNotice();
}

// Makes every operation fail, on all ranks. reason: "", or more words. Returns with what.
Status revoke(comm::Communicator& communicator, const char* function, const std::string& reason) {
  Status why = error(koloAborted, "rank {} called {} on communicator {}{}{}", communicator.rank(), function,
                     communicator.options().name, reason.empty() ? "" : ": ", reason);
  communicator.failureState().fail({why, communicator.membership().jobRank(communicator.rank())});
  return why;
}

}  // namespace

Status deliver(koloComm_t* place, comm::Owned communicator) {
  comm::Turn& turn = communicator->turn();
  communicator->references().setMaker(std::this_thread::get_id());
  koloComm_t handle = nullptr;
  if (Status given = giveHandle(&handle, communicators, std::move(communicator), "communicator"); !given.ok()) {
    // NOLINTNEXTLINE(bugprone-use-after-move): it was moved from only if it has a handle
    communicator->failureState().fail({error(given.code(), "rank {} cannot use communicator {}: {}",
                                             communicator->rank(), communicator->options().name, given.message()),
                                       communicator->membership().control->rank()});
    return given;
  }
  turn.leanOn(communicators.biasOf(reinterpret_cast<std::uintptr_t>(handle)));
  *place = handle;
  return {};
}

// The handle lives while this waits, so that koloCommRevoke and koloCommAbort can end the wait.
Status dropOwner(koloComm_t comm) {
  Status status;
  {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    const comm::References::Left left = communicator->references().drop();
    if (left == comm::References::Left::kOthers) return {};
    if (left == comm::References::Left::kNobodyBefore) return notACommunicator(comm);
    status = withoutExceptions([&] { return finalize(*communicator); });
  }
  comm::Communicator* const communicator = communicators.retire(reinterpret_cast<std::uintptr_t>(comm));
  if (communicator == nullptr) return status;  // another thread has aborted it meanwhile
  communicator->turn().drain();
  destroy(comm, communicator);
  return status;
}

}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloGetVersion(int* version) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("version", version));
    *version = KOLO_VERSION_CODE;
    return {};
  });
}

KOLO_API const char* koloGetErrorString(koloResult_t result) {
  switch (result) {
    case koloSuccess: return "success";
    case koloSystemError: return "system error";
    case koloInternalError: return "internal error";
    case koloInvalidArgument: return "invalid argument";
    case koloInvalidUsage: return "invalid usage";
    case koloRemoteError: return "a remote rank failed";
    case koloInProgress: return "in progress";
    case koloTimeout: return "timed out";
    case koloAborted: return "aborted";
    case koloMismatch: return "the ranks called different operations";
    case koloInvalidPointer: return "invalid pointer";
    case koloInvalidCount: return "invalid count";
    case koloInvalidDatatype: return "invalid datatype";
    case koloInvalidOperation: return "invalid reduction operation";
    case koloInvalidRoot: return "invalid root or peer";
    case koloInvalidHandle: return "invalid handle";
    case koloInvalidOverlap: return "buffers overlap";
    case koloInvalidRankCount: return "invalid number of ranks";
    case koloInvalidRank: return "invalid rank";
    case koloDuplicateRank: return "duplicate rank";
    case koloUnreachable: return "unreachable";
    case koloInvalidEnvironment: return "invalid environment variable";
    case koloOutOfMemory: return "out of memory";
    case koloUnsupported: return "not supported";
    case koloTruncated: return "message truncated";
    case koloNumResults: break;
  }
  return "unknown result code";
}

KOLO_API koloResult_t koloGetUniqueId(koloUniqueId* uniqueId) {
  return guardProcess(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("uniqueId", uniqueId));
    KOLO_ASSIGN(*uniqueId, bootstrap::createUniqueId());
    return {};
  });
}

KOLO_API koloResult_t koloCommInitRankConfig(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank,
                                             const koloConfig_t* config) {
  return guardProcess(__func__, [&] { return initRank(comm, nranks, uniqueId, rank, config); });
}

KOLO_API koloResult_t koloCommInitRank(koloComm_t* comm, int nranks, koloUniqueId uniqueId, int rank) {
  return guardProcess(__func__, [&] { return initRank(comm, nranks, uniqueId, rank, nullptr); });
}

KOLO_API koloResult_t koloCommInitAll(koloComm_t* comms, int nranks, const koloConfig_t* config) {
  return guardProcess(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("comms", comms));
    KOLO_TRY(refuseInGroup());
    KOLO_TRY(checkRanks(nranks));
    KOLO_ASSIGN(const comm::Options options, comm::Options::make(config, nullptr));
    KOLO_ASSIGN(std::vector<comm::Owned> created, comm::createAll(nranks, options));
    std::vector<koloComm_t> handles(created.size());
    for (std::size_t rank = 0; rank < created.size(); ++rank) {
      Status status = deliver(&handles[rank], std::move(created[rank]));
      if (status.ok()) continue;
      // All or none. What is left of `created` frees itself.
      while (rank-- > 0) destroy(handles[rank], communicators.retire(reinterpret_cast<std::uintptr_t>(handles[rank])));
      return status;
    }
    std::copy(handles.begin(), handles.end(), comms);
    return {};
  });
}

KOLO_API koloResult_t koloCommInitFromEnv(koloComm_t* comm, const koloConfig_t* config) {
  return guardProcess(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("comm", comm));
    KOLO_TRY(refuseInGroup());
    KOLO_ASSIGN(comm::Owned created, comm::createFromEnvironment(comm::Options::make(config, nullptr)));
    return deliver(comm, std::move(created));
  });
}

KOLO_API koloResult_t koloCommSplit(koloComm_t comm, int color, int key, koloComm_t* newcomm,
                                    const koloConfig_t* config) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("newcomm", newcomm));
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> parent, find(comm));
    if (color < 0 && color != KOLO_SPLIT_NOCOLOR) {
      return error(koloInvalidArgument, "color is {}, expected 0 or more, or KOLO_SPLIT_NOCOLOR", color);
    }
    if (parent->failed()) return parent->failure();
    KOLO_ASSIGN(comm::Owned child, inTurn(*parent, [&] { return comm::split(*parent, color, key, config); }));
    if (child != nullptr) return deliver(newcomm, std::move(child));
    *newcomm = KOLO_COMM_NULL;
    return {};
  });
}

KOLO_API koloResult_t koloCommShrink(koloComm_t comm, const int* excludeRanks, int excludeCount, koloComm_t* newcomm,
                                     const koloConfig_t* config) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("newcomm", newcomm));
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> parent, find(comm));
    if (excludeCount < 0 || excludeCount >= parent->ranks()) {
      return error(koloInvalidCount, "excludeCount is {}, expected 0..{}", excludeCount, parent->ranks() - 1);
    }
    if (excludeRanks == nullptr && excludeCount > 0) return error(koloInvalidPointer, "excludeRanks is NULL");
    const std::vector<int> excluded(excludeRanks, excludeRanks + excludeCount);
    for (const int rank : excluded) {
      if (rank < 0 || rank >= parent->ranks()) {
        return error(koloInvalidRank, "excludeRanks has {}, expected ranks 0..{}", rank, parent->ranks() - 1);
      }
      if (rank == parent->rank()) {
        return error(koloInvalidUsage, "rank {} excludes itself; only the ranks that stay call koloCommShrink", rank);
      }
    }
    KOLO_ASSIGN(comm::Owned child, inTurn(*parent, [&] { return comm::shrink(*parent, excluded, config); }));
    return deliver(newcomm, std::move(child));
  });
}

KOLO_API koloResult_t koloCommGetUniqueId(koloComm_t comm, koloUniqueId* uniqueId) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("uniqueId", uniqueId));
    KOLO_ASSIGN(const Pin<comm::Communicator> parent, find(comm));
    if (parent->failed()) return parent->failure();
    KOLO_ASSIGN(*uniqueId, bootstrap::createUniqueId(false, comm::growthOf(*parent)));
    return {};
  });
}

KOLO_API koloResult_t koloCommGrow(koloComm_t comm, int nranks, const koloUniqueId* uniqueId, int rank,
                                   koloComm_t* newcomm, const koloConfig_t* config) {
  if (comm == KOLO_COMM_NULL) {
    return guardProcess(__func__, [&]() -> Status {
      KOLO_TRY(checkResult("newcomm", newcomm));
      KOLO_TRY(refuseInGroupOrReduction());
      return joinGrown(newcomm, nranks, uniqueId, rank, config);
    });
  }
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("newcomm", newcomm));
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> parent, find(comm));
    KOLO_TRY(checkGrowth(parent->ranks(), nranks, rank, parent->rank()));
    KOLO_ASSIGN(comm::Owned grown, inTurn(*parent, [&] { return comm::grow(*parent, nranks, uniqueId, config); }));
    return deliver(newcomm, std::move(grown));
  });
}

KOLO_API koloResult_t koloCommFinalize(koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInGroupOrReduction());
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    Status status = finalize(*communicator, caller.mayWait);
    return communicator->failed() ? communicator->failure() : std::move(status);
  });
}

KOLO_API koloResult_t koloCommDestroy(koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseEnd());
    return dropOwner(comm);
  });
}

KOLO_API koloResult_t koloCommRevoke(koloComm_t comm, const char* reason) {
  return guard(__func__, [&, function = __func__]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    (void)revoke(*communicator, function, reason == nullptr ? "" : reason);
    return {};
  });
}

KOLO_API koloResult_t koloCommAbort(koloComm_t comm) {
  return guard(__func__, [&, function = __func__]() -> Status {
    KOLO_TRY(refuseEnd());
    comm::Communicator* const communicator = communicators.retire(reinterpret_cast<std::uintptr_t>(comm));
    if (communicator == nullptr) return notACommunicator(comm);  // of several threads, one gets it
    const Status why = revoke(*communicator, function, "");
    communicator->failureState().abortInterrupt()->raise(why);
    communicator->failureState().giveUp(why);
    destroyInTime(comm, communicator);
    return {};
  });
}

KOLO_API koloResult_t koloCommCores(koloComm_t comm, int* cores) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("cores", cores));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    *cores = communicator->waiter().cores();
    return {};
  });
}

KOLO_API koloResult_t koloCommGetAsyncError(koloComm_t comm, koloResult_t* asyncError) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("asyncError", asyncError));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    communicator->backend().check();
    *asyncError = communicator->failed() ? communicator->failure().code() : koloSuccess;
    return {};
  });
}

KOLO_API koloResult_t koloCommAgree(koloComm_t comm, uint64_t* flags) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("flags", flags));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    return inTurn(*communicator, [&] { return comm::agreeOnFlags(*communicator, flags); });
  });
}

KOLO_API koloResult_t koloCommFailedRanks(koloComm_t comm, int* ranks, int* count) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("ranks", ranks));
    KOLO_TRY(checkResult("count", count));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    const std::vector<int> failed = communicator->failureState().acknowledge();
    std::copy(failed.begin(), failed.end(), ranks);
    *count = static_cast<int>(failed.size());
    return {};
  });
}

KOLO_API const char* koloGetLastError(koloComm_t comm) {
  if (comm == nullptr) return lastError().c_str();
  const Result<Pin<comm::Communicator>> found = find(comm);
  if (!found.ok() || !found.value()->failed()) return lastError().c_str();
  struct Failure {
    std::string message;
  };
  std::string& message = ofThread<Failure>().message;
  message = found.value()->failure().message();
  return message.c_str();
}

KOLO_API koloResult_t koloCommCount(koloComm_t comm, int* count) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("count", count));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    *count = communicator->ranks();
    return {};
  });
}

KOLO_API koloResult_t koloCommUserRank(koloComm_t comm, int* rank) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("rank", rank));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    *rank = communicator->rank();
    return {};
  });
}

}  // extern "C"
