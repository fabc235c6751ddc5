// Runs operations by emulated blocks. For tests only.
#pragma once

#include <memory>

#include "executor/context.h"

namespace kolo::executor {

// Blocks of `threads` threads.
std::unique_ptr<Executor> makeEmulatedExecutor(unsigned threads);

}  // namespace kolo::executor
