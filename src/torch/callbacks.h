// Threads that complete futures. What hangs on a future may take long, need Python's lock, or wait for another future
// (PowerSGD's hook does), none of which a thread of Kolo's may do.
//
// Four futures are completed side by side. Where nothing has gone on for a while, all four may be waiting for futures
// that stand behind them, and one more is completed, up to 64 side by side. So a burst of works takes few threads, and
// continuations that wait for each other still end. The threads end with the process's last communicator.
//
// Thread safety: all functions. After a fork the child begins with no threads.
#pragma once

#include <functional>

namespace kolo::pytorch::callbacks {

// Makes sure that what is given to run() will be run. Throws DistBackendError if the system gives no thread.
void prepare();
// Without prepare() it may be that there is no thread: then the function waits until there is one for a later call.
void run(std::function<void()> function);

// Each communicator: from its beginning to its end the threads stay.
void enter();
void leave();

}  // namespace kolo::pytorch::callbacks
