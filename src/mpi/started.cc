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

// A generalized request, and the collective that it stands for, one after the other. Once it is declared complete it
// belongs to the MPI.
class Started final {
 public:
  // A new request. An error of the MPI's: then it is gone.
  int makeRequest() {
    const int code = PMPI_Grequest_start(query, release, cancel, this, &request_);
    if (code != MPI_SUCCESS) delete this;
    return code;
  }
  MPI_Request request() const { return request_; }

  void begin(const Session& session, Hook hook, std::unique_ptr<Task> task, std::unique_ptr<OnHost> buffers) {
    task_ = std::move(task);
    buffers_ = std::move(buffers);
    session_.store(&session, std::memory_order_relaxed);
    hook_ = hook;
    rank_ = session.rank();
    end_ = MPI_SUCCESS;
  }

  // Until it is over, its session is there.
  bool isOver() { return task_->isOver(); }
  void wait() { task_->wait(); }

  bool programHasIt() const {
    return programHasIt_.load(std::memory_order_acquire);
  }  // [given back] before the session may go
  void setProgramHasIt(bool has) { programHasIt_.store(has, std::memory_order_release); }  // [given back] after its use
  // The last one that it was of.
  const Session* session() const { return session_.load(std::memory_order_relaxed); }

  // Once, when it is over: puts what arrived in its place. MPI_SUCCESS, or how it failed.
  int finish() {
    if (task_->result() == koloSuccess) {
      store();
    } else {
      fail(classOf(task_->result()), task_->message().c_str());
    }
    task_.reset();
    buffers_.reset();
    return end_;
  }

 private:
  ~Started() = default;  // by release()

  void store() {
    try {
      task_->store();
      if (buffers_ != nullptr) end_ = buffers_->store();
    } catch (const MpiError& error) {
      fail(error.code, error.what);
    }
  }
  void fail(int code, const char* why) {
    end_ = code;
    complain(std::string(nameOf(hook_)) + " on rank " + std::to_string(rank_) + ": " + why);
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
  static int cancel(void*, int) { return MPI_SUCCESS; }  // MPI forbids it, and nothing can be taken back

  std::unique_ptr<OnHost> buffers_;  // outlive the task
  std::unique_ptr<Task> task_;
  std::atomic<const Session*> session_{nullptr};
  Hook hook_ = Hook::kCount;
  int rank_ = 0;
  int end_ = MPI_SUCCESS;
  std::atomic<bool> programHasIt_{false};
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// Of all threads, and apart from the objects below, for every call that completes requests of whatever kind asks them.
constinit std::atomic<int> underWay{0};           // the program's requests that are of tasks
constinit std::atomic<std::uint64_t> changes{1};  // of the map below
constinit std::atomic<bool> areFreed{false};

// Whether the program has one that this thread can know of.
bool isAny() { return underWay.load(std::memory_order_relaxed) != 0; }

// The requests that are not declared complete: the program's, the threads' spares, and those that are kept for any
// thread.
class Requests {
 public:
  // One that was kept; nullptr: there is none.
  Started* takeKept() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return nullptr;
    Started* const taken = kept_.back();
    kept_.pop_back();
    return taken;
  }
  void add(Started& started) {
    const std::lock_guard lock(mutex_);
    kept_.reserve(all_.size() + 1);  // keep() does not fail
    all_.emplace(keyOf(started.request()), &started);
  }
  // Neither the program's nor a thread's any longer.
  void keep(Started& started) {
    const std::lock_guard lock(mutex_);
    if (!hasEnded_) kept_.push_back(&started);
  }
  // It is to be declared complete. Code that remembers what it found here has to look again when `changes` has changed:
  // a handle may be another request's then. A thread that has such a handle has it from the one that made the change,
  // after this.
  void remove(const Started& started) {
    const std::lock_guard lock(mutex_);
    all_.erase(keyOf(started.request()));
    changes.fetch_add(1, std::memory_order_relaxed);
  }
  // nullptr: another kind of request.
  Started* find(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(keyOf(request));
    return found != all_.end() ? found->second : nullptr;
  }
  // Whether the program has one that is of this session.
  bool areAnyOf(const Session& session) {
    const std::lock_guard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(), [&](const auto& each) {
      return each.second->programHasIt() && each.second->session() == &session;
    });
  }
  // At the end: those that the program does not have, whichever thread keeps them.
  std::vector<Started*> takeLast() {
    const std::lock_guard lock(mutex_);
    hasEnded_ = true;
    kept_.clear();
    std::vector<Started*> last;
    for (const auto& [key, started] : all_) {
      if (!started->programHasIt()) last.push_back(started);
    }
    return last;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, Started*> all_;
  std::vector<Started*> kept_;
  bool hasEnded_ = false;
};

// What the program has freed and is not over, or was not when somebody looked.
class Freed {
 public:
  void add(Started* started) {
    const std::lock_guard lock(mutex_);
    all_.push_back(started);
    areFreed.store(true, std::memory_order_relaxed);
  }
  std::vector<Started*> takeWhatIsOver() {
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(all_.begin(), all_.end(), [](Started* each) { return !each->isOver(); });
    std::vector<Started*> over(first, all_.end());
    all_.erase(first, all_.end());
    areFreed.store(!all_.empty(), std::memory_order_relaxed);
    return over;
  }

