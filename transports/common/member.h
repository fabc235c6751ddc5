// One rank of a communicator, as each transport knows it that a device was opened for, and what it takes from others.
//
// Thread safety: different members from any thread.
#pragma once

#include "base/fork.h"
#include "proof.h"
#include "why.h"

namespace kolo::common {

struct Member {
  Key key;  // of the communicator, for this transport
  int rank;
  int ranks;
  int timeoutMs;
  int pid;
  unsigned generation;
  // A forked child has a copy that it must not use.
  bool isOurs() const { return generation == forkGeneration(); }
};

// purpose: of the transport, for its key.
int openMember(const koloTransportHost& host, const char* purpose, Member* member, const Why& why);
// An error of a member in a forked child.
int checkProcess(const Member& member, const Why& why);
// Of a memory to be registered, besides: a koloTransportMemory that is not whole, or a range of no bytes.
int checkRange(const Member& member, const koloTransportMemory& range, const Why& why);
int failAltered(const char* what, const Why& why);

// A peer's blob, checked: whole; and proven. what: "address" or "descriptor".
template <class Message>
int readWhole(const koloTransportBlob& blob, const char* what, const Why& why, Message* message) {
  if (fromBlob(blob, message)) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are no %s of this transport", blob.bytes, what);
}
template <class Message>
int readProven(const Member& member, const koloTransportBlob& blob, const char* what, const Why& why,
               Message* message) {
  if (const int code = readWhole(blob, what, why, message); code != KOLO_TRANSPORT_OK) return code;
  return isProven(*message, member.key) ? KOLO_TRANSPORT_OK : failAltered(what, why);
}

}  // namespace kolo::common
