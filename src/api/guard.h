// The C boundary: no exception crosses it, and each failure's message is kept for koloGetLastError.
#pragma once

#include <kolo/kolo.h>

#include <memory>
#include <new>
#include <string>

#include "api/client.h"
#include "base/caller.h"
#include "base/fork.h"
#include "base/handle_table.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/stream.h"
#include "common/float_mode.h"

namespace kolo::api {

// The calling thread's last message.
std::string& lastError();

// guard() for functions of no handle, which make something or ask for what the process has once: they may take locks
// of the process.
template <class Body>
koloResult_t guardProcess(const char* function, Body&& body) noexcept {
  const InUse inUse;
  return guard(function, [&]() -> Status {
    KOLO_TRY(refuseIfForkedInUse());
    return body();
  });
}

struct WindowEntry {
  comm::Communicator* communicator;
  comm::Window* window;   // under the communicator's turn, or for the thread that has taken the entry out
  bool zeroCopy = false;  // the window's
  bool isMapped = false;  // the window's
};

// The tables live as long as the process: threads of the library may outlive main().
using Communicators = HandleTable<comm::Communicator, 0x4b43>;
using Streams = HandleTable<comm::Stream, 0x4b53>;
using Windows = HandleTable<WindowEntry, 0x4b57>;
using Requests = HandleTable<comm::Request, 0x4b52>;
using Events = HandleTable<comm::Event, 0x4b45>;
extern Communicators& communicators;
extern Streams& streams;
extern Windows& windows;
extern Requests& requests;
extern Events& events;

Status notACommunicator(koloComm_t comm);
Status notAStream(koloStream_t stream);

// The object behind a handle, or why there is none. A failed communicator is found: its operations return its failure.
inline Result<Pin<comm::Communicator>> find(koloComm_t comm) {
  Pin<comm::Communicator> found = communicators.find(reinterpret_cast<std::uintptr_t>(comm));
  if (!found) return notACommunicator(comm);
  return found;
}
// Empty for the NULL stream.
inline Result<Pin<comm::Stream>> find(koloStream_t stream) {
  if (stream == nullptr) return Pin<comm::Stream>();
  Pin<comm::Stream> found = streams.find(reinterpret_cast<std::uintptr_t>(stream));
  if (!found) return notAStream(stream);
  return found;
}

namespace refusal {
Status inReduction();
}
// Why a call may not be made here, where it would wait for itself: inside an open group, whose end then fails with the
// same error, or inside a user's reduction.
Status refuseInGroup();
inline Status refuseInReduction() { return caller.userFunctions == 0 ? Status() : refusal::inReduction(); }
Status refuseInGroupOrReduction();
// Inside a request's function, whose thread the end of a communicator waits for.
Status refuseInNotice();

// A place that the caller gives for a result.
Status checkResult(const char* name, const void* place);
// The caller's text: cut to `size` bytes with its terminator; *needed, which may be NULL, gets the whole length.
Status giveText(const std::string& text, char* place, std::size_t size, std::size_t* needed);

// kind: "stream".
inline Status noHandle(const char* kind) {
  return error(koloOutOfMemory, "there is no memory for another {} handle", kind);
}

// Makes a handle for an object; where none is left, the object stays the caller's.
template <class Handle, class Table, class T>
Status giveHandle(Handle* place, Table& table, std::unique_ptr<T>&& object, const char* kind) {
  const std::uintptr_t handle = table.add(object.get());
  if (handle == 0) return noHandle(kind);
  (void)object.release();
  *place = reinterpret_cast<Handle>(handle);
  return {};
}

// A request that has not begun, with a handle; or koloOutOfMemory.
struct NewRequest {
  comm::Request* request;
  std::uintptr_t handle;
};
Result<NewRequest> makeRequest();
// One that nobody else has any more, for the thread's next. REQUIRES: the handle was retired, and not released.
void keepRequest(std::uintptr_t handle, comm::Request& request);

// A request's handle, once `start` has begun what it stands for: start(request) -> Status.
template <class Start>
Status giveRequest(koloRequest_t* place, Start&& start) {
  KOLO_TRY(checkResult("request", place));
  KOLO_ASSIGN(const NewRequest made, makeRequest());
  Status status = withoutExceptions([&] { return start(*made.request); });
  if (status.ok()) {
    *place = reinterpret_cast<koloRequest_t>(made.handle);
  } else {  // nothing has begun
    (void)requests.retire(made.handle);
    requests.waitUntilUnused(made.handle);
    keepRequest(made.handle, *made.request);
  }
  return status;
}

// Runs a control function in the communicator's order.
template <class Body>
auto inTurn(comm::Communicator& communicator, Body&& body) -> decltype(body()) {
  KOLO_TRY(refuseInGroupOrReduction());
  if (communicator.requests().hasCollectives()) communicator.requests().executeCollectives();
  // Some control functions work on a communicator that has failed: an abort alone ends the wait.
  const std::shared_ptr<bootstrap::Interrupt>& abort = communicator.failureState().abortInterrupt();
  const comm::InTurn served(communicator.turn(), [&] { return abort->isRaised(); });
  if (!served.isServed()) return abort->why();
  const comm::LendsTurn lends(communicator.turn(), served.entered());
  return body();
}

}  // namespace kolo::api
