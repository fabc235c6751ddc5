#include "executor/emulated/emulated_executor.h"

#include <thread>
#include <vector>

#include "algorithms/execute.h"
#include "executor/emulated/emulated_team.h"

namespace kolo::executor {
namespace {

class EmulatedExecutor final : public Executor {
 public:
  explicit EmulatedExecutor(unsigned threads) : threads_(threads) {}

  void run(const device::Work& work, const Context& context) override {
    Block block(work, context, threads_);
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads_; ++thread) {
      others.emplace_back([&block, &work, thread] {
        EmulatedTeam team(block, thread);
        algorithms::execute(team, work);
      });
    }
    EmulatedTeam leader(block, 0);
    algorithms::execute(leader, work);
    for (std::thread& other : others) other.join();
  }

 private:
  unsigned threads_;
};

}  // namespace

void EmulatedTeam::reduceBy(const BlockIndex& team, const device::ReduceArgs& args) {
  if (block_.work.op == device::ReduceOp::kUser) {
    // A user's function is the host's: no GPU runs it, and no two threads of a block share it.
    if (team.thread() == 0) userFold(*block_.context.user, args);
    return;
  }
  reduceInBlock(team, block_.context.datatype, block_.work.op, args);
}

void EmulatedTeam::reduceAlone(const device::ReduceArgs& args) {
  reduceBy({0, 1}, args);
}

void EmulatedTeam::wait(const device::Counter& counter, std::uint64_t target, int peer) {
  WaitState state;
  while (device::loadAcquire(counter) < target) {
    const device::Fault fault = block_.context.owner->keepWaiting(block_.work, peer, state);
    if (device::loadAcquire(counter) >= target) return;
    if (fault.kind != device::Fault::kNone) {
      fail(fault);
      return;
    }
  }
}

std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads) { return std::make_unique<EmulatedExecutor>(threads); }

}  // namespace kolo::executor
