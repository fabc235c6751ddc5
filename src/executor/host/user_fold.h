// Folding by a user's function, for every executor on the host. The thread is marked while it is in there
// (base/caller.h): it must not wait for the operation that it is part of.
#pragma once

#include "device/reduce_args.h"
#include "executor/context.h"

namespace kolo::executor {

// As ReduceArgs says, element by element in the order of sources; scale and divisor do not occur with user functions.
void userFold(const UserReduction& user, const device::ReduceArgs& args);

}  // namespace kolo::executor
