#include "mpi/session.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/operations.h"
#include "mpi/report.h"
#include "mpi/underneath.h"

namespace kolo::mpi {

// All sessions of the process, from the first collective until MPI_Finalize.
class Sessions {
 public:
  // Whether the MPI is up, and the sessions with it.
  bool isOpen() { return state_.load(std::memory_order_acquire) == State::kOpen || open(); }   // [open]
  int keyval() const { return keyval_; }

  Session* add(std::unique_ptr<Session> session) {
    const std::lock_guard lock(mutex_);
    all_.push_back(std::move(session));
    return all_.back().get();
  }
  // The session ends after the lock, for that may wait for other ranks.
  void remove(const Session* session) {
    std::unique_ptr<Session> removed;
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(all_.begin(), all_.end(), [session](const auto& each) { return each.get() == session; });
    if (found == all_.end()) return;
    removed = std::move(*found);
    all_.erase(found);
  }

 private:
  enum class State { kClosed, kOpen, kOver };

  bool open();
  void close();
  static int finalize(MPI_Comm comm, int keyval, void* attribute, void* extra);
  static void progress(void* context);

  std::atomic<State> state_{State::kClosed};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Session>> all_;   // in the order in which they were made
  int keyval_ = MPI_KEYVAL_INVALID;             // of sessions
  int finalizer_ = MPI_KEYVAL_INVALID;          // of MPI_COMM_SELF's attribute, whose end is the beginning of MPI_Finalize
  MPI_Comm own_ = MPI_COMM_NULL;                // of this process
  MPI_Request never_ = MPI_REQUEST_NULL;        // receives there, where nobody sends
  std::mutex testing_;
  std::atomic<bool> hasFailed_{false};          // Kolo could not start on a communicator
  friend class Session;
};

namespace {

// Never destroyed: a program may call MPI from its own destructors.
Sessions& sessions() {
  static auto* const all = new Sessions;
  return *all;
}

}  // namespace

bool Sessions::open() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kClosed) return state_ == State::kOpen;
  int initialized = 0, finalized = 0;
  PMPI_Initialized(&initialized);
  PMPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return false;
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, Session::release, &keyval_, nullptr);
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalize, &finalizer_, nullptr);
  PMPI_Comm_set_attr(MPI_COMM_SELF, finalizer_, this);
  PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &own_);   // not a duplicate, which would copy the program's attributes
  PMPI_Irecv(nullptr, 0, MPI_BYTE, 0, 0, own_, &never_);
  state_.store(State::kOpen, std::memory_order_release);   // [open] with the keyvals
  return true;
}

// Communicators that the program did not free: their sessions go, their attributes stay to the MPI.
void Sessions::close() {
  state_.store(State::kOver, std::memory_order_release);
  for (const auto& each : all_) each->retire();
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) printStatistics(rank);
  PMPI_Cancel(&never_);
  PMPI_Wait(&never_, MPI_STATUS_IGNORE);
  PMPI_Comm_free(&own_);
}

int Sessions::finalize(MPI_Comm, int, void* attribute, void*) {
  static_cast<Sessions*>(attribute)->close();
  return MPI_SUCCESS;
}

// While Kolo waits, the MPI must go on: a peer may be unable to come before it has received what this rank sends. Both MPIs make
// progress while they test a request that is not complete (MPICH does not while it probes). One thread at a time may test it.
void Sessions::progress(void* context) {
  auto* const all = static_cast<Sessions*>(context);
  const std::unique_lock lock(all->testing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int done = 0;
  PMPI_Test(&all->never_, &done, MPI_STATUS_IGNORE);
}

Session* Session::of(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL || !sessions().isOpen()) return nullptr;
  void* attribute = nullptr;
  int found = 0;
  if (PMPI_Comm_get_attr(comm, sessions().keyval(), &attribute, &found) != MPI_SUCCESS) return nullptr;
  Session* const session = found != 0 ? static_cast<Session*>(attribute) : make(comm);
  return session->kolo_ != nullptr ? session : nullptr;
}

