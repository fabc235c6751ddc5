#include "base/bias.h"

#include <mutex>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/membarrier.h"
#include "base/of_thread.h"

namespace kolo {

// The objects of threads that have ended. As the process's handles, they live as long as the process does.
struct Bias::Threads {
  std::mutex mutex;
  std::vector<Thread*> unused;

  Thread* take() {
    const std::lock_guard lock(mutex);
    if (unused.empty()) return new Thread;
    Thread* const again = unused.back();
    unused.pop_back();
    return again;
  }
  void giveBack(Thread* thread) {
    const std::lock_guard lock(mutex);
    unused.push_back(thread);
  }
};

thread_local constinit Bias::Thread* Bias::thisThread = nullptr;
constinit Bias::Thread Bias::revoking;

bool Bias::isPossible() {
  // At the debug level every call is written to the log, and so none may pass by where that is done.
  static const bool possible = !log::enabled(log::Level::kDebug) && hasMembarrier();
  return possible;
}

void Bias::give() {
  struct Lease {
    Thread* const thread = ofThisProcess<Threads>().take();
    ~Lease() {
      thisThread = nullptr;
      ofThisProcess<Threads>().giveBack(thread);
    }
  };
  if (thisThread == nullptr) thisThread = ofThread<Lease>().thread;
  if (owner_.load(std::memory_order_relaxed) != nullptr) return;
  last_.store(thisThread, std::memory_order_relaxed);  // visible to the thread that is served after this turn
  Thread* nobody = nullptr;
  owner_.compare_exchange_strong(nobody, thisThread, std::memory_order_seq_cst);
}

void Bias::revokeNow() {
  // Not nobody yet: others that come before the barrier is done must not believe that it has been.
  owner_.store(&revoking, std::memory_order_seq_cst);
  barrierInThreads();  // [bias]
  Thread* expected = &revoking;
  owner_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
}

}  // namespace kolo
