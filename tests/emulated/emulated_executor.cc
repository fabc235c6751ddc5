#include "emulated/emulated_executor.h"

#include <atomic>
#include <thread>
#include <vector>

#include "algorithms/execute.h"
#include "emulated/emulated_team.h"

namespace kolo::executor {
namespace {

std::atomic<int> mostSignals{0};

// Counts what its thread sends.
class CountingTeam : public device::BlockTeam<EmulatedPlatform> {
 public:
  using device::BlockTeam<EmulatedPlatform>::BlockTeam;
  ~CountingTeam() {
    int most = mostSignals.load(std::memory_order_relaxed);
    while (most < signals_ && !mostSignals.compare_exchange_weak(most, signals_, std::memory_order_relaxed)) {
    }
  }
  CountingTeam(const CountingTeam&) = delete;

  static constexpr bool kWakes = true;  // so that it hears of each signal
  void wake(const device::Link&) { ++signals_; }

 private:
  int signals_ = 0;
};

class EmulatedExecutor final : public Executor {
 public:
  explicit EmulatedExecutor(unsigned threads) : threads_(threads) {}

  void run(const device::Work& work, const Context& context) override {
    Block block(work, context, threads_);
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads_; ++thread) {
      others.emplace_back([&block, thread] { runThread(block, thread); });
    }
    runThread(block, 0);
    for (std::thread& other : others) other.join();
  }

 private:
  static void runThread(Block& block, unsigned thread) {
    EmulatedPlatform platform(block, thread);
    CountingTeam team(platform, block.work);
    algorithms::execute(team, block.work);
  }

  unsigned threads_;
};

}  // namespace

int takeMostSignals() { return mostSignals.exchange(0, std::memory_order_relaxed); }

std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads) { return std::make_unique<EmulatedExecutor>(threads); }

}  // namespace kolo::executor