Session* Session::make(MPI_Comm comm) {
  Session* const session = sessions().add(std::unique_ptr<Session>(new Session(comm)));
  int between = 0;
  PMPI_Comm_test_inter(comm, &between);
  PMPI_Comm_size(comm, &session->ranks_);
  PMPI_Comm_rank(comm, &session->rank_);
  if (between == 0 && session->ranks_ > 1) session->start();
  PMPI_Comm_set_attr(comm, sessions().keyval(), session);
  return session;
}

// Collective. The lowest rank that is not ready; INT_MAX if all are.
int Session::firstUnready(bool isReady) const {
  const int mine = isReady ? INT_MAX : rank_;
  int first = INT_MAX;
  underneath().Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, comm_);
  return first;
}

// Collective. Kolo's communicator, or none on all ranks. A process where it could not start once does not try again: that might take
// the whole time for joining each time.
void Session::start() {
  koloUniqueId id{};
  std::string why;
  bool isReady = !sessions().hasFailed_;
  const auto made = [&](koloResult_t result) {
    if (result != koloSuccess) why = koloGetLastError(nullptr);
    return result == koloSuccess;
  };
  if (rank_ == 0 && isReady) isReady = made(koloGetUniqueId(&id));
  underneath().Bcast(&id, sizeof id, MPI_BYTE, 0, comm_);
  // While ranks join, nobody makes progress in the MPI: here all have come, and none is in a receive that needs it.
  int first = firstUnready(isReady);
  if (first == INT_MAX) first = firstUnready(made(join(id)));
  if (first == INT_MAX) {
    koloCommSetProgress(kolo_, Sessions::progress, &sessions());
    return;
  }
  if (kolo_ != nullptr) koloCommAbort(kolo_);
  kolo_ = nullptr;
  if (rank_ == first && !sessions().hasFailed_) {
    warn("Kolo did not start on rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) +
         ", so the program's collectives are left to the MPI underneath: " + why);
  }
  sessions().hasFailed_ = true;
}

koloResult_t Session::join(const koloUniqueId& id) {
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0;
  PMPI_Comm_get_name(comm_, name, &length);
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = 0;   // MPI's programs may let each other wait as long as they like
  config.device = KOLO_HOST;
  config.name = length > 0 ? name : nullptr;
  return koloCommInitRankConfig(&kolo_, ranks_, id, rank_, &config);
}

// What was collective before is complete here; the other ranks need nothing more of this one.
void Session::retire() {
  if (kolo_ != nullptr && koloCommDestroy(kolo_) != koloSuccess) warn(koloGetLastError(nullptr));
  kolo_ = nullptr;
}

Session::~Session() { retire(); }

int Session::release(MPI_Comm, int, void* attribute, void*) {
  sessions().remove(static_cast<Session*>(attribute));
  return MPI_SUCCESS;
}

void Session::fold(void* acc, const void* in, size_t count, koloDataType_t, void* context) {
  const auto* const borrowed = static_cast<const Borrowed*>(context);
  PMPI_Reduce_local(in, acc, static_cast<int>(count), borrowed->datatype, borrowed->op);   // a few kilobytes at a time
}

// All ranks ask for the same operations in the same order, so that their handles are alike.
std::optional<koloRedOp_t> Session::borrow(MPI_Op op, MPI_Datatype datatype) {
  const auto known = std::find_if(borrowed_.begin(), borrowed_.end(),
                                  [&](const Borrowed& each) { return each.op == op && each.datatype == datatype; });
  if (known != borrowed_.end()) return known->handle;
  borrowed_.push_back({op, datatype, koloMaxRedOp});
  Borrowed& fresh = borrowed_.back();
  if (koloRedOpCreate(&fresh.handle, fold, 1, &fresh, kolo_) == koloSuccess) return fresh.handle;
  borrowed_.pop_back();
  return std::nullopt;
}

std::optional<Reduction> Session::findReduction(MPI_Op op, MPI_Datatype datatype) {
  if (!isCovered(op, datatype)) return std::nullopt;
  const Number* const number = findNumber(datatype);
  const Operator* const found = findOperator(op);
  if (number->isNative && found->isNative) return Reduction{number->datatype, found->kolo};
  const std::optional<koloRedOp_t> handle = borrow(op, datatype);
  if (!handle) return std::nullopt;
  return Reduction{number->datatype, *handle};
}

}  // namespace kolo::mpi
