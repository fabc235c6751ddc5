#include "socket.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <vector>

#include "base/descriptor.h"

namespace kolo::connect {
namespace {

// All that are open, by their number. The mutex is held over fork, and innermost of all.
struct Registry {
  std::mutex mutex;
  std::vector<bool> open;
  std::atomic<unsigned> generation{1};
};

Registry& registry() {
  static auto* const instance = [] {
    static auto* const made = new Registry;  // never destroyed: threads may run while the process exits
    (void)pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                         [] {
                           made->generation.fetch_add(1, std::memory_order_relaxed);
                           for (std::size_t fd = 0; fd < made->open.size(); ++fd) {
                             if (made->open[fd]) ::close(static_cast<int>(fd));
                           }
                           made->open.clear();
                           made->mutex.unlock();
                         });
    return made;
  }();
  return *instance;
}

}  // namespace

unsigned forkGeneration() { return registry().generation.load(std::memory_order_relaxed); }

Socket::Socket(int fd) : fd_(clearOfStandard(fd)), generation_(forkGeneration()) {
  if (fd_ < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto at = static_cast<std::size_t>(fd_);
  if (all.open.size() <= at) all.open.resize(at + 64);
  all.open[at] = true;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
  }
  return *this;
}

void Socket::close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0 || generation_ != forkGeneration()) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.open[static_cast<std::size_t>(fd)] = false;
  ::close(fd);
}

bool isOutOfFiles(int errnum) { return errnum == EMFILE || errnum == ENFILE; }

}  // namespace kolo::connect
