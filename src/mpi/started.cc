#include "mpi/started.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mpi/errors.h"
#include "mpi/regions.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

// A generalized request, and the collective that it stands for, one after the other. Once it is declared complete it belongs to the MPI.
class Started final : public Pending {
 public:
  // A new request. An error of the MPI's: then it is gone.
  int makeRequest() {
    const int code = PMPI_Grequest_start(query, release, cancel, this, &request_);
    if (code != MPI_SUCCESS) delete this;
    return code;
  }
  MPI_Request request() const { return request_; }

  void begin(Session& session, Backlog& backlog, Hook hook, std::unique_ptr<Task> task) {
    renew(std::move(task));
    backlog_ = &backlog;
    hook_ = hook;
    rank_ = session.rank();
    end_ = MPI_SUCCESS;
    backlog.add(*this);
  }

  // Until it is over, its session is there, and the backlog.
  void wait() { backlog_->waitFor(*this); }
  void hurry() { backlog_->hurry(); }

  // Once, when it is over: puts what arrived in its place. MPI_SUCCESS, or how it failed.
  int finish() {
    if (code() == MPI_SUCCESS) {
      store();
    } else {
      end_ = code();
      complain(std::string(nameOf(hook_)) + " on rank " + std::to_string(rank_) + ": " + message());
    }
    task_.reset();
    return end_;
  }

 private:
  ~Started() = default;   // by release()

  void store() {
    try {
      task_->store();
    } catch (const MpiError& error) {
      end_ = error.code;
    }
  }

  static int query(void* self, MPI_Status* status) {
    PMPI_Status_set_elements(status, MPI_BYTE, 0);
    PMPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_ANY_SOURCE;
    status->MPI_TAG = MPI_ANY_TAG;
    return static_cast<Started*>(self)->end_;
  }
  static int release(void* self) {
    delete static_cast<Started*>(self);
    return MPI_SUCCESS;
  }
  static int cancel(void*, int) { return MPI_SUCCESS; }   // MPI forbids it, and nothing can be taken back

  Backlog* backlog_ = nullptr;
  Hook hook_ = Hook::kCount;
  int rank_ = 0;
  int end_ = MPI_SUCCESS;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// The requests that are not declared complete: the program's and those that are kept for it, in no order that matters.
class Requests {
 public:
  // Whether the program has one that this thread can know of.
  bool isAny() const { return underWay_.load(std::memory_order_relaxed) != 0; }
  // Whoever remembers what he found here has to look again when it has changed: a handle may be another request's then. A thread that has such
  // a handle has it from the one that made the change, after this.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

  // One that was kept; nullptr: there is none.
  Started* takeKept() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return nullptr;
    Started* const taken = kept_.back();
    kept_.pop_back();
    count(+1);
    return taken;
  }
  void add(Started& started) {
    const std::lock_guard lock(mutex_);
    kept_.reserve(all_.size() + 1);   // keep() does not fail
    all_.emplace(keyOf(started.request()), &started);
    count(+1);
  }
  // It is the program's no longer.
  void keep(Started& started) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(&started);
    count(-1);
  }
  // It is to be declared complete.
  void remove(const Started& started) {
    const std::lock_guard lock(mutex_);
    all_.erase(keyOf(started.request()));
    changes_.fetch_add(1, std::memory_order_relaxed);
    count(-1);
  }
  // nullptr: another kind of request.
  Started* find(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(keyOf(request));
    return found != all_.end() ? found->second : nullptr;
  }

 private:
  // Under the lock.
  void count(int change) { underWay_.store(underWay_.load(std::memory_order_relaxed) + change, std::memory_order_relaxed); }

  std::atomic<int> underWay_{0};   // the program's
  std::atomic<std::uint64_t> changes_{1};
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, Started*> all_;
  std::vector<Started*> kept_;
};

