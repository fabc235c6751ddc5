// Requests, events, and the deadline of a thread's operations.
#include <algorithm>
#include <span>
#include <vector>

#include "api/checks.h"
#include "api/guard.h"
#include "common/clock.h"

namespace kolo::api {
namespace {

Status notARequest(koloRequest_t request) {
  return error(koloInvalidHandle, "{} is not a request: it was freed, or never came from a call that starts one",
               fmt::ptr(request));
}

Result<Pin<comm::Request>> find(koloRequest_t request) {
  Pin<comm::Request> found = requests.find(reinterpret_cast<std::uintptr_t>(request));
  if (!found) return notARequest(request);
  return found;
}

Result<Pin<comm::Event>> find(koloEvent_t event) {
  Pin<comm::Event> found = events.find(reinterpret_cast<std::uintptr_t>(event));
  if (!found)
    return error(koloInvalidHandle, "{} is not an event: it was destroyed, or never came from koloEventCreate",
                 fmt::ptr(event));
  return found;
}

// Until the event's place has been reached.
Status await(koloEvent_t event) {
  KOLO_TRY(refuseInReduction());
  std::shared_ptr<const comm::Moment> moment;
  {
    KOLO_ASSIGN(const Pin<comm::Event> found, find(event));
    moment = found->moment();
  }
  if (moment != nullptr) moment->wait();
  return {};
}

// Of some of the caller's requests.
struct Found {
  std::vector<Pin<comm::Request>> pins;
  std::vector<comm::Request*> requests;
  std::vector<int> places;  // of each in the caller's array, whose NULL entries are skipped
};
Result<Found> find(int count, const koloRequest_t* requests) {
  if (count < 0) return error(koloInvalidCount, "count is {}, expected the number of requests", count);
  if (count != 0 && requests == nullptr)
    return error(koloInvalidPointer, "requests is NULL, expected {} requests", count);
  Found found;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == nullptr) continue;
    KOLO_ASSIGN(Pin<comm::Request> pin, find(requests[i]));
    found.requests.push_back(pin.get());
    found.places.push_back(i);
    found.pins.push_back(std::move(pin));
  }
  return found;
}

// When a wait of so many milliseconds ends.
Result<std::int64_t> deadline(int timeoutMs) {
  if (timeoutMs < -1)
    return error(koloInvalidArgument, "timeoutMs is {}, expected milliseconds, or -1 to wait whatever it takes",
                 timeoutMs);
  return timeoutMs == -1 ? comm::Requests::kNever : nowNs() + timeoutMs * std::int64_t{1'000'000};
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloSetTimeout(int timeoutMs) {
  return guard(__func__, [&]() -> Status {
    if (timeoutMs < -1) {
      return error(koloInvalidArgument,
                   "timeoutMs is {}, expected milliseconds, 0 for no deadline, or -1 for each communicator's own",
                   timeoutMs);
    }
    caller.timeoutMs = timeoutMs;
    return {};
  });
}

KOLO_API koloResult_t koloIgroupEnd(koloRequest_t* request) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    bool isEnded = false;
    Status status = withoutExceptions([&] {
      return giveRequest(request, [&](comm::Request& made) {
        isEnded = true;
        return comm::groupEnd(made);
      });
    });
    if (isEnded || status.code() != koloOutOfMemory || caller.openGroups != 1) return status;
    comm::groupRefuse(status);  // where there is no memory for a request, the group ends, and nothing of it runs
    return comm::groupEnd();
  });
}

KOLO_API koloResult_t koloRequestTest(koloRequest_t request) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Request> found, find(request));
    return comm::test(*found);
  });
}

KOLO_API koloResult_t koloRequestWait(koloRequest_t request, int timeoutMs) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    KOLO_ASSIGN(const Pin<comm::Request> found, find(request));
    KOLO_ASSIGN(const std::int64_t until, deadline(timeoutMs));
    return comm::wait(*found, until);
  });
}

