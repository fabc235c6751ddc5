#include "base/membarrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

namespace kolo {
namespace {

bool membarrier(int command) { return syscall(__NR_membarrier, command, 0, 0) == 0; }

const bool has = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
[[maybe_unused]] const bool hears = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);

}  // namespace

bool hasMembarrier() { return has; }

bool barrierInThreads() {
  // It may fail when the kernel lacks memory for a moment, or if this process has to register again (after a fork,
  // say).
  const timespec nap{0, 1'000'000};
  for (int tries = 0; tries < 100; ++tries) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return true;
    const bool isForbidden = errno == EPERM || errno == EACCES || errno == ENOSYS;
    const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    if (registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return true;
    if (membarrier(MEMBARRIER_CMD_GLOBAL)) return true;
    if (isForbidden && !registered) return false;
    nanosleep(&nap, nullptr);
  }
  return false;
}

bool barrierInProcesses() { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED); }

}  // namespace kolo
