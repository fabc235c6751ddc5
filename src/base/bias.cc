#include "base/bias.h"

#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/membarrier.h"
#include "base/of_thread.h"

namespace kolo {
namespace {

constexpr std::chrono::milliseconds kInsteadOfBarrier{50};
constinit std::atomic<bool> isRefused{false};  // the barrier, by a filter that has come since isPossible()

}  // namespace

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
  try {
    if (thisThread == nullptr) thisThread = ofThread<Lease>().thread;
  } catch (const std::bad_alloc&) {
    return;  // the thread goes without, as where another one has it
  }
  if (owner_.load(std::memory_order_relaxed) != nullptr || isRefused.load(std::memory_order_relaxed)) return;
  last_.store(thisThread, std::memory_order_relaxed);  // visible to the thread that is served after this turn
  Thread* nobody = nullptr;
  owner_.compare_exchange_strong(nobody, thisThread, std::memory_order_seq_cst);
}

void Bias::revokeNow() {
  // Not nobody yet: others that come before the barrier is done must not believe that it has been.
  owner_.store(&revoking, std::memory_order_seq_cst);
  if (!barrierInThreads()) {  // [bias]
    // No bias is given any more. For those that have been: the owner's store of `inside` waits in its core, if it is
    // not visible yet, and cores give what they have stored within microseconds; when they stop for an interrupt or
    // another thread, at once. So it is visible behind this pause, if the owner has entered; and an owner that enters
    // behind it has seen the store above.
    isRefused.store(true, std::memory_order_relaxed);
    std::this_thread::sleep_for(kInsteadOfBarrier);
  }
  Thread* expected = &revoking;
  owner_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
}

}  // namespace kolo
