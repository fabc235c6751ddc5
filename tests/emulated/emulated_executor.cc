#include "emulated/emulated_executor.h"

#include <thread>
#include <vector>

#include "algorithms/execute.h"
#include "emulated/emulated_team.h"

namespace kolo::executor {
namespace {

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
    device::BlockTeam<EmulatedPlatform> team(platform, block.work);
    algorithms::execute(team, block.work);
  }

  unsigned threads_;
};

}  // namespace

std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads) { return std::make_unique<EmulatedExecutor>(threads); }

}  // namespace kolo::executor