KOLO_API koloResult_t koloRequestWaitAny(int count, const koloRequest_t* requests, int timeoutMs, int* index) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    KOLO_TRY(checkResult("index", index));
    KOLO_ASSIGN(const std::int64_t until, deadline(timeoutMs));
    KOLO_ASSIGN(const Found found, find(count, requests));
    const bool isNone = found.requests.empty();
    const int first = isNone ? -1 : comm::waitAny(found.requests, until);
    if (!isNone && first < 0) return Status(koloInProgress, {});
    *index = first < 0 ? -1 : found.places[static_cast<std::size_t>(first)];
    return {};
  });
}

KOLO_API koloResult_t koloRequestWaitAll(int count, const koloRequest_t* requests, int timeoutMs) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    KOLO_ASSIGN(const std::int64_t until, deadline(timeoutMs));
    KOLO_ASSIGN(const Found found, find(count, requests));
    Status first;
    for (comm::Request* const request : found.requests) {
      Status status = comm::wait(*request, until);
      if (status.code() == koloInProgress) return status;
      if (first.ok()) first = std::move(status);
    }
    return first;
  });
}

KOLO_API koloResult_t koloRequestNotify(koloRequest_t request, koloNotifyFunction_t function, void* context) {
  return guard(__func__, [&]() -> Status {
    if (function == nullptr) return error(koloInvalidPointer, "function is NULL, expected what is to be called");
    bool isLate = false;
    comm::Request* late = nullptr;
    {
      KOLO_ASSIGN(const Pin<comm::Request> found, find(request));
      KOLO_TRY(comm::prepareNotices(*found));
      if (!found->notify(function, context, &isLate)) {
        return error(koloInvalidUsage,
                     "the request has a function already, expected one call of koloRequestNotify for each request");
      }
      late = found.get();
      if (!isLate) comm::hurry(*found);
    }
    const InNotice inside;
    if (isLate) late->giveNotice();  // it may free the request, and does not wait for a pin of this call's
    return {};
  });
}

KOLO_API koloResult_t koloRequestFree(koloRequest_t request) {
  return guard(__func__, [&]() -> Status {
    const auto handle = reinterpret_cast<std::uintptr_t>(request);
    comm::Request* const retired = requests.retire(handle);
    if (retired == nullptr) return notARequest(request);
    requests.waitUntilUnused(handle);
    if (retired->letGo()) {
      keepRequest(handle, *retired);
    } else {
      requests.release(handle);
    }
    return {};
  });
}

KOLO_API koloResult_t koloEventCreate(koloEvent_t* event) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("event", event));
    return giveHandle(event, events, std::make_unique<comm::Event>(), "event");
  });
}

KOLO_API koloResult_t koloEventRecord(koloEvent_t event, koloStream_t stream) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Event> found, find(event));
    KOLO_ASSIGN(const Pin<comm::Stream> its, api::find(stream));
    std::shared_ptr<comm::Moment> moment = found->renew();
    if (its) {
      its->mark(std::move(moment));
    } else {
      moment->reach();
    }
    return {};
  });
}

KOLO_API koloResult_t koloEventQuery(koloEvent_t event) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Event> found, find(event));
    const std::shared_ptr<const comm::Moment> moment = found->moment();
    return moment == nullptr || moment->isReached() ? Status() : Status(koloInProgress, {});
  });
}

KOLO_API koloResult_t koloEventSynchronize(koloEvent_t event) {
  return guard(__func__, [&] { return await(event); });
}

KOLO_API koloResult_t koloStreamWaitEvent(koloStream_t stream, koloEvent_t event) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Stream> found, api::find(stream));
    if (!found) return await(event);
    KOLO_ASSIGN(const Pin<comm::Event> its, find(event));
    if (std::shared_ptr<const comm::Moment> moment = its->moment(); moment != nullptr)
      found->waitFor(std::move(moment));
    return {};
  });
}

KOLO_API koloResult_t koloEventDestroy(koloEvent_t event) {
  return guard(__func__, [&]() -> Status {
    comm::Event* const retired = events.retire(reinterpret_cast<std::uintptr_t>(event));
    if (retired == nullptr)
      return error(koloInvalidHandle, "{} is not an event: it was destroyed, or never came from koloEventCreate",
                   fmt::ptr(event));
    events.release(reinterpret_cast<std::uintptr_t>(event));
    delete retired;
    return {};
  });
}

}  // extern "C"
