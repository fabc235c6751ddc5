#include "mpi/sessions.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

#include "mpi/report.h"
#include "mpi/started.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

// To make a counterpart takes about as long as so many short collectives of the MPI's, among few ranks of one host.
constexpr std::uint64_t kUsualPrice = 256;

std::uint64_t readPrice() {
  const char* const given = ::secure_getenv("KOLO_MPI_COMM_AFTER");
  if (given == nullptr || *given == 0) return kUsualPrice;
  const char* const end = given + std::strlen(given);
  int price = 0;
  const auto [stop, error] = std::from_chars(given, end, price);
  if (error == std::errc() && stop == end && price >= 0) return static_cast<std::uint64_t>(price);
  warn("environment variable KOLO_MPI_COMM_AFTER is \"" + std::string(given) +
       "\", expected a number of collectives, 0.." + std::to_string(INT_MAX) + "; it is taken as " +
       std::to_string(kUsualPrice));
  return kUsualPrice;
}

// As MPI_COMM_NULL_COPY_FN, which is a function of the MPI's.
int copyNothing(MPI_Comm, int, void*, void*, void*, int* isCopied) {
  *isCopied = 0;
  return MPI_SUCCESS;
}

void tellMpi() {
  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) inform("rank 0 uses " + nameOfMpi());
}

}  // namespace

bool Sessions::open() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kClosed) return state_ == State::kOpen;
  reachMpi();
  int initialized = 0, finalized = 0;
  PMPI_Initialized(&initialized);
  PMPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return false;
  PMPI_Comm_create_keyval(copyNothing, Session::release, &keyval_, nullptr);
  PMPI_Comm_create_keyval(copyNothing, finalize, &finalizer_, nullptr);
  PMPI_Comm_set_attr(MPI_COMM_SELF, finalizer_, this);
  PMPI_Comm_split(MPI_COMM_SELF, 0, 0, &own_);  // not a duplicate, which would copy the program's attributes
  PMPI_Irecv(nullptr, 0, MPI_BYTE, 0, 0, own_, &never_);
  setPrice(readPrice());
  tellMpi();
  state_.store(State::kOpen, std::memory_order_release);  // [open] with the keyvals
  return true;
}

// Communicators that the program did not free: their sessions go, their attributes stay to the MPI.
void Sessions::close() {
  state_.store(State::kOver, std::memory_order_release);
  change();
  for (const auto& [number, session] : all_) session->retire();
  ending_.clear();  // each waits for what it still needs
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

Session* Sessions::add(std::unique_ptr<Session> session) {
  const std::lock_guard lock(mutex_);
  session->number_ = ++made_;
  return all_.emplace(made_, std::move(session)).first->second.get();
}

koloComm_t Sessions::counterpartOf(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(number);
  return found != all_.end() ? found->second->kolo_ : nullptr;
}

void Sessions::end(const Session& session) {
  {
    const std::lock_guard lock(mutex_);
    auto removed = all_.extract(session.number_);
    if (removed.empty()) return;
    if (!session.isYoung()) change();  // of a young one nobody remembers anything
    ending_.push_back(std::move(removed.mapped()));
  }
  sweep();
}

void Sessions::sweep() {
  std::vector<std::unique_ptr<Session>> tried;
  {
    const std::lock_guard lock(mutex_);
    tried.swap(ending_);
  }
  std::erase_if(tried, [](const auto& each) { return each->retiresAtOnce(); });
  if (tried.empty()) return;
  const std::lock_guard lock(mutex_);
  std::move(tried.begin(), tried.end(), std::back_inserter(ending_));
}

// While Kolo waits, the MPI must go on: a peer may be unable to come before it has received what this rank sends. Both
// MPIs make progress while they test a request that is not complete (MPICH does not while it probes). One thread at a
// time may test it.
void Sessions::progress() {
  const std::unique_lock lock(testing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  int done = 0;
  underneath().Test(&never_, &done, MPI_STATUS_IGNORE);
}

}  // namespace kolo::mpi
