#include "base/bias.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace kolo {
namespace {

bool membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0) == 0; }

// Every thread of the process passes a full barrier between the call and its return.
void barrierEverywhere() {
  // It fails in a forked child, which has to register again, and when the kernel lacks memory for a moment.
  const timespec nap{0, 1'000'000};
  while (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !membarrier(MEMBARRIER_CMD_GLOBAL)) {
    if (!membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)) nanosleep(&nap, nullptr);
  }
}

}  // namespace

thread_local constinit std::uint64_t Bias::number = 0;

std::uint64_t Bias::nextNumber() {
  static std::atomic<std::uint64_t> last{kRevoking};
  return number = last.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool Bias::isPossible() {
  static const bool possible = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return possible;
}

void Bias::revokeNow() {
  // Not kNobody yet: others that come before the barrier is done must not believe that it has been.
  owner_.store(kRevoking, std::memory_order_seq_cst);
  barrierEverywhere();  // [bias]
  std::uint64_t revoking = kRevoking;
  owner_.compare_exchange_strong(revoking, kNobody, std::memory_order_seq_cst);
}

}  // namespace kolo
