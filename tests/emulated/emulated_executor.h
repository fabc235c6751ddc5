// Runs operations by emulated blocks.
#pragma once

#include <memory>

#include "executor/context.h"

namespace kolo::executor {

// Blocks of `threads` threads.
std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads);

// The most signals that one thread of a block has sent in an operation, of all since the last call. A thread sends them
// one after the other, on a GPU each step's behind a fence: where a step's peers are told by a thread each, the number
// does not grow with the ranks.
int takeMostSignals();

}  // namespace kolo::executor
