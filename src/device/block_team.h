// The team that is a block of threads: on a GPU, or played by host threads. What the two have apart is the platform:
//   unsigned thread() const, threads() const   this thread's index, how many there are
//   bool syncOr(bool)                          barrier of the block; whether any thread said true
//   Fault keepWaiting(peer, state)             by the leader, between two rounds of polling: kNone, or why to give up
//   int polls() const                          in a round
//   bool read(peer, to, from, bytes)           as Team::read, by the leader; false where it is not possible
//   void reduce(index, work, args)             blockReduce() of the work's datatype and operation; index: thread() and threads()
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/block_ops.h"
#include "device/work.h"

namespace kolo::device {

template <class Platform>
class BlockTeam {
 public:
  KOLO_DEVICE BlockTeam(Platform& platform, const Work& work) : platform_(platform), work_(work) {}

  KOLO_DEVICE bool leader() const { return platform_.thread() == 0; }
  KOLO_DEVICE bool failed() const { return failed_; }

  // Only the leader ever says that it has failed; after the barrier all know.
  KOLO_DEVICE void sync() { failed_ = platform_.syncOr(failed_); }
  KOLO_DEVICE void fail(const Fault& fault) {
    if (!failed_) *work_.fault = fault;
    failed_ = true;
  }

  KOLO_DEVICE_CALL bool waitAtLeast(const Counter& counter, std::uint64_t target, int peer) {
    if (leader() && !failed_) wait(counter, target, peer);
    sync();
    return !failed_;
  }

  // Whether the counter is there already; all threads get the same answer. A barrier.
  KOLO_DEVICE_CALL bool isAtLeast(const Counter& counter, std::uint64_t target) {
    return platform_.syncOr(leader() && loadAcquire(counter) >= target);
  }
  // Between two rounds of looking for what can be done: fails if it is time to give up.
  typedef typename Platform::WaitState WaitState;
  KOLO_DEVICE_CALL void pause(int peer, WaitState& state) {
    if (leader() && !failed_) {
      const Fault fault = platform_.keepWaiting(peer, state);
      if (fault.kind != Fault::kNone) fail(fault);
    }
    sync();
  }

  KOLO_DEVICE void copy(void* dst, const void* src, std::uint64_t bytes, bool streaming) {
    blockCopy(index(), dst, src, bytes, streaming);
  }
  KOLO_DEVICE void read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (leader() && !platform_.read(peer, to, from, bytes)) fail({.kind = Fault::kUnreadable, .peer = peer});
  }
  KOLO_DEVICE void reduce(const ReduceArgs& args) { platform_.reduce(index(), work_, args); }
  KOLO_DEVICE void reduceAlone(const ReduceArgs& args) { platform_.reduce(BlockIndex{0, 1}, work_, args); }

 private:
  KOLO_DEVICE BlockIndex index() const { return {platform_.thread(), platform_.threads()}; }

  KOLO_DEVICE void wait(const Counter& counter, std::uint64_t target, int peer) {
    typename Platform::WaitState state{};
    for (;;) {
      for (int i = 0; i < platform_.polls(); ++i) {
        if (loadAcquire(counter) >= target) return;
      }
      const Fault fault = platform_.keepWaiting(peer, state);
      // What has arrived counts, even if the communicator failed meanwhile: the operation may still be whole.
      if (loadAcquire(counter) >= target) return;
      if (fault.kind != Fault::kNone) {
        fail(fault);
        return;
      }
    }
  }

  Platform& platform_;
  const Work& work_;
  bool failed_ = false;
};

}  // namespace kolo::device
