// What is done in a communicator's turn: now, or at its place on a stream.
//
// Thread safety: any thread.
#pragma once

#include <exception>
#include <utility>

#include "base/caller.h"
#include "base/handle_table.h"
#include "comm/communicator.h"
#include "comm/target.h"

namespace kolo::comm {

// The communicator has failed by the exception that is being handled.
Status failByThrown(Communicator& communicator);

// What `step` returns, a part of an operation. What it throws (there is no memory) ends the communicator, because the
// other ranks are in the operation too.
template <class Step>
Status orFail(Communicator& communicator, const Step& step) {
  try {
    return step();
  } catch (const std::exception&) {
    return failByThrown(communicator);
  }
}

// step(communicator), in the next turn, which is the caller's already where it is inside by its bias; behind the
// collectives that were started before.
template <class Step>
Status inNextTurn(Held<Communicator>& communicator, const Step& step) {
  if (communicator->requests().hasCollectives()) {
    communicator.stepOut();
    communicator->requests().executeCollectives();
  }
  const auto run = [&] { return step(*communicator); };
  if (communicator.isInside()) return orFail(*communicator, run);
  const InTurn served(communicator->turn(), [&] { return communicator->failed(); });
  if (!served.isServed()) return communicator->failure();
  return orFail(*communicator, run);
}

// Behind the collectives that were started before, and before those that are started later: see comm/requests.h.
struct StreamPlace {
  explicit StreamPlace(Requests& taken) : requests(taken) {}
  ~StreamPlace() { requests.endStreamPlace(); }
  StreamPlace(const StreamPlace&) = delete;
  StreamPlace& operator=(const StreamPlace&) = delete;
  Requests& requests;
};

// step(communicator), in the turn at this place.
template <class Step>
Status atStreamPlace(Communicator& communicator, std::uint64_t place, const Step& step) {
  const StreamPlace end(communicator.requests());
  const InTurn served(communicator.turn(), place);
  return orFail(communicator, [&] { return step(communicator); });
}

// Gives the target's stream a task, task(communicator, place), with a place in the communicator's turn for it.
template <class Task>
Status enqueueTask(Held<Communicator>& communicator, const Target& target, Task&& task) {
  const Pin<Stream> stream = target.stream.lock();
  const Pin<Communicator> pinned = communicator.weak().lock();
  if (!stream || !pinned) {
    return error(koloInvalidHandle, "the {} was destroyed during the call", pinned ? "stream" : "communicator");
  }
  const int timeoutMs = caller.timeoutMs;
  auto made = Stream::prepare([pinned, task = std::forward<Task>(task), timeoutMs](std::uint64_t place) {
    const WithTimeout its(timeoutMs);
    return task(*pinned, place);
  });
  made.front().place = pinned->requests().takeStreamPlace();
  stream->enqueue(std::move(made));
  return {};
}

// Gives the target's stream a step(communicator), to be done in the communicator's turn, at the operation's place. The
// turn lasts until the step is done: behind the place come those of later operations in the stream, which this thread
// executes itself.
template <class Step>
Status enqueueStep(Held<Communicator>& communicator, const Target& target, const Step& step) {
  return enqueueTask(communicator, target,
                     [step](Communicator& its, std::uint64_t place) { return atStreamPlace(its, place, step); });
}

}  // namespace kolo::comm
