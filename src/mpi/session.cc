#include "mpi/session.h"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi/operations.h"
#include "mpi/pool.h"
#include "mpi/report.h"
#include "mpi/started.h"
#include "mpi/underneath.h"

namespace kolo::mpi {

// All sessions of the process, from MPI_Init, or the first collective, until MPI_Finalize.
class Sessions {
 public:
  // Whether the MPI is up, and the sessions with it.
  bool isOpen() { return state_.load(std::memory_order_acquire) == State::kOpen || open(); }   // [open]
  int keyval() const { return keyval_; }
  // Whoever remembers what he found here has to look again when it has changed.
  std::uint64_t changes() const { return changes_.load(std::memory_order_acquire); }   // [change]

  Session* add(std::unique_ptr<Session> session) {
    const std::lock_guard lock(mutex_);
    session->number_ = ++made_;
    all_.push_back(std::move(session));
    return all_.back().get();
  }
  Session* withNumber(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(all_.begin(), all_.end(), [number](const auto& each) { return each->number_ == number; });
    return found != all_.end() && (*found)->kolo_ != nullptr ? found->get() : nullptr;
  }
  // The session ends after the lock, for that may wait for other ranks.
  void remove(const Session* session) {
    std::unique_ptr<Session> removed;
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(all_.begin(), all_.end(), [session](const auto& each) { return each.get() == session; });
    if (found == all_.end()) return;
    removed = std::move(*found);
    all_.erase(found);
    change();
  }

 private:
  enum class State { kClosed, kOpen, kOver };

  bool open();
  void close();
  static int finalize(MPI_Comm comm, int keyval, void* attribute, void* extra);
  void progress();
  // A thread that may use a new communicator with an old one's handle knows of it from the one that freed that, after this.
  void change() { changes_.fetch_add(1, std::memory_order_release); }   // [change]

