// From a call of the API to the communicator: the handles, the checks that all calls have in common, and the two forms
// that most calls have, with a stream and as a request.
//
// Thread safety: everything here, from any thread.
#pragma once

#include <type_traits>

#include "api/checks.h"
#include "api/guard.h"
#include "base/datatypes.h"

namespace kolo::api {

// The two forms of a call: to a stream, NULL for the caller's own time, or as a request.
struct Where {
  explicit Where(koloStream_t given) : stream(given) {}
  explicit Where(koloRequest_t* place) : request(place), isRequest(true) {}
  bool isHere() const { return !isRequest && stream == nullptr; }

  koloStream_t stream = nullptr;
  koloRequest_t* request = nullptr;
  bool isRequest = false;
};

// The communicator, if this is what loops do: one of its last calls again, by a thread that has it to itself. The call
// has then been checked, planned and described. recalls(communicator): whether Planning::recall() has found it.
template <class Recalls>
Inside<comm::Communicator> findIf(const Weak<comm::Communicator>& comm, Recalls&& recalls) {
  if (!caller.isPlain()) return {};
  Inside<comm::Communicator> communicator = comm.enter();
  if (!communicator || !recalls(*communicator)) return {};
  return communicator;
}
template <class... Counts>
Inside<comm::Communicator> findRepeated(const comm::Call& call, const Weak<comm::Communicator>& comm,
                                        const Counts&... counts) {
  return findIf(comm, [&](comm::Communicator& its) { return its.planning().recall(call, counts...); });
}

// Whether such a call has been started as a request.
template <class... Counts>
bool startAgain(const comm::Call& call, koloComm_t comm, comm::Request& request, const Counts&... counts) {
  const Weak<comm::Communicator> place = communicators.remember(reinterpret_cast<std::uintptr_t>(comm));
  const Inside<comm::Communicator> communicator = findRepeated(call, place, counts...);
  if (!communicator) return false;
  request.addPlace(place);
  communicator->requests().start(communicator->planning().recalled(), request);
  return true;
}

// Where the operation is to go, by handles that have not been examined.
inline comm::Target targetOf(koloStream_t stream, comm::Request* request) {
  comm::Target target;
  target.request = request;
  if (stream != nullptr) target.stream = streams.remember(reinterpret_cast<std::uintptr_t>(stream));
  if (!target.stream) target.gpuStream = stream;
  return target;
}

// Whether operations of the communicator can go to that stream.
inline Status checkTarget(const comm::Communicator& communicator, const comm::Target& target, koloStream_t stream) {
  const Status status = communicator.backend().checkStream(stream, static_cast<bool>(target.stream));
  return status.code() == koloInvalidHandle && !target.stream ? notAStream(stream) : status;
}

// What is common to all: finds the handles, lets `check` complete and examine the operation or message, submits it.
template <class What, class Check>
Status submitTo(What& what, koloComm_t comm, koloStream_t stream, comm::Request* request, Check&& check) {
  Status status = [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    Held<comm::Communicator> communicator(communicators.remember(reinterpret_cast<std::uintptr_t>(comm)));
    if (!communicator) return notACommunicator(comm);
    const comm::Backend::Visit visit(communicator->backend());
    if (request != nullptr) KOLO_TRY(communicator->backend().checkRequest());
    if (communicator->isFinalized()) {
      return error(koloInvalidUsage, "the communicator was finalised; expected no operations after koloCommFinalize");
    }
    KOLO_TRY(check(*communicator, what));
    const comm::Target target = targetOf(stream, request);
    KOLO_TRY(checkTarget(*communicator, target, stream));
    return comm::submit(communicator, target, what);
  }();
  if (!status.ok() && status.code() != koloInProgress) comm::groupRefuse(status);
  return status;
}

// counts: of a collective, what its call and they describe in full.
template <class What, class Check, class... Counts>
Status submit(What& what, koloComm_t comm, const Where& where, Check&& check, const Counts&... counts) {
  if (!where.isRequest) return submitTo(what, comm, where.stream, nullptr, check);
  KOLO_TRY(refuseInGroup());
  return giveRequest(where.request, [&](comm::Request& request) -> Status {
    if constexpr (std::is_same_v<What, comm::Operation>) {
      if (startAgain(what, comm, request, counts...)) return {};
    }
    return submitTo(what, comm, nullptr, &request, check);
  });
}

// A collective; `check` completes the operation too.
template <class Check, class... Counts>
Status submitCollective(comm::Operation& operation, koloComm_t comm, const Where& where, Check&& check,
                        const Counts&... counts) {
  const auto complete = [&](comm::Communicator& communicator, comm::Operation& o) -> Status {
    KOLO_TRY(checkDatatype(o.datatype));
    if (o.reduces()) KOLO_TRY(checkReduction(o.op, o.datatype, communicator));
    if (o.reduces() && o.op >= koloNumOps) o.custom = communicator.reductions().find(o.op);
    return check(communicator, o);
  };
  return submit(operation, comm, where, complete, counts...);
}

// A buffer has to lie where the communicator's do.
inline Status checkPlace(const comm::Communicator& communicator, const Extent& extent) {
  return communicator.backend().checksPlaces()
             ? communicator.backend().checkPlace(extent.name, extent.data, extent.bytes)
             : Status();
}

}  // namespace kolo::api

// A collective's two functions, which differ in their last parameter alone.
#define KOLO_TWO_FORMS_OF_NO_BUFFERS(name, requestName, ...)                   \
  KOLO_API koloResult_t name(koloComm_t comm, koloStream_t stream) {           \
    const Where where(stream);                                                 \
    return __VA_ARGS__;                                                        \
  }                                                                            \
  KOLO_API koloResult_t requestName(koloComm_t comm, koloRequest_t* request) { \
    const Where where(request);                                                \
    return __VA_ARGS__;                                                        \
  }
#define KOLO_PARAMETERS(...) __VA_ARGS__
#define KOLO_TWO_FORMS(name, requestName, parameters, ...)                                                 \
  KOLO_API koloResult_t name(KOLO_PARAMETERS parameters, koloComm_t comm, koloStream_t stream) {           \
    const Where where(stream);                                                                             \
    return __VA_ARGS__;                                                                                    \
  }                                                                                                        \
  KOLO_API koloResult_t requestName(KOLO_PARAMETERS parameters, koloComm_t comm, koloRequest_t* request) { \
    const Where where(request);                                                                            \
    return __VA_ARGS__;                                                                                    \
  }
