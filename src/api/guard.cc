#include "api/guard.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "base/of_thread.h"
#include "executor/host/user_fold.h"

namespace kolo::api {

std::string& lastError() {
  struct LastError {
    std::string message;
  };
  return ofThread<LastError>().message;
}

namespace {

// Made by the linker, all zero, so that a page of a table takes memory only when it is used; never destroyed.
template <class Table>
union Forever {
  constexpr Forever() : table() {}
  ~Forever() {}
  Table table;
};
constinit Forever<Communicators> theCommunicators;
constinit Forever<Streams> theStreams;
constinit Forever<Windows> theWindows;
constinit Forever<Requests> theRequests;
constinit Forever<Events> theEvents;

}  // namespace

constinit Communicators& communicators = theCommunicators.table;
constinit Streams& streams = theStreams.table;
constinit Windows& windows = theWindows.table;
constinit Requests& requests = theRequests.table;
constinit Events& events = theEvents.table;

namespace {

bool forked = false;  // this process is a child of one that used the library

// A forked child must neither take part in its parent's operations nor end what belongs to it: it has no handles.
[[maybe_unused]] const int atFork = pthread_atfork(nullptr, nullptr, [] {
  forked = true;
  communicators.disown();
  streams.disown();
  windows.disown();
  requests.disown();
  events.disown();
});

std::string whyDead(bool isNull, const char* origin) {
  if (isNull) return "it is NULL";
  return fmt::format("it was destroyed, {}or never came from {}",
                     forked ? "or belongs to the process that this one was forked from, " : "", origin);
}

}  // namespace

Status notACommunicator(koloComm_t comm) {
  return error(koloInvalidHandle, "{} is not a communicator: {}", fmt::ptr(comm),
               whyDead(comm == nullptr, "this library"));
}

Status notAStream(koloStream_t stream) {
  return error(koloInvalidHandle, "{} is not a stream: {}", fmt::ptr(stream),
               whyDead(stream == nullptr, "koloStreamCreate"));
}

Status refuseInGroup() {
  if (caller.openGroups == 0) return {};
  return error(koloInvalidUsage, "not inside a group: expected koloGroupEnd first");
}

Status refusal::inReduction() {
  return error(koloInvalidUsage,
               "not from inside a reduction or progress function, which is part of an operation that would wait "
               "for this call: expected it after the operation");
}

Status refuseInGroupOrReduction() {
  KOLO_TRY(refuseInGroup());
  return refuseInReduction();
}

Status refuseInNotice() {
  if (!caller.isInNotice) return {};
  return error(
      koloInvalidUsage,
      "not from inside a function given to koloRequestNotify: expected the end of a communicator in another thread");
}

Status checkResult(const char* name, const void* place) {
  if (place != nullptr) return {};
  return error(koloInvalidPointer, "{} is NULL, expected a place for the result", name);
}

Status giveText(const std::string& text, char* place, std::size_t size, std::size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (place == nullptr && size != 0) return error(koloInvalidPointer, "text is NULL, expected room for {} bytes", size);
  if (size == 0) return {};
  const std::size_t bytes = std::min(text.size(), size - 1);
  std::memcpy(place, text.data(), bytes);
  place[bytes] = '\0';
  return {};
}

}  // namespace kolo::api