  std::atomic<std::uint64_t> changes_{1};
  std::atomic<State> state_{State::kClosed};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Session>> all_;   // in the order in which they were made
  std::uint64_t made_ = 0;
  int keyval_ = MPI_KEYVAL_INVALID;             // of sessions
  int finalizer_ = MPI_KEYVAL_INVALID;          // of MPI_COMM_SELF's attribute, whose end is the beginning of MPI_Finalize
  MPI_Comm own_ = MPI_COMM_NULL;                // of this process
  MPI_Request never_ = MPI_REQUEST_NULL;        // receives there, where nobody sends
  std::mutex testing_;
  std::atomic<bool> hasFailed_{false};          // Kolo could not start on a communicator
  std::atomic<bool> sharesCores_{false};        // a communicator has, or had, more ranks than cores; lines that are made later know it
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
  change();
  for (const auto& each : all_) each->retire();
  endRequests();
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
void Sessions::progress() {
  const std::unique_lock lock(testing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int done = 0;
  underneath().Test(&never_, &done, MPI_STATUS_IGNORE);
}

namespace {

// The session that the thread used last: looking for the attribute costs as much as a short collective.
struct Last {
  MPI_Comm comm;
  Session* session;          // nullptr: without Kolo
  std::uint64_t changes;     // when it was found
};
[[gnu::tls_model("initial-exec")]] thread_local constinit Last last = {};
[[gnu::tls_model("initial-exec")]] thread_local constinit bool isOwnThread = false;

}  // namespace

// The communicator's session, found or made; nullptr: there is none. make(): of one without an attribute.
template <class Make>
Session* Session::find(MPI_Comm comm, const Make& make) {
  const std::uint64_t changes = sessions().changes();
  if (last.changes == changes && last.comm == comm) return last.session;
  if (comm == MPI_COMM_NULL || !sessions().isOpen()) return nullptr;
  void* attribute = nullptr;
  int isThere = 0;
  if (PMPI_Comm_get_attr(comm, sessions().keyval(), &attribute, &isThere) != MPI_SUCCESS) return nullptr;
  Session* session = isThere != 0 ? static_cast<Session*>(attribute) : make();
  if (session == nullptr) return nullptr;   // may be made later
  if (session->kolo_ == nullptr) session = nullptr;
  last = {comm, session, changes};
  return session;
}

Session* Session::of(MPI_Comm comm) {
  return find(comm, [comm] { return make(comm); });
}

Session* Session::existing(MPI_Comm comm) {
  return find(comm, []() -> Session* { return nullptr; });
}

bool Session::mayBe() {
  int ranks = 1;
  if (!sessions().isOpen() || sessions().hasFailed_) return false;
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks > 1;
}

void Session::progress() {
  if (!isOwnThread) sessions().progress();
}

void Session::enterOwnThread() { isOwnThread = true; }

Backlog& Session::backlog() {
  if (!backlog_) backlog_ = std::make_unique<Backlog>(sessions().sharesCores_);
  return *backlog_;
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

// Collective. The lowest rank that is not ready; INT_MAX if all are. Finds the least level of threads, too, and the most new segments.
int Session::firstUnready(bool isReady) {
  int mine[] = {isReady ? INT_MAX : rank_, MPI_THREAD_SINGLE, -newSegments()}, least[] = {0, MPI_THREAD_SINGLE, 0};
  PMPI_Query_thread(&mine[1]);
  underneath().Allreduce(mine, least, 3, MPI_INT, MPI_MIN, comm_);
  mayCalculateAnywhere_ = least[1] == MPI_THREAD_MULTIPLE;
  toRegister_ = -least[2];
  return least[0];
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
    int cores = 0;
    if (koloCommCores(kolo_, &cores) == koloSuccess && ranks_ > cores) sessions().sharesCores_ = true;
    koloCommSetProgress(kolo_, [](void*) { progress(); }, nullptr);
    findPlace();
    registerSegments(toRegister_);
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

int Session::newSegments() const { return static_cast<int>(pool().segments() - registered_); }

// Collective. koloInProgress, and nothing is done, where it may not wait.
koloResult_t Session::look() {
  int mine = newSegments(), most = 0;
  const koloResult_t result = koloAllReduce(&mine, &most, 1, koloInt32, koloMax, kolo_, nullptr);
  if (result != koloSuccess) return result;
  betweenLooks_ = std::min(2 * betweenLooks_, kMostBetweenLooks);
  callsBeforeLook_ = betweenLooks_;
  registerSegments(most);
  return koloSuccess;
}

// Collective. Ranks that have fewer give none. If it fails, so has the communicator, and the program's next call hears of it.
// Between hosts there is nothing to gain, and registering for InfiniBand takes a segment's pages, touched or not.
void Session::registerSegments(int rounds) {
  if (rounds > 0 && !isOnOneHost_) {
    registered_ = pool().segments();
    return;
  }
  for (; rounds > 0; --rounds) {
    Pool::Segment segment{nullptr, 0};
    if (newSegments() > 0) segment = pool().segment(registered_++);
    koloWindow_t window = nullptr;   // its end is its communicator's
    if (koloWindowRegister(kolo_, segment.begin, segment.bytes, &window) != koloSuccess) return;
    int isZeroCopy = 0;
    if (koloWindowIsZeroCopy(window, &isZeroCopy) == koloSuccess && isZeroCopy != 0) countRegistered();
  }
}

Session* Session::withNumber(std::uint64_t number) { return sessions().withNumber(number); }

// Collective.
void Session::findPlace() {
  MPI_Comm here = MPI_COMM_NULL;
  int ranksHere = 0;
  PMPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  PMPI_Comm_size(here, &ranksHere);
  PMPI_Comm_free(&here);
  isOnOneHost_ = ranksHere == ranks_;   // if it is one, then for all ranks
}

koloWindow_t Session::adopt(void* const* parts, const std::size_t* bytes) {
  settle();
  koloWindow_t window = nullptr;
  if (koloWindowRegisterMapped(kolo_, parts, bytes, &window) != koloSuccess) return nullptr;
  int isZeroCopy = 0;
  if (koloWindowIsZeroCopy(window, &isZeroCopy) == koloSuccess && isZeroCopy != 0) countRegistered();
  return window;
}

void Session::abandon(koloWindow_t window) {
  settle();
  if (koloWindowDeregister(kolo_, window) != koloSuccess) warn(koloGetLastError(nullptr));
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
  backlog_.reset();
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
koloResult_t Session::borrow(MPI_Op op, MPI_Datatype datatype, koloRedOp_t& handle) {
  auto known = std::find_if(borrowed_.begin(), borrowed_.end(),
                            [&](const Borrowed& each) { return each.op == op && each.datatype == datatype; });
  if (known == borrowed_.end()) {
    known = borrowed_.insert(borrowed_.end(), {op, datatype, koloMaxRedOp});
    const koloResult_t result = koloRedOpCreate(&known->handle, fold, 1, &*known, kolo_);
    if (result != koloSuccess) {
      borrowed_.erase(known);
      return result;
    }
  }
  handle = known->handle;
  return koloSuccess;
}

koloResult_t Session::findReduction(MPI_Op op, MPI_Datatype datatype, Reduction& reduction) {
  reduction = {findNumber(datatype)->datatype, findOperator(op)->kolo};
  return isNative(op, datatype) ? koloSuccess : borrow(op, datatype, reduction.op);
}

}  // namespace kolo::mpi
