// From the calls of a thread to executed operations: alone or in groups, now or on a stream.
//
// Thread safety: the state of open groups belongs to the thread; everything else as its owners say.
#pragma once

#include <functional>

#include "base/handle_table.h"
#include "comm/communicator.h"
#include "comm/operation.h"
#include "comm/target.h"

namespace kolo::comm {

// Executes the operation, or keeps it for the end of the thread's open group. No stream: returns when it is done.
Status submit(Held<Communicator>& communicator, const Target& target, const Operation& operation);
Status submit(Held<Communicator>& communicator, const Target& target, const Message& message);

void groupStart();
// Of the outermost group: runs everything. Without an open group: koloInvalidUsage.
Status groupEnd();
// Of the outermost group alone: starts everything, without waiting. An error: nothing has begun.
Status groupEnd(Request& request);
// A call inside the open group was refused: groupEnd() will return its error and run nothing.
void groupRefuse(const Status& status);
// Initialisations inside a group run at its end, side by side, each on a thread of its own.
void groupDefer(std::function<Status()> initialisation);

}  // namespace kolo::comm
