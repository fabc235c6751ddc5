#include "api/guard.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "base/forever.h"
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

// What there is no memory for is left out; so is the message of an earlier error.
template <class... Args>
void keepWords(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    lastError().clear();
    lastError() = fmt::format(format, std::forward<Args>(args)...);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

koloResult_t keepError(const char* function, const Status& status) noexcept {
  if (status.code() == koloInProgress) return koloInProgress;  // no error
  keepWords("{}: {}", function, status.message());
  if (!isForkedInUse()) log::info("{}: {}", function, status.message());
  return status.code();
}

Status refuse(Status why) {
  comm::groupRefuse(why);
  return why;
}

koloResult_t keepException(const char* function) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    keepWords("{}: out of memory", function);
    // What a group lacks is not left out: its end fails, too.
    (void)withoutExceptions([] {
      comm::groupRefuse(Status(koloOutOfMemory, "out of memory"));
      return Status();
    });
    return koloOutOfMemory;
  } catch (const std::system_error& why) {
    return keepError(function, noThread(why, "it needs a thread"));
  } catch (const std::exception& problem) {
    keepWords("{}: {}", function, problem.what());
  } catch (...) {
  }
  return koloInternalError;
}

namespace {

constinit Forever<Communicators> theCommunicators;
constinit Forever<Streams> theStreams;
constinit Forever<Windows> theWindows;
constinit Forever<Requests> theRequests;
constinit Forever<Events> theEvents;

}  // namespace

constinit Communicators& communicators = theCommunicators.object;
constinit Streams& streams = theStreams.object;
constinit Windows& windows = theWindows.object;
constinit Requests& requests = theRequests.object;
constinit Events& events = theEvents.object;

namespace {

// A forked child must neither take part in its parent's operations nor end what belongs to it: it has no handles.
bool forked = false;  // this process is a child of one that used the library
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

namespace {

// The request that a thread has given back last, and its slot: a place in a table that all threads use costs as much as
// a short collective. Now and then the slot goes back to the table, so that generations wrap as late as ever.
struct KeptRequest {
  ~KeptRequest() {
    if (request != nullptr) end(handle, *request);
  }
  static void end(std::uintptr_t handle, comm::Request& ended) {
    requests.release(handle);
    delete &ended;
  }

  static constexpr std::uint32_t kMostUses = 1 << 16;
  comm::Request* request = nullptr;
  std::uintptr_t handle = 0;
  std::uint32_t uses = 0;
};

}  // namespace

Result<NewRequest> makeRequest() {
  KeptRequest& kept = ofThread<KeptRequest>();
  if (comm::Request* const request = std::exchange(kept.request, nullptr); request != nullptr) {
    request->renew();
    return NewRequest{request, requests.revive(kept.handle)};
  }
  std::unique_ptr<comm::Request> made(comm::Request::make());
  const std::uintptr_t handle = requests.add(made.get());
  if (handle == 0) return noHandle("request");
  return NewRequest{made.release(), handle};
}

void keepRequest(std::uintptr_t handle, comm::Request& request) {
  KeptRequest& kept = ofThread<KeptRequest>();
  if (kept.request != nullptr || ++kept.uses % KeptRequest::kMostUses == 0) {
    KeptRequest::end(handle, request);
    return;
  }
  kept.request = &request;
  kept.handle = handle;
}

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
  Status refused =
      error(koloInvalidUsage, "a call that may not be made inside a group: expected koloGroupEnd before it");
  comm::groupRefuse(refused);
  return refused;
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
