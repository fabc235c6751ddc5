// The team of one host thread: barriers vanish, reductions come from the table of vectorised functions.
#pragma once

#include "device/atomics.h"
#include "device/work.h"
#include "executor/context.h"
#include "executor/host/reduce.h"
#include "executor/host/sleep.h"
#include "executor/host/user_fold.h"

namespace kolo::executor {

class HostTeam {
 public:
  HostTeam(const device::Work& work, const Context& context) : work_(work), context_(context) {}

  static constexpr bool kIsOneThread = true;
  static constexpr bool kPosts = true, kWakes = true, kOpens = true, kServesLists = true, kReadsLists = true,
                        kPackets = false;
  static constexpr std::uint64_t kFoldBytes = 1 << 16;  // at a time

  static constexpr bool leader() { return true; }
  void sync() {}
  bool failed() const { return failed_; }
  void fail(const device::Fault& fault) {
    if (!failed_) *work_.channel.fault = fault;
    failed_ = true;
  }

  static bool leaderSays(bool value) { return value; }
  device::FoldLists& lists() { return lists_; }

  void took(device::Course course) {
    if (context_.course != nullptr) *context_.course = course;
  }

  bool waitAtLeast(const device::Counter& counter, std::uint64_t target, int peer) {
    if (failed_) return false;
    return device::loadAcquire(counter) >= target || waitSlowly(counter, target, peer);
  }

  template <class Body>
  void spread(int count, const Body& body) {
    for (int i = 0; i < count; ++i) body(i);
  }
  bool waitAlone(const device::Counter& counter, std::uint64_t target, int peer) {
    return waitAtLeast(counter, target, peer);
  }

  // False, on failure, after fail().
  bool open(device::Link& link) {
    if (failed_) return false;
    const device::Fault fault = context_.owner->open(link);
    if (fault.kind != device::Fault::kNone) fail(fault);
    return !failed_;
  }
  void post(const device::Link& link, const device::Post& post) {
    if (failed_) return;
    const device::Fault fault = context_.owner->post(work_, link, post);
    if (fault.kind != device::Fault::kNone) fail(fault);
  }

  void wake(const device::Link& link) { wakeIfAsleep(*link.marks.asleep); }

  void copy(void* dst, const void* src, std::uint64_t bytes, bool streaming) {
    executor::copy(dst, src, bytes, streaming);
  }
  void read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (!context_.owner->read(peer, to, from, bytes)) fail({.kind = device::Fault::kUnreadable, .peer = peer});
  }
  void readList(const device::PeerSegments& list, void* to, const unsigned char* place, std::uint64_t bytes) {
    if (!context_.owner->readList(list, to, place, bytes))
      fail({.kind = device::Fault::kUnreadable, .peer = list.peer});
  }
  const device::Segments* loadableList(const device::PeerSegments& list) {
    return failed_ ? nullptr : context_.owner->loadableList(list);
  }
  void writeList(const device::PeerSegments& list, const unsigned char* place, const void* from, std::uint64_t bytes) {
    if (!context_.owner->writeList(list, place, from, bytes))
      fail({.kind = device::Fault::kUnwritable, .peer = list.peer});
  }
  void write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
    if (!context_.owner->write(peer, to, from, bytes)) fail({.kind = device::Fault::kUnwritable, .peer = peer});
  }
  void reduce(const device::ReduceArgs& args) {
    if (work_.fold.op == device::ReduceOp::kUser) return userFold(*context_.user, args);
    context_.kernel(args);
  }
  void reduceAlone(const device::ReduceArgs& args) { reduce(args); }
  void reduceAs(koloDataType_t datatype, const device::ReduceArgs& args) {
    if (work_.fold.op == device::ReduceOp::kUser) {
      UserReduction user = *context_.user;
      user.datatype = datatype;
      return userFold(user, args);
    }
    reduceKernel(datatype, work_.fold.op)(args);
  }
  void moveRows(const device::RowMove& move) { executor::moveRows(move); }

 private:
  bool poll(const device::Counter& counter, std::uint64_t target, bool naps) const {
    const auto hasCome = [&] { return device::loadAcquire(counter) >= target; };
    return naps ? hasCome() : context_.polling.until(hasCome);
  }
  bool pollAndProgress(const device::Counter& counter, std::uint64_t target, int peer) {
    const int most = context_.owner->looks();
    for (int idle = 0, rounds = 0; idle < most && rounds < kMostRounds; ++rounds) {
      if (device::loadAcquire(counter) >= target) return true;
      if (!context_.owner->progress(peer)) ++idle;
    }
    return device::loadAcquire(counter) >= target;
  }
  bool waitSlowly(const device::Counter& counter, std::uint64_t target, int peer) {
    WaitState state;
    for (;;) {
      // A mapped peer writes the counter itself; those by posted links need this rank's help meanwhile.
      if (!work_.channel.links[peer].isPosted && poll(counter, target, state.naps)) return true;
      if (context_.posts && pollAndProgress(counter, target, peer)) return true;
      const device::Fault fault = context_.owner->keepWaiting(work_, peer, state);
      // What has arrived counts, even if the communicator failed meanwhile: the operation may still be whole.
      if (device::loadAcquire(counter) >= target) return true;
      if (fault.kind != device::Fault::kNone) {
        fail(fault);
        return false;
      }
    }
  }

  const device::Work& work_;
  const Context& context_;
  static constexpr int kMostRounds = 10000;  // before the owner is asked whether to go on
  bool failed_ = false;
  device::FoldLists lists_;  // each entry is written before it is read
};

}  // namespace kolo::executor
