#include "mpi/session.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <vector>

#include "mpi/operations.h"
#include "mpi/pool.h"
#include "mpi/report.h"
#include "mpi/sessions.h"
#include "mpi/started.h"
#include "mpi/underneath.h"

namespace kolo::mpi {

namespace {

// The session that the thread used last: looking for the attribute costs as much as a short collective.
struct LastSession {
  MPI_Comm comm;
  Session* session;       // nullptr: without Kolo
  std::uint64_t changes;  // when it was found
};
[[gnu::tls_model("initial-exec")]] thread_local constinit LastSession lastSession = {};

void noteWindow(koloWindow_t window) {
  int isZeroCopy = 0;
  if (window != nullptr && koloWindowIsZeroCopy(window, &isZeroCopy) == koloSuccess && isZeroCopy != 0) {
    countRegistered();
  }
}

}  // namespace

// The communicator's session, if it has a counterpart, or gets it now. A young one is not remembered: it may get one.
Session* Session::find(MPI_Comm comm, When when, Session** young) {
  const std::uint64_t changes = sessions().changes();
  if (lastSession.changes == changes && lastSession.comm == comm) return lastSession.session;
  Session* session = attached(comm);
  if (session == nullptr) return nullptr;
  if (session->isYoung()) {
    if (!session->isDue(when)) {
      if (young != nullptr) *young = session;
      return nullptr;
    }
    session->make();
  }
  if (session->kolo_ == nullptr) session = nullptr;
  lastSession = {comm, session, changes};
  return session;
}

// The communicator's session, found or new; nullptr: it can have none.
Session* Session::attached(MPI_Comm comm) {
  if (comm == MPI_COMM_NULL || !sessions().isOpen()) return nullptr;
  void* attribute = nullptr;
  int isThere = 0;
  if (PMPI_Comm_get_attr(comm, sessions().keyval(), &attribute, &isThere) != MPI_SUCCESS) return nullptr;
  return isThere != 0 ? static_cast<Session*>(attribute) : attach(comm);
}

Session* Session::attach(MPI_Comm comm) {
  Session* const session = sessions().add(std::unique_ptr<Session>(new Session(comm)));
  int between = 0;
  PMPI_Comm_test_inter(comm, &between);
  PMPI_Comm_size(comm, &session->ranks_);
  PMPI_Comm_rank(comm, &session->rank_);
  if (between != 0 || session->ranks_ == 1) session->counterpart_ = Counterpart::kNever;
  PMPI_Comm_set_attr(comm, sessions().keyval(), session);
  return session;
}

bool Session::isDue(When when) const {
  return when == When::kNow || (when == When::kIfDue && (comm_ == MPI_COMM_WORLD || sessions().price() == 0));
}

Session* Session::of(MPI_Comm comm, Session** young) { return find(comm, When::kIfDue, young); }

Session* Session::made(MPI_Comm comm) { return find(comm, When::kNow, nullptr); }

Session* Session::existing(MPI_Comm comm, Session** young) { return find(comm, When::kNotNow, young); }

void Session::grow(std::size_t bytes, bool haveMet) {
  // So many bytes take the MPI as long as a short collective.
  constexpr std::size_t kBytesOfACollective = std::size_t{16} << 10;
  worth_ += 1 + bytes / kBytesOfACollective;
  if (haveMet && worth_ >= sessions().price()) make();
}

bool Session::mayBe() {
  int ranks = 1;
  if (!sessions().isOpen() || sessions().hasFailed()) return false;
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return ranks > 1;
}

// Collective. The lowest rank that is not ready; INT_MAX if all are. Finds the least level of threads, too, the most
// new segments, and the highest price that a rank's environment names, which is that of all communicators once it has
// been agreed on for MPI_COMM_WORLD.
int Session::firstUnready(bool isReady) {
  int mine[] = {isReady ? INT_MAX : rank_, MPI_THREAD_SINGLE, -newSegments(), -static_cast<int>(sessions().price())};
  int least[] = {0, MPI_THREAD_SINGLE, 0, 0};
  PMPI_Query_thread(&mine[1]);
  underneath().Allreduce(mine, least, 4, MPI_INT, MPI_MIN, comm_);
  if (comm_ == MPI_COMM_WORLD) sessions().setPrice(static_cast<std::uint64_t>(-least[3]));
  mayCalculateAnywhere_ = least[1] == MPI_THREAD_MULTIPLE;
  toRegister_ = -least[2];
  return least[0];
}

// Collective. Kolo's communicator, or none on all ranks. A process where it could not start once does not try again:
// that might take the whole time for joining each time.
void Session::make() {
  sessions().sweep();
  counterpart_ = Counterpart::kNever;
  koloUniqueId id{};
  std::string why;
  bool isReady = !sessions().hasFailed();
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
    koloCommSetProgress(
        kolo_, [](void*) { sessions().progress(); }, nullptr);
    findPlace();
    registerSegments(toRegister_);
    counterpart_ = Counterpart::kMade;
    countMade();
    return;
  }
  if (kolo_ != nullptr) koloCommAbort(kolo_);
  kolo_ = nullptr;
  if (rank_ == first && !sessions().hasFailed()) {
    warn("Kolo did not start on rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) +
         ", so the program's collectives are left to the MPI underneath: " + why);
  }
  sessions().setFailed();
}

int Session::newSegments() const { return static_cast<int>(pool().segments() - registered_); }

