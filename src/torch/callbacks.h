// Threads that complete futures. What hangs on a future may take long, need Python's lock, or wait for another future
// (PowerSGD's hook does), none of which a thread of Kolo's may do. So there are as many threads as are busy at once:
// one that waits in a continuation does not keep the next future from being completed.
//
// Thread safety: all functions. After a fork the child begins with no threads.
#pragma once

#include <functional>

namespace kolo::pytorch {

void runSoon(std::function<void()> function);

}  // namespace kolo::pytorch
