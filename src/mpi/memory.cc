// The functions by which programs get memory, under their two names. Blocks come from here (pool.h); sessions tell the
// other ranks of them. The memory of windows is the MPI's, but such that it has mapped it for all ranks.
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

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
  if (info != MPI_INFO_NULL)
    PMPI_Info_get(info, const_cast<char*>("mpi_minimum_memory_alignment"), sizeof text - 1, text, &isThere);
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
  return PassedOn::carryOutBy([&](const Underneath& its) { return its.Alloc_mem(size, info, baseptr); });
}

int getFree_mem(void* base) {
  return pool().give(base) ? MPI_SUCCESS
                           : PassedOn::carryOutBy([&](const Underneath& its) { return its.Free_mem(base); });
}

// The program's windows whose memory Kolo knows, or that pass for others.
class Windows {
 public:
  struct Known {
    std::uint64_t session;  // its number
    koloWindow_t window;    // or nullptr
    bool isAllocated;       // by MPI_Win_allocate
  };
  void add(MPI_Win win, const Known& known) {
    const std::lock_guard lock(mutex_);
    all_.emplace(win, known);
  }
  std::optional<Known> find(MPI_Win win) const {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(win);
    return found != all_.end() ? std::optional(found->second) : std::nullopt;
  }
  void remove(MPI_Win win) {
    const std::lock_guard lock(mutex_);
    all_.erase(win);
  }

 private:
  mutable std::mutex mutex_;
  std::map<MPI_Win, Known> all_;
};

// Never destroyed, as sessions.
Windows& windows() {
  static auto* const made = new Windows;
  return *made;
}

// Collective, for a window of shared memory.
void makeKnown(MPI_Win win, Session& session, bool isAllocated) {
  std::vector<void*> parts(static_cast<std::size_t>(session.ranks()));
  std::vector<std::size_t> bytes(parts.size());
  for (int rank = 0; rank < session.ranks(); ++rank) {
    MPI_Aint size = 0;
    int unit = 0;
    PMPI_Win_shared_query(win, rank, &size, &unit, &parts[static_cast<std::size_t>(rank)]);
    bytes[static_cast<std::size_t>(rank)] = static_cast<std::size_t>(size);
  }
  countAllocated();
  windows().add(win, {session.number(), session.adopt(parts.data(), bytes.data()), isAllocated});
}

// While it lives, errors on the communicator are returned.
class ErrorsReturned {
 public:
  explicit ErrorsReturned(MPI_Comm comm) : comm_(comm) {
    PMPI_Comm_get_errhandler(comm, &its_);
    PMPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  ~ErrorsReturned() {
    PMPI_Comm_set_errhandler(comm_, its_);
    PMPI_Errhandler_free(&its_);
  }
  ErrorsReturned(const ErrorsReturned&) = delete;
  ErrorsReturned& operator=(const ErrorsReturned&) = delete;

 private:
  MPI_Comm comm_;
  MPI_Errhandler its_ = MPI_ERRHANDLER_NULL;
};

// The program's hints for a window whose memory Kolo uses. MPI_Win_free has to be a barrier, after which no rank uses
// its part of the window in collectives. With no_locks the MPI may leave the barrier out, so no_locks is not passed on.
class Hints {
 public:
  explicit Hints(MPI_Info given) {
    if (given == MPI_INFO_NULL) {
      PMPI_Info_create(&its_);
    } else {
      PMPI_Info_dup(given, &its_);
    }
    set("no_locks", "false");
  }
  ~Hints() { PMPI_Info_free(&its_); }
  Hints(const Hints&) = delete;
  Hints& operator=(const Hints&) = delete;

  void set(const char* key, const char* value) {
    PMPI_Info_set(its_, const_cast<char*>(key), const_cast<char*>(value));
  }
  MPI_Info info() const { return its_; }