Pool::Segment Session::nextSegment() {
  return newSegments() > 0 ? pool().segment(registered_++) : Pool::Segment{nullptr, 0};
}

void Session::planNextLook() {
  betweenLooks_ = std::min(2 * betweenLooks_, kMostBetweenLooks);
  callsBeforeLook_ = betweenLooks_;
}

// Collective.
koloResult_t Session::look() {
  int mine = newSegments(), most = 0;
  const koloResult_t result = koloAllReduce(&mine, &most, 1, koloInt32, koloMax, kolo_, nullptr);
  if (result != koloSuccess) return result;
  planNextLook();
  registerSegments(most);
  return koloSuccess;
}

// Collective. Whether some rank has a segment, the ranks see when it comes to that: so each gives one.
koloResult_t Session::startLook() {
  const Pool::Segment segment = isOnOneHost_ ? nextSegment() : Pool::Segment{nullptr, 0};
  noteLooks();
  Look& look = looks_.emplace_back();
  const koloResult_t result = koloIwindowRegister(kolo_, segment.begin, segment.bytes, &look.window, &look.request);
  if (result == koloSuccess) {
    planNextLook();
  } else {
    looks_.pop_back();
  }
  return result;
}

void Session::noteLooks() {
  looks_.remove_if([](const Look& look) {
    if (koloRequestTest(look.request) == koloInProgress) return false;
    koloRequestFree(look.request);
    noteWindow(look.window);
    return true;
  });
}

// Collective. Ranks that have fewer give none. If it fails, so has the communicator, and the program's next call hears
// of it. Between hosts there is nothing to gain, and registering for InfiniBand takes a segment's pages, touched or
// not.
void Session::registerSegments(int rounds) {
  if (rounds > 0 && !isOnOneHost_) {
    registered_ = pool().segments();
    return;
  }
  for (; rounds > 0; --rounds) {
    const Pool::Segment segment = nextSegment();
    koloWindow_t window = nullptr;  // its end is its communicator's
    if (koloWindowRegister(kolo_, segment.begin, segment.bytes, &window) != koloSuccess) return;
    noteWindow(window);
  }
}

// Collective.
void Session::findPlace() {
  MPI_Comm here = MPI_COMM_NULL;
  int ranksHere = 0;
  PMPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  PMPI_Comm_size(here, &ranksHere);
  PMPI_Comm_free(&here);
  isOnOneHost_ = ranksHere == ranks_;  // if it is one, then for all ranks
}

koloWindow_t Session::adopt(void* const* parts, const std::size_t* bytes) {
  koloWindow_t window = nullptr;
  if (koloWindowRegisterMapped(kolo_, parts, bytes, &window) != koloSuccess) return nullptr;
  noteWindow(window);
  return window;
}

void Session::abandon(std::uint64_t number, koloWindow_t window) {
  const koloComm_t kolo = sessions().counterpartOf(number);
  if (kolo == nullptr) return;
  const koloResult_t result = koloWindowAbandon(kolo, window);
  const bool hasEnded = result == koloInvalidHandle;  // another thread has just ended the session, and the window
  if (result != koloSuccess && !hasEnded) warn(koloGetLastError(nullptr));
}

koloResult_t Session::join(const koloUniqueId& id) {
  char name[MPI_MAX_OBJECT_NAME] = "";
  int length = 0;
  PMPI_Comm_get_name(comm_, name, &length);
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = 0;  // MPI's programs may let each other wait as long as they like
  config.device = KOLO_HOST;
  config.eager = 1;  // a root of theirs may send next what a peer receives before it calls the collective
  config.name = length > 0 ? name : nullptr;
  return koloCommInitRankConfig(&kolo_, ranks_, id, rank_, &config);
}

// Waits for the nonblocking collectives that are under way, and until all ranks have entered those in which this one
// only gave.
void Session::retire() {
  if (kolo_ == nullptr) return;
  koloCommFinalize(kolo_);  // then all looks are over
  noteLooks();
  if (koloCommDestroy(kolo_) != koloSuccess) warn(koloGetLastError(nullptr));
  kolo_ = nullptr;
}

// Retires if that needs no waiting; otherwise nothing happens. REQUIRES: the communicator has been freed. So only
// requests that the program has still to complete can lead another thread here meanwhile.
bool Session::retiresAtOnce() {
  if (areRequestsOf(*this)) return false;
  if (kolo_ != nullptr) {
    koloSetMayWait(0);
    const koloResult_t result = koloCommFinalize(kolo_);
    koloSetMayWait(1);
    if (result == koloInProgress) return false;
    if (result != koloSuccess) warn(koloGetLastError(nullptr));
  }
  retire();
  return true;
}

Session::~Session() { retire(); }

int Session::release(MPI_Comm, int, void* attribute, void*) {
  sessions().end(*static_cast<const Session*>(attribute));
  return MPI_SUCCESS;
}

void Session::fold(void* acc, const void* in, size_t count, koloDataType_t, void* context) {
  const auto* const borrowed = static_cast<const Borrowed*>(context);
  PMPI_Reduce_local(in, acc, static_cast<int>(count), borrowed->datatype, borrowed->op);  // a few kilobytes at a time
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
  const Number& number = *findNumber(datatype);
  const Operator& its = *findOperator(op);
  reduction = {number.datatype, its.kolo};
  return number.isNative && its.isNative ? koloSuccess : borrow(op, datatype, reduction.op);
}

}  // namespace kolo::mpi
