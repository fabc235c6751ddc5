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

// It belongs to its generalized request, whose end is its own.
class Started final : public Pending {
 public:
  Started(Session& session, Hook hook, std::unique_ptr<Task> task)
      : Pending(std::move(task)), backlog_(session.backlog()), hook_(hook), rank_(session.rank()) {}

  // The request, or an error of the MPI's; then it is gone.
  int makeRequest() {
    const int code = PMPI_Grequest_start(query, release, cancel, this, &request_);
    if (code != MPI_SUCCESS) delete this;
    return code;
  }
  void enqueue() { backlog_.add(*this); }
  MPI_Request request() const { return request_; }

  // Until it is over, its session is there, and the backlog.
  void wait() { backlog_.waitFor(*this); }
  void hurry() { backlog_.hurry(); }

  // Once. After it the request may be completed, and this be gone, at any moment.
  void complete() {
    if (code() == MPI_SUCCESS) {
      store();
    } else {
      end_ = code();
      complain(std::string(nameOf(hook_)) + " on rank " + std::to_string(rank_) + ": " + message());
    }
    task_.reset();
    PMPI_Grequest_complete(request_);
  }

 private:
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

  Backlog& backlog_;
  Hook hook_;
  int rank_;
  int end_ = MPI_SUCCESS;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// Those that are not declared complete, by their requests.
class Table {
 public:
  bool isEmpty() const { return count_.load(std::memory_order_relaxed) == 0; }   // whose request a thread has, that it knows of

  void add(Started& started) {
    const std::lock_guard lock(mutex_);
    all_.emplace(keyOf(started.request()), &started);
    count_.store(all_.size(), std::memory_order_relaxed);
  }
  // nullptr: another kind of request.
  Started* find(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(keyOf(request));
    return found != all_.end() ? found->second : nullptr;
  }
  // The same; nobody else finds it any more.
  Started* take(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(keyOf(request));
    if (found == all_.end()) return nullptr;
    Started* const taken = found->second;
    all_.erase(found);
    count_.store(all_.size(), std::memory_order_relaxed);
    return taken;
  }

 private:
  // Handles are pointers in one MPI and integers in the other; both convert.
  static std::uintptr_t keyOf(MPI_Request request) { return (std::uintptr_t)request; }   // NOLINT

  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, Started*> all_;
};

// What the program has freed.
class Freed {
 public:
  void add(Started* started) {
    const std::lock_guard lock(mutex_);
    all_.push_back(started);
    isAny_.store(true, std::memory_order_relaxed);
  }
  void sweep() {
    if (!isAny_.load(std::memory_order_relaxed)) return;   // if another thread has just freed one, there will be another occasion
    std::vector<Started*> over;
    {
      const std::lock_guard lock(mutex_);
      const auto first = std::partition(all_.begin(), all_.end(), [](const Started* each) { return !each->isOver(); });
      over.assign(first, all_.end());
      all_.erase(first, all_.end());
      isAny_.store(!all_.empty(), std::memory_order_relaxed);
    }
    for (Started* const each : over) {
      MPI_Request request = each->request();
      each->complete();
      underneath().Request_free(&request);
    }
  }

 private:
  std::atomic<bool> isAny_{false};
  std::mutex mutex_;
  std::vector<Started*> all_;
};

// Never destroyed, as sessions.
Table& table() {
  static auto* const made = new Table;
  return *made;
}
Freed& freed() {
  static auto* const made = new Freed;
  return *made;
}

void complete(MPI_Request request) {
  if (Started* const mine = table().take(request)) mine->complete();
}

}  // namespace

int startTask(Session& session, Hook hook, std::unique_ptr<Task> task, MPI_Request* request) {
  sweepFreed();
  auto* const started = new Started(session, hook, std::move(task));
  const int code = started->makeRequest();
  if (code != MPI_SUCCESS) return code;
  *request = started->request();
  table().add(*started);
  started->enqueue();
  return MPI_SUCCESS;
}

void completeWhatIsOver(int count, const MPI_Request* requests) {
  if (table().isEmpty()) return;
  for (int i = 0; i < count; ++i) {
    Started* const found = table().find(requests[i]);
    if (found == nullptr) continue;
    if (found->isOver()) {
      complete(requests[i]);
    } else {
      found->hurry();
    }
  }
}

void completeAll(int count, const MPI_Request* requests) {
  if (table().isEmpty()) return;
  for (int i = 0; i < count; ++i) {
    Started* const found = table().find(requests[i]);
    if (found == nullptr) continue;
    found->wait();
    complete(requests[i]);
  }
}

bool hasTasks(int count, const MPI_Request* requests) {
  if (table().isEmpty()) return false;
  return std::any_of(requests, requests + std::max(count, 0), [](MPI_Request each) { return table().find(each) != nullptr; });
}

bool freeBeforeItIsOver(MPI_Request request) {
  if (table().isEmpty()) return false;
  Started* const found = table().take(request);
  if (found == nullptr) return false;
  if (found->isOver()) {
    found->complete();
    return false;
  }
  freed().add(found);
  return true;
}

void sweepFreed() { freed().sweep(); }

}  // namespace kolo::mpi
