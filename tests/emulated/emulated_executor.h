// Runs operations by emulated blocks.
#pragma once

#include <memory>

#include "executor/context.h"

namespace kolo::executor {

// Blocks of `threads` threads.
std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads);

}  // namespace kolo::executor
