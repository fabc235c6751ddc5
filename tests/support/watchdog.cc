#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "support/watchdog.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "support/deadline.h"
#include "support/seed.h"

namespace kolo::test {
namespace {

constexpr std::chrono::seconds kUsual{30 * kSlowness};

struct Place {
  std::atomic<bool> used{false};
  std::atomic<const char*> where{nullptr};
  std::atomic<int> rank{-1};
};
std::array<Place, 1024> places;

// A thread's row in the table, for as long as it lives.
struct Row {
  Row() {
    for (Place& place : places) {
      if (!place.used.exchange(true)) {
        mine = &place;
        return;
      }
    }
  }
  ~Row() {
    if (mine == nullptr) return;
    mine->where = nullptr;
    mine->used = false;
  }
  Place* mine = nullptr;
};

class Watchdog {
 public:
  void start(const std::string& name) {
    const std::lock_guard lock(mutex_);
    name_ = name;
    end_ = std::chrono::steady_clock::now() + within(kUsual, 1);
    running_ = true;
    if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
    changed_.notify_all();
  }
  void extend(std::chrono::seconds deadline) {
    const std::lock_guard lock(mutex_);
    end_ = std::chrono::steady_clock::now() + within(deadline * kSlowness, 1);
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!over_) {
      changed_.wait_for(lock, std::chrono::milliseconds(200));
      const auto now = std::chrono::steady_clock::now();
      if (running_ && now > end_ && now > lastRoundBegin() + within(kUsual, 1)) giveUp();
    }
  }
  [[noreturn]] void giveUp() {
    std::fprintf(stderr,
                 "\nwatchdog: \"%s\" did not end in time (KOLO_TEST_SEED=%llu); its threads were last seen at\n",
                 name_.c_str(), static_cast<unsigned long long>(currentSeed()));
    for (const Place& place : places) {
      if (const char* where = place.where) std::fprintf(stderr, "  %s (rank %d)\n", where, place.rank.load());
    }
    std::fflush(stderr);
    const std::string stacks = "command -v gdb > /dev/null && timeout 60 gdb -p " + std::to_string(::getpid()) +
                               " -batch -ex 'thread apply all backtrace 20' 2> /dev/null | grep '^#\\|^Thread' >&2";
    if (std::system(stacks.c_str()) != 0) std::fprintf(stderr, "  gdb shows no stacks, if it is there\n");
    // What failed before, which Catch has printed into the buffer of standard output; unless a thread that hangs holds
    // its lock.
    alarm(2);
    std::fflush(stdout);
    std::signal(SIGABRT, SIG_DFL);  // Catch's handler belongs to the main thread
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  std::string name_;
  std::chrono::steady_clock::time_point end_;
  bool running_ = false;
  bool over_ = false;
};

Watchdog& watchdog() {
  static auto* const instance = new Watchdog;
  return *instance;
}

struct Listener : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override { watchdog().start(info.name); }
  void testCaseEnded(const Catch::TestCaseStats&) override { watchdog().stop(); }
  void testRunEnded(const Catch::TestRunStats&) override { watchdog().finish(); }
};
CATCH_REGISTER_LISTENER(Listener)

}  // namespace

void place(const char* where, int rank) {
  thread_local Row row;
  if (row.mine == nullptr) return;
  row.mine->rank = rank;
  row.mine->where = where;
}

void extendDeadline(std::chrono::seconds deadline) { watchdog().extend(deadline); }

}  // namespace kolo::test
