// Posted links over TCP. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "device.h"

namespace kolo::tcp {
namespace {

using common::fromBlob;
using common::guard;
using common::Id;
using common::isProven;
using common::Proof;
using common::same;
using common::toBlob;

// Of a registered memory.
struct Descriptor {
  static constexpr char kMagic[9] = "KOLOtcpM";
  char magic[8];
  Id device;
  std::uint64_t number;
  std::uint64_t bytes;
  Proof proof;
};
static_assert(std::has_unique_object_representations_v<Descriptor> && sizeof(Descriptor) <= KOLO_TRANSPORT_BLOB_BYTES);

struct Memory {
  std::uint64_t number;
  std::uint64_t bytes;
};

Device& deviceOf(void* opened) { return *static_cast<Device*>(opened); }
Link& linkOf(void* opened) { return *static_cast<Link*>(opened); }

int probe(char* text, size_t bytes) {
  const Why why{text, bytes};
  if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "libsodium cannot be initialised");
  connect::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) socket = connect::Socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "opening a TCP socket: %s", common::ErrorText(errno).text);
  return KOLO_TRANSPORT_OK;
}

int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] {
    auto device = std::make_unique<Device>();
    const int code = device->open(*host, address, why);
    if (code == KOLO_TRANSPORT_OK) *opened = device.release();
    return code;
  });
}

void deviceClose(void* opened) { delete &deviceOf(opened); }

int registerMemory(Device& device, const koloTransportMemory& range, void** registered, koloTransportBlob* blob,
                   const Why& why) {
  if (const int code = connect::checkProcess(device.party(), why); code != KOLO_TRANSPORT_OK) return code;
  if (range.address == nullptr || range.bytes == 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "a range of %llu bytes at %p, expected at least one byte",
                    static_cast<unsigned long long>(range.bytes), range.address);
  }
  auto memory = std::make_unique<Memory>();
  *memory = {device.memories().add(range.address, range.bytes), range.bytes};
  Descriptor descriptor{};
  std::memcpy(descriptor.device, device.party().address.device, sizeof descriptor.device);
  descriptor.number = memory->number;
  descriptor.bytes = memory->bytes;
  prove(descriptor, device.party().key);
  toBlob(descriptor, blob);
  *registered = memory.release();
  return KOLO_TRANSPORT_OK;
}

int memoryRegister(void* opened, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return registerMemory(deviceOf(opened), *range, registered, blob, why); });
}

void memoryDeregister(void* opened, void* registered) {
  const std::unique_ptr<Memory> memory(static_cast<Memory*>(registered));
  deviceOf(opened).deregister(memory->number);
}

int memoryKey(void*, void* registered, koloTransportKey* key, char*, size_t) {
  const Memory& memory = *static_cast<const Memory*>(registered);
  const MemoryKey plain{memory.number, memory.bytes, 0};
  std::memcpy(key->data, &plain, sizeof plain);
  return KOLO_TRANSPORT_OK;
}

int openLink(Device& device, const koloTransportBlob& peerAddress, const koloTransportBlob& peerMemory, void** linked,
             const Why& why) {
  const connect::Party& party = device.party();
  if (const int code = connect::checkProcess(party, why); code != KOLO_TRANSPORT_OK) return code;
  connect::Address address;
  if (const int code = connect::readAddress(party, peerAddress, why, &address); code != KOLO_TRANSPORT_OK) return code;
  Descriptor descriptor;
  if (!fromBlob(peerMemory, &descriptor)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are not a descriptor of this transport", peerMemory.bytes);
  }
  if (!isProven(descriptor, party.key)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "the descriptor was altered, or comes from another communicator");
  }
  if (!same(descriptor.device, address.device)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "the address and the descriptor come from different devices");
  }
  Link* link = nullptr;
  const int code = device.openLink(address, descriptor.number, descriptor.bytes, why, &link);
  *linked = link;
  return code;
}

int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** linked,
             void**, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return openLink(deviceOf(opened), *peerAddress, *peerMemory, linked, why); });
}

void linkClose(void* opened, void* linked) { deviceOf(opened).closeLink(&linkOf(linked)); }

uint32_t linkRails(void*, void* linked) { return static_cast<uint32_t>(linkOf(linked).way->rails.size()); }

int linkPut(void* opened, void* linked, const koloTransportPut* put, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return deviceOf(opened).put(linkOf(linked), *put, why); });
}

uint64_t linkUnfinished(void*, void* linked) { return linkOf(linked).load.unfinished; }

uint64_t linkQueued(void*, void* linked) { return linkOf(linked).load.queued; }

int linkState(void* opened, void* linked, char* text, size_t bytes) {
  return deviceOf(opened).state(linkOf(linked), {text, bytes});
}

int deviceProgress(void* opened, int peer, int waitUs) {
  return guard({nullptr, 0}, [&] { return deviceOf(opened).progress(peer, waitUs) ? 1 : 0; });
}

void deviceAbandon(void* opened) { deviceOf(opened).abandon(); }

// The interface that peers try first; what is told to them of others matters if they cannot reach it.
int deviceNics(void* opened, koloTransportNic* nics, int most) {
  const connect::Place& best = deviceOf(opened).party().best;
  if (most < 1) return 0;
  *nics = {};
  best.interface.copy(nics->name, sizeof nics->name - 1);
  nics->megabits = static_cast<std::uint64_t>(best.megabits);
  return 1;
}

}  // namespace
}  // namespace kolo::tcp

extern "C" const koloTransport* koloTransportTcp(void);

const koloTransport* koloTransportTcp(void) {
  using namespace kolo::tcp;
  static const koloTransport table = {
      .abi = KOLO_TRANSPORT_ABI,
      .size = sizeof(koloTransport),
      .name = "tcp",
      .linkKind = koloLinkPosted,
      .probe = probe,
      .deviceOpen = deviceOpen,
      .deviceClose = deviceClose,
      .memoryRegister = memoryRegister,
      .memoryDeregister = memoryDeregister,
      .linkOpen = linkOpen,
      .linkClose = linkClose,
      .linkRead = nullptr,
      .memoryKind = koloMemoryHost,
      .memoryKey = memoryKey,
      .linkRails = linkRails,
      .linkPut = linkPut,
      .linkUnfinished = linkUnfinished,
      .linkQueued = linkQueued,
      .linkState = linkState,
      .deviceProgress = deviceProgress,
      .registersCheaply = 1,
      .deviceAbandon = deviceAbandon,
      .linkAbandon = nullptr,
      .deviceNics = deviceNics,
      // Measured by tools/compare-network: what one core sends, perf/results/2026-11-22-network-3hosts.txt.
      .messageNs = 20000,
      .putNs = 3000,
      .mostMegabits = 20000};
  return &table;
}
