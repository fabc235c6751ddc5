#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace kolo {
namespace {

// The child sees the first two as they were when fork() copied the memory. A thread that was in a call then has counted
// itself before it took any lock, and a fork copies all that a thread has stored in its order.
constinit std::atomic<int> used{0};
constinit std::atomic<bool> forkedInUse{false};

constinit std::atomic<unsigned> generation{1};

[[maybe_unused]] const int atFork = pthread_atfork(nullptr, nullptr, [] {
  if (used.load(std::memory_order_relaxed) != 0) forkedInUse.store(true, std::memory_order_relaxed);
  generation.fetch_add(1, std::memory_order_relaxed);
});

}  // namespace

InUse::InUse() { used.fetch_add(1, std::memory_order_seq_cst); }
InUse::~InUse() { used.fetch_sub(1, std::memory_order_seq_cst); }

bool isForkedInUse() { return forkedInUse.load(std::memory_order_relaxed); }

Status refuseIfForkedInUse() {
  if (!isForkedInUse()) return {};
  return error(koloInvalidUsage,
               "this process was forked from one that had a communicator, or was in a call of Kolo: expected the fork "
               "before the first communicator or after the end of the last one, or exec() in the child");
}

unsigned forkGeneration() { return generation.load(std::memory_order_relaxed); }

}  // namespace kolo
