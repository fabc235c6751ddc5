// The team of one host thread: barriers vanish, reductions come from the table of vectorised functions.
#pragma once

#include "device/atomics.h"
#include "device/work.h"
#include "executor/context.h"
#include "executor/host/reduce.h"
#include "executor/host/user_fold.h"

namespace kolo::executor {

class HostTeam {
 public:
  HostTeam(const device::Work& work, const Context& context)
      : work_(work), context_(context) {}

  static constexpr bool kIsOneThread = true;
  static constexpr std::uint64_t kFoldBytes = 1 << 16;   // at a time

  static constexpr bool leader() { return true; }
  void sync() {}
  bool failed() const { return failed_; }
  void fail(const device::Fault& fault) {
    if (!failed_) *work_.fault = fault;
    failed_ = true;
  }

  bool waitAtLeast(const device::Counter& counter, std::uint64_t target, int peer) {
    if (failed_) return false;
    return poll(counter, target) || waitSlowly(counter, target, peer);
  }

  template <class Body>
  void spread(int count, const Body& body) {
    for (int i = 0; i < count; ++i) body(i);
  }
  bool waitAlone(const device::Counter& counter, std::uint64_t target, int peer) { return waitAtLeast(counter, target, peer); }

  void copy(void* dst, const void* src, std::uint64_t bytes, bool streaming) {
    executor::copy(dst, src, bytes, streaming);
  }
  void read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (!context_.owner->read(peer, to, from, bytes)) fail({.kind = device::Fault::kUnreadable, .peer = peer});
  }
  void reduce(const device::ReduceArgs& args) {
    if (work_.op == device::ReduceOp::kUser) return userFold(*context_.user, args);
    context_.kernel(args);
  }
  void reduceAlone(const device::ReduceArgs& args) { reduce(args); }

 private:
  bool poll(const device::Counter& counter, std::uint64_t target) const {
    return context_.polling.until([&] { return device::loadAcquire(counter) >= target; });
  }
  bool waitSlowly(const device::Counter& counter, std::uint64_t target, int peer) {
    WaitState state;
    for (;;) {
      const device::Fault fault = context_.owner->keepWaiting(work_, peer, state);
      // What has arrived counts, even if the communicator failed meanwhile: the operation may still be whole.
      if (device::loadAcquire(counter) >= target) return true;
      if (fault.kind != device::Fault::kNone) {
        fail(fault);
        return false;
      }
      if (poll(counter, target)) return true;
    }
  }

  const device::Work& work_;
  const Context& context_;
  bool failed_ = false;
};

}  // namespace kolo::executor
