#include "party.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kolo::handover {

int openParty(const koloTransportHost& host, const char* purpose, Party* party, const Why& why) {
  if (host.size < sizeof host) {
    return why.fail(KOLO_TRANSPORT_ERROR, "koloTransportHost has %u bytes, expected at least %zu", host.size,
                    sizeof host);
  }
  if (const int code = openMember(host, purpose, party, why); code != KOLO_TRANSPORT_OK) return code;
  Address& own = party->address;
  std::memcpy(own.processId, host.processId, sizeof own.processId);
  std::memcpy(own.hostId, host.hostId, sizeof own.hostId);
  own.networkNamespace = networkNamespace();
  own.processIdAt = reinterpret_cast<std::uint64_t>(&own.processId);
  own.pid = party->pid;
  own.uid = geteuid();
  prove(own, party->key);
  return KOLO_TRANSPORT_OK;
}

void closeParty(Party& party) {
  if (party.serves && party.isOurs()) Exporter::instance().release();
  sodium_memzero(&party.key, sizeof party.key);
}

// A socket that cannot be had is said to the peer that needs it: peers in this process do not.
IdKey offer(Party& party, const Exported& memory, std::uint64_t fdOffset, Descriptor* descriptor) {
  *descriptor = {};
  if (memory.fd >= 0) {
    descriptor->hasFile = 1;
    descriptor->fdOffset = fdOffset;
    if (party.ranks > 1 && !party.serves) {
      descriptor->serverErrno = Exporter::instance().acquire();
      descriptor->limit = network::fileLimit();
      party.serves = descriptor->serverErrno == 0;
    }
    if (party.serves) Exporter::instance().copySocketName(descriptor->socketName);
  }
  const IdKey id = Exporter::instance().add(memory);
  descriptor->bytes = memory.bytes;
  std::memcpy(descriptor->processId, party.address.processId, sizeof descriptor->processId);
  std::memcpy(descriptor->memoryId, id.data(), sizeof descriptor->memoryId);
  prove(*descriptor, party.key);
  return id;
}

int checkPair(const Address& address, const Descriptor& descriptor, const Why& why) {
  if (same(address.processId, descriptor.processId)) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "the address and the descriptor come from different processes");
}

int findHere(const Descriptor& descriptor, const Why& why, Exported* memory) {
  IdKey id;
  std::memcpy(id.data(), descriptor.memoryId, id.size());
  const auto found = Exporter::instance().find(id);
  if (!found) return why.fail(KOLO_TRANSPORT_ERROR, "the peer in this process has deregistered this memory");
  *memory = *found;
  return KOLO_TRANSPORT_OK;
}

int checkMachine(const Party& party, const Address& address, const Why& why) {
  if (same(address.hostId, party.address.hostId)) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                  "process %d runs on another machine, which shares no memory with this one", address.pid);
}

int fetch(const Party& party, const Address& address, const Descriptor& descriptor, const Why& why,
          network::Socket* file, pid_t* process) {
  if (descriptor.socketName[0] == '\0') {
    if (descriptor.serverErrno == 0) {
      return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                      "process %d has no socket to hand its memory over: it is alone in its communicator", address.pid);
    }
    return failForFiles(descriptor.serverErrno, descriptor.limit, address.pid, why);
  }
  const Deadline deadline = network::Clock::now() + std::chrono::milliseconds(party.timeoutMs);
  return fetchFile(address, descriptor, party.key, deadline, why, file, process);
}

}  // namespace kolo::handover