 private:
  MPI_Info its_ = MPI_INFO_NULL;
};

// Collective: a window of shared memory in the place of one that the MPI would allocate as it likes. Whether all ranks
// have it.
bool allocateShared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* baseptr, MPI_Win* win) {
  Hints hints(info);
  hints.set("alloc_shared_noncontig", "true");
  const ErrorsReturned returned(comm);
  int isThere = underneath().Win_allocate_shared(size, unit, hints.info(), comm, baseptr, win) == MPI_SUCCESS ? 1 : 0,
      isEverywhere = 0;
  underneath().Allreduce(&isThere, &isEverywhere, 1, MPI_INT, MPI_MIN, comm);
  return isEverywhere != 0;  // what only some have is not freed, for that would be collective
}

// Memory that the MPI alone knows how peers map cannot be given to Kolo; the MPI says it of windows of shared memory
// only. Both MPIs access these as they do what they allocate on one host, so remote access is as fast.
int getWin_allocate(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void* baseptr, MPI_Win* win) {
  const bool isLegal = size >= 0 && disp_unit > 0 && baseptr != nullptr && win != nullptr;
  Session* const session = isLegal && !PassedOn::isUnderWay() ? Session::made(comm) : nullptr;
  if (session == nullptr || !session->isOnOneHost() || !allocateShared(size, disp_unit, info, comm, baseptr, win)) {
    return PassedOn::carryOutBy(
        [&](const Underneath& its) { return its.Win_allocate(size, disp_unit, info, comm, baseptr, win); });
  }
  makeKnown(*win, *session, true);
  return MPI_SUCCESS;
}

int getWin_allocate_shared(MPI_Aint size, int disp_unit, MPI_Info info, MPI_Comm comm, void* baseptr, MPI_Win* win) {
  const auto allocate = [&](MPI_Info its) {
    return PassedOn::carryOutBy(
        [&](const Underneath& mpi) { return mpi.Win_allocate_shared(size, disp_unit, its, comm, baseptr, win); });
  };
  if (PassedOn::isUnderWay() || !Session::mayBe()) return allocate(info);
  const int code = allocate(Hints(info).info());
  Session* const session = code == MPI_SUCCESS ? Session::made(comm) : nullptr;
  if (session != nullptr) makeKnown(*win, *session, false);
  return code;
}

// The memory is abandoned before the MPI unmaps it, which it does when all ranks have come. Only the interposer knows
// windows that were not passed on.
int getWin_free(MPI_Win* win) {
  const auto known = win != nullptr ? windows().find(*win) : std::nullopt;
  if (known) {
    if (known->window != nullptr) Session::abandon(known->session, known->window);
    windows().remove(*win);
  }
  if (known && known->isAllocated) return underneath().Win_free(win);
  return PassedOn::carryOutBy([&](const Underneath& its) { return its.Win_free(win); });
}

// The kind of window that the program asked for.
int getWin_get_attr(MPI_Win win, int keyval, void* value, int* flag) {
  static int allocated = MPI_WIN_FLAVOR_ALLOCATE;
  const auto known = windows().find(win);
  if (!known || !known->isAllocated)
    return PassedOn::carryOutBy([&](const Underneath& its) { return its.Win_get_attr(win, keyval, value, flag); });
  const int code = underneath().Win_get_attr(win, keyval, value, flag);
  if (code == MPI_SUCCESS && keyval == MPI_WIN_CREATE_FLAVOR && *flag != 0) *static_cast<int**>(value) = &allocated;
  return code;
}

}  // namespace

#define FUNCTION(Name, parameters, arguments)      \
  KOLO_MPI_DEFINE(Name, parameters) {              \
    try {                                          \
      return get##Name arguments;                  \
    } catch (const std::bad_alloc&) {              \
      return raise(MPI_COMM_SELF, MPI_ERR_NO_MEM); \
    }                                              \
  }
#include "mpi/memory.inc"
#undef FUNCTION

}  // namespace kolo::mpi