 private:
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
struct LastStarted {
  MPI_Request request;
  Started* started;
  std::uint64_t changes;  // when it was found
};
[[gnu::tls_model("initial-exec")]] thread_local constinit LastStarted lastStarted = {};

// The request that the thread took last, for its next collective: to keep it among all and to take it from there costs
// as much as a short collective. Programs may call from the destructors of global objects, when what the main thread
// has of its own has ended: then there is none.
[[gnu::tls_model("initial-exec")]] thread_local constinit Started* spare = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local constinit bool hasThreadEnded = false;

// Whether it became the thread's spare.
bool becomesSpare(Started& started) {
  if (spare != nullptr || hasThreadEnded) return false;
  struct AtThreadEnd {
    ~AtThreadEnd() {
      hasThreadEnded = true;
      if (Started* const last = std::exchange(spare, nullptr); last != nullptr) all().keep(*last);
    }
  };
  static thread_local const AtThreadEnd atThreadEnd;
  spare = &started;
  return true;
}

Started* find(MPI_Request request) {
  if (!isAny()) return nullptr;
  if (lastStarted.request == request && lastStarted.changes == changes.load(std::memory_order_relaxed))
    return lastStarted.started;
  return all().find(request);
}

// It is not the program's any longer.
void giveBack(Started& started) {
  underWay.fetch_sub(1, std::memory_order_relaxed);
  started.setProgramHasIt(false);
  if (!becomesSpare(started)) all().keep(started);
}

void declareComplete(const Started& started) {
  all().remove(started);
  underWay.fetch_sub(1, std::memory_order_relaxed);
  PMPI_Grequest_complete(started.request());  // it may be gone from here on
}

// One that is over, of the program's. Whether it was taken.
bool take(Started& started, MPI_Request& request) {
  if (started.finish() != MPI_SUCCESS) {
    declareComplete(started);
    return false;
  }
  request = MPI_REQUEST_NULL;
  giveBack(started);
  return true;
}

}  // namespace

int giveRequest(const Session& session, Hook hook, std::unique_ptr<Task> task, std::unique_ptr<OnHost> buffers,
                MPI_Request* request) {
  sweepFreed();
  Started* started = std::exchange(spare, nullptr);
  if (started == nullptr) started = all().takeKept();
  if (started == nullptr) {
    started = new Started;
    const int code = started->makeRequest();
    if (code != MPI_SUCCESS) return code;
    all().add(*started);
  }
  underWay.fetch_add(1, std::memory_order_relaxed);
  started->setProgramHasIt(true);
  started->begin(session, hook, std::move(task), std::move(buffers));
  lastStarted = {started->request(), started, changes.load(std::memory_order_relaxed)};
  *request = started->request();
  return MPI_SUCCESS;
}

int takeAll(int count, MPI_Request* requests) {
  int taken = 0;
  for (int i = 0; i < count && isAny(); ++i) {
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
    Started* const found = find(requests[i]);
    if (found == nullptr || !found->isOver()) return false;
  }
  takeAll(count, requests);
  return true;
}

void declareWhatIsOver(int count, const MPI_Request* requests) {
  for (int i = 0; i < count && isAny(); ++i) {
    Started* const found = find(requests[i]);
    if (found == nullptr || !found->isOver()) continue;
    found->finish();
    declareComplete(*found);
  }
}

bool hasTasks(int count, const MPI_Request* requests) {
  return isAny() &&
         std::any_of(requests, requests + std::max(count, 0), [](MPI_Request each) { return find(each) != nullptr; });
}

bool areRequestsOf(const Session& session) { return all().areAnyOf(session); }

bool letGo(MPI_Request request) {
  Started* const found = find(request);
  if (found == nullptr) return false;
  freed().add(found);
  sweepFreed();
  return true;
}

// Of an error the program can be told no more than what finish() says.
void sweepFreed() {
  if (!areFreed.load(std::memory_order_relaxed))
    return;  // if another thread has just freed one, there will be another occasion
  for (Started* const each : freed().takeWhatIsOver()) {
    each->finish();
    giveBack(*each);
  }
}

void endRequests() {
  sweepFreed();
  for (Started* const each : all().takeLast()) {
    MPI_Request request = each->request();
    all().remove(*each);
    PMPI_Grequest_complete(request);
    underneath().Request_free(&request);
  }
}

}  // namespace kolo::mpi
