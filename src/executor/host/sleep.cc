#include "executor/host/sleep.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <climits>

#include "base/membarrier.h"

namespace kolo::executor {
namespace {

// The half of the word that the kernel compares, and that is not 0 if the word is not.
std::uint32_t* lowHalf(AsleepWord& word) {
  return reinterpret_cast<std::uint32_t*>(&word.value) + (std::endian::native == std::endian::big ? 1 : 0);
}

}  // namespace

bool maySleep(AsleepWord& word) {
  if (device::loadRelaxed(word) != 0) return true;
  device::storeRelaxed(word, 1);
  (void)barrierInProcesses();  // [asleep]
  return false;
}

void sleep(AsleepWord& word, std::int64_t ns) {
  pthread_testcancel();  // as any sleep is a point where a thread is cancelled
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, lowHalf(word), FUTEX_WAIT, 1, &time, nullptr, 0);  // the peers are other processes: not private
}

void wake(AsleepWord& word) {
  if (std::atomic_ref(word.value).exchange(0, std::memory_order_relaxed) == 0) return;  // another one does it
  syscall(SYS_futex, lowHalf(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kolo::executor
