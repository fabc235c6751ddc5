// One rank of a communicator, in its part of giving files to the others and taking theirs: what transports between the
// processes of one machine have in common.
//
// Thread safety: as the transport table demands: one party from one thread at a time, different ones concurrently.
#pragma once

#include <sys/types.h>

#include <optional>

#include "../common/checks.h"
#include "exporter.h"
#include "importer.h"
#include "wire.h"

namespace kolo::handover {

struct Party {
  Key key;
  Address address;
  int ranks;
  int timeoutMs;
  pid_t pid;            // that opened it: a forked child has a copy that it must not use
  bool serves = false;  // holds the exporter's thread
};

// purpose: of the transport, for its key.
int openParty(const koloTransportHost& host, const char* purpose, Party* party, const Why& why);
void closeParty(Party& party);

// An error of a party in a forked child.
int checkProcess(const Party& party, const Why& why);

// Offers a memory to the other ranks: to those in this process its address, to others its file, if it has one. The file
// is borrowed until Exporter::remove() of the id.
IdKey offer(Party& party, const Exported& memory, std::uint64_t fdOffset, Descriptor* descriptor);

// Reads and checks what a peer has sent: koloTransportBlobs of a whole Address, and of what `Offer`, proven, holds.
template <class Offer>
int readPeer(const Party& party, const koloTransportBlob& addressBlob, const koloTransportBlob& memoryBlob,
             const Why& why, Address* address, Offer* offered) {
  if (!fromBlob(addressBlob, address)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are not an address of this transport", addressBlob.bytes);
  }
  if (!fromBlob(memoryBlob, offered)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are not a descriptor of this transport", memoryBlob.bytes);
  }
  if (!isProven(*address, party.key) || !isProven(*offered, party.key)) {
    return why.fail(KOLO_TRANSPORT_ERROR,
                    "the address or the descriptor was altered, or comes from another communicator");
  }
  return KOLO_TRANSPORT_OK;
}
// That both come from one process.
int checkPair(const Address& address, const Descriptor& descriptor, const Why& why);

inline bool isInProcess(const Party& party, const Address& address) {
  return same(address.processId, party.address.processId);
}
// The peer's memory, in this process.
int findHere(const Descriptor& descriptor, const Why& why, Exported* memory);
// The file of a peer in another process of this machine; the caller closes it. REQUIRES: it has one.
int fetch(const Party& party, const Address& address, const Descriptor& descriptor, const Why& why, int* fd);

// Of the same machine, or UNREACHABLE.
int checkMachine(const Party& party, const Address& address, const Why& why);

}  // namespace kolo::handover
