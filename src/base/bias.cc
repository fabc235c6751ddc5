#include "base/bias.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/of_thread.h"

namespace kolo {
namespace {

bool membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0) == 0; }

// Every thread of the process passes a full barrier between the call and its return.
void barrierEverywhere() {
  // It may fail when the kernel lacks memory for a moment, or if this process has to register again (after a fork,
  // say).
  const timespec nap{0, 1'000'000};
  while (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) {
    const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    if (registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
    if (membarrier(MEMBARRIER_CMD_GLOBAL)) return;
    nanosleep(&nap, nullptr);
  }
}

}  // namespace

// The objects of threads that have ended. As the process's handles, they live as long as the process does.
struct Bias::Threads {
  std::mutex mutex;
  std::vector<Thread*> unused;

  static Threads& all() {
    static auto* const instance = new Threads;
    return *instance;
  }
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
  static const bool possible =
      !log::enabled(log::Level::kDebug) && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return possible;
}

void Bias::give() {
  struct Lease {
    Thread* const thread = Threads::all().take();
    ~Lease() {
      thisThread = nullptr;
      Threads::all().giveBack(thread);
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
  barrierEverywhere();  // [bias]
  Thread* expected = &revoking;
  owner_.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
}

}  // namespace kolo
