// One rank of a communicator, in its part of giving files to the others and taking theirs: what transports between the
// processes of one machine have in common.
//
// Thread safety: as the transport table demands: one party from one thread at a time, different ones concurrently.
#pragma once

#include "../common/member.h"
#include "exporter.h"
#include "importer.h"
#include "wire.h"

namespace kolo::handover {

struct Party : Member {
  Address address;
  bool serves = false;  // holds the exporter's thread
};

// purpose: of the transport, for its key.
int openParty(const koloTransportHost& host, const char* purpose, Party* party, const Why& why);
void closeParty(Party& party);

// Offers a memory to the other ranks: to those in this process its address, to others its file, if it has one. The file
// is borrowed until Exporter::remove() of the id.
IdKey offer(Party& party, const Exported& memory, std::uint64_t fdOffset, Descriptor* descriptor);

// Reads and checks what a peer has sent: koloTransportBlobs of a whole Address, and of what `Offer`, proven, holds.
template <class Offer>
int readPeer(const Party& party, const koloTransportBlob& addressBlob, const koloTransportBlob& memoryBlob,
             const Why& why, Address* address, Offer* offered) {
  int code = checkProcess(party, why);
  if (code == KOLO_TRANSPORT_OK) code = readProven(party, addressBlob, "address", why, address);
  return code == KOLO_TRANSPORT_OK ? readProven(party, memoryBlob, "descriptor", why, offered) : code;
}
// That both come from one process.
int checkPair(const Address& address, const Descriptor& descriptor, const Why& why);

inline bool isInProcess(const Party& party, const Address& address) {
  return same(address.processId, party.address.processId);
}
// The peer's memory, in this process.
int findHere(const Descriptor& descriptor, const Why& why, Exported* memory);
// The file of a peer in another process of this machine, and that process, as fetchFile() says. REQUIRES: it has one.
int fetch(const Party& party, const Address& address, const Descriptor& descriptor, const Why& why,
          network::Socket* file, pid_t* process);

// Of the same machine, or UNREACHABLE.
int checkMachine(const Party& party, const Address& address, const Why& why);

}  // namespace kolo::handover
