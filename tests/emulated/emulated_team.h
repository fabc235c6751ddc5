// A CUDA block, emulated: N host threads with the same indexing, vector widths and barriers, so that machines without a
// GPU test what the device code does, under ThreadSanitizer too.
//
// Thread safety: one EmulatedPlatform object for each thread of the block; the Block is shared.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "device/block_team.h"
#include "device/work.h"
#include "emulated/block_reduce.h"
#include "executor/context.h"
#include "executor/host/user_fold.h"

namespace kolo::executor {

// __syncthreads_or() of host threads.
class BlockBarrier {
 public:
  explicit BlockBarrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~BlockBarrier() { pthread_barrier_destroy(&barrier_); }
  BlockBarrier(const BlockBarrier&) = delete;

  // turn: the calling thread's own, 0 at first.
  bool syncOr(unsigned thread, unsigned& turn, bool value) {
    if (value) said_[turn].store(true, std::memory_order_relaxed);
    pthread_barrier_wait(&barrier_);
    const bool any = said_[turn].load(std::memory_order_relaxed);
    turn = (turn + 1) % 3;
    // That of the turn before: all have read it, for they have been at this barrier; and nobody needs it before the
    // next one.
    if (thread == 0) said_[(turn + 1) % 3].store(false, std::memory_order_relaxed);
    return any;
  }

 private:
  pthread_barrier_t barrier_;
  // At this barrier, the one before, and the next, which some may have reached while others still read.
  std::atomic<bool> said_[3] = {};
};

// What the threads of one block share.
class Block {
 public:
  Block(const device::Work& work, const Context& context, unsigned threads)
      : work(work), context(context), threads(threads), barrier(threads) {}

  const device::Work& work;
  const Context& context;
  const unsigned threads;
  BlockBarrier barrier;
  std::mutex waiting;
  device::FoldLists lists;
  device::Work step;
};

// One thread of the block, as device::BlockTeam wants it.
class EmulatedPlatform {
 public:
  static constexpr bool kPosts = false, kServesLists = true, kReadsLists = true;
  using WaitState = executor::WaitState;

  EmulatedPlatform(Block& block, unsigned thread) : block_(block), thread_(thread) {}

  unsigned thread() const { return thread_; }
  unsigned threads() const { return block_.threads; }
  device::FoldLists& lists() { return block_.lists; }
  device::Work& step() { return block_.step; }
  int polls() const { return 1; }

  bool syncOr(bool failed) { return block_.barrier.syncOr(thread_, turn_, failed); }
  bool claim(device::Counter& counter) { return std::atomic_ref(counter.value).exchange(1) == 0; }

  device::Fault keepWaiting(int peer, WaitState& state) {
    const std::lock_guard lock(block_.waiting);  // the owner expects one thread
    return block_.context.owner->keepWaiting(block_.work, peer, state);
  }
  bool read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    return block_.context.owner->read(peer, to, from, bytes);
  }
  bool write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
    return block_.context.owner->write(peer, to, from, bytes);
  }
  bool readList(const device::PeerSegments& list, void* to, const unsigned char* place, std::uint64_t bytes) {
    return block_.context.owner->readList(list, to, place, bytes);
  }
  const device::Segments* loadableList(const device::PeerSegments& list) {
    return block_.context.owner->loadableList(list);
  }
  bool writeList(const device::PeerSegments& list, const unsigned char* place, const void* from, std::uint64_t bytes) {
    return block_.context.owner->writeList(list, place, from, bytes);
  }
  void reduce(const device::BlockIndex& index, const device::Work& work, koloDataType_t datatype,
              const device::ReduceArgs& args) {
    if (work.fold.op != device::ReduceOp::kUser) return reduceInBlock(index, datatype, work.fold.op, args);
    // A user's function is the host's: no GPU runs it, and no two threads of a block share it.
    if (index.thread() != 0) return;
    UserReduction user = *block_.context.user;
    user.datatype = datatype;  // of a list, the item's
    userFold(user, args);
  }
  void castRows(const device::BlockIndex& index, const device::RowMove& move) { castRowsInBlock(index, move); }

 private:
  Block& block_;
  unsigned thread_;
  unsigned turn_ = 0;
};

}  // namespace kolo::executor
