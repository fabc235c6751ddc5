// A CUDA block, emulated: N host threads with the same indexing, vector widths and barriers, so that machines without a
// GPU test what the device code does, under ThreadSanitizer too. For tests only.
//
// Thread safety: one EmulatedTeam object for each thread of the block; the Block is shared.
#pragma once

#include <pthread.h>

#include "device/block_ops.h"
#include "device/work.h"
#include "executor/context.h"
#include "executor/emulated/block_reduce.h"
#include "executor/host/user_fold.h"

namespace kolo::executor {

// What the threads of one block share.
class Block {
 public:
  Block(const device::Work& work, const Context& context, unsigned threads)
      : work(work), context(context), threads(threads) {
    pthread_barrier_init(&barrier, nullptr, threads);
  }
  ~Block() { pthread_barrier_destroy(&barrier); }
  Block(const Block&) = delete;

  const device::Work& work;
  const Context& context;
  const unsigned threads;
  pthread_barrier_t barrier;
  // Whether the leader has failed, as it said at the last barrier and the one before: two, because the leader may already be
  // at the next barrier while others still read.
  bool failed[2] = {false, false};
};

class EmulatedTeam {
 public:
  EmulatedTeam(Block& block, unsigned thread) : block_(block), thread_(thread) {}

  unsigned thread() const { return thread_; }
  unsigned threads() const { return block_.threads; }
  bool leader() const { return thread_ == 0; }
  bool failed() const { return failed_; }

  // As __syncthreads_or() on the device: a barrier that tells all threads whether the leader has failed.
  void sync() {
    if (leader()) block_.failed[parity_] = failed_;
    pthread_barrier_wait(&block_.barrier);
    failed_ = block_.failed[parity_];
    parity_ ^= 1;
  }
  void fail(const device::Fault& fault) {
    if (!failed_) *block_.work.fault = fault;
    failed_ = true;
  }

  bool waitAtLeast(const device::Counter& counter, std::uint64_t target, int peer) {
    if (leader() && !failed_) wait(counter, target, peer);
    sync();
    return !failed_;
  }

  void copy(void* dst, const void* src, std::uint64_t bytes, bool streaming) {
    device::blockCopy(BlockIndex{thread_, threads()}, dst, src, bytes, streaming);
  }
  void read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (leader() && !block_.context.owner->read(peer, to, from, bytes)) {
      fail({.kind = device::Fault::kUnreadable, .peer = peer});
    }
  }
  void reduce(const device::ReduceArgs& args) { reduceBy({thread_, threads()}, args); }
  void reduceAlone(const device::ReduceArgs& args);

 private:
  void reduceBy(const BlockIndex& team, const device::ReduceArgs& args);
  void wait(const device::Counter& counter, std::uint64_t target, int peer);

  Block& block_;
  unsigned thread_;
  unsigned parity_ = 0;
  bool failed_ = false;
};

}  // namespace kolo::executor