// What the program has freed and is not over, or was not when somebody looked.
class Freed {
 public:
  bool isAny() const { return isAny_.load(std::memory_order_relaxed); }   // if another thread has just freed one, there will be another occasion
  void add(Started* started) {
    const std::lock_guard lock(mutex_);
    all_.push_back(started);
    isAny_.store(true, std::memory_order_relaxed);
  }
  std::vector<Started*> takeWhatIsOver() {
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(all_.begin(), all_.end(), [](const Started* each) { return !each->isOver(); });
    std::vector<Started*> over(first, all_.end());
    all_.erase(first, all_.end());
    isAny_.store(!all_.empty(), std::memory_order_relaxed);
    return over;
  }

 private:
  std::atomic<bool> isAny_{false};
  std::mutex mutex_;
  std::vector<Started*> all_;
};

// Never destroyed, as sessions.
Requests& all() {
  static auto* const made = new Requests;
  return *made;
}
Freed& freed() {
  static auto* const made = new Freed;
  return *made;
}

// The request that the thread started last: most programs wait for that one.
struct Last {
  MPI_Request request;
  Started* started;
  std::uint64_t changes;   // when it was found
};
[[gnu::tls_model("initial-exec")]] thread_local constinit Last last = {};

Started* find(MPI_Request request) {
  if (!all().isAny()) return nullptr;
  if (last.request == request && last.changes == all().changes()) return last.started;
  return all().find(request);
}

void declareComplete(const Started& started) {
  all().remove(started);
  PMPI_Grequest_complete(started.request());   // it may be gone from here on
}

// One that is over, of the program's. Whether it was taken.
bool take(Started& started, MPI_Request& request) {
  if (started.finish() != MPI_SUCCESS) {
    declareComplete(started);
    return false;
  }
  request = MPI_REQUEST_NULL;
  all().keep(started);
  return true;
}

}  // namespace

int startTask(Session& session, Hook hook, std::unique_ptr<Task> task, MPI_Request* request) {
  sweepFreed();
  Backlog& backlog = session.backlog();
  Started* started = all().takeKept();
  if (started == nullptr) {
    started = new Started;
    const int code = started->makeRequest();
    if (code != MPI_SUCCESS) return code;
    all().add(*started);
  }
  try {
    started->begin(session, backlog, hook, std::move(task));
  } catch (...) {
    all().keep(*started);
    throw;
  }
  last = {started->request(), started, all().changes()};
  *request = started->request();
  return MPI_SUCCESS;
}

int takeAll(int count, MPI_Request* requests) {
  int taken = 0;
  for (int i = 0; i < count && all().isAny(); ++i) {
    Started* const found = find(requests[i]);
    if (found == nullptr) continue;
    found->wait();
    if (take(*found, requests[i])) ++taken;
  }
  return taken;
}

bool takeIfAllAreOver(int count, MPI_Request* requests) {
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    const Started* const found = find(requests[i]);
    if (found == nullptr || !found->isOver()) return false;
  }
  takeAll(count, requests);
  return true;
}

void declareWhatIsOver(int count, const MPI_Request* requests) {
  for (int i = 0; i < count && all().isAny(); ++i) {
    Started* const found = find(requests[i]);
    if (found == nullptr) continue;
    if (found->isOver()) {
      found->finish();
      declareComplete(*found);
    } else {
      found->hurry();
    }
  }
}

bool hasTasks(int count, const MPI_Request* requests) {
  return all().isAny() && std::any_of(requests, requests + std::max(count, 0), [](MPI_Request each) { return find(each) != nullptr; });
}

bool letGo(MPI_Request request) {
  Started* const found = find(request);
  if (found == nullptr) return false;
  freed().add(found);
  sweepFreed();
  return true;
}

// Of an error the program can be told no more than what finish() says.
void sweepFreed() {
  if (!freed().isAny()) return;
  for (Started* const each : freed().takeWhatIsOver()) {
    each->finish();
    all().keep(*each);
  }
}

void endRequests() {
  sweepFreed();
  while (Started* const each = all().takeKept()) {
    MPI_Request request = each->request();
    declareComplete(*each);
    underneath().Request_free(&request);
  }
}

}  // namespace kolo::mpi
