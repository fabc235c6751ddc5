// The functions of the table of a transport with posted links, in terms of its own classes.
//
// Thread safety: as the table demands.
#pragma once

#include <kolo/transport.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "party.h"

namespace kolo::connect {

// Transport has, as types, its Device, Link and Memory, a Descriptor of a memory, which begins with `magic` and
// `device` and ends with `proof`, and
//   int registerMemory(Device&, const koloTransportMemory&, Memory**, Descriptor*, const Why&): sets the rest of it
//   int openLink(Device&, const Address&, const Descriptor&, Link**, const Why&): to a peer of which both are proven;
// and the functions of the table that `table` takes from it.
template <class Transport>
struct PostedTable {
  using Device = typename Transport::Device;
  using Link = typename Transport::Link;
  using Memory = typename Transport::Memory;
  using Descriptor = typename Transport::Descriptor;

  // What all have in common. The transport adds what it costs, and what it can do besides.
  static koloTransport table(const char* name) {
    return {.abi = KOLO_TRANSPORT_ABI,
            .size = sizeof(koloTransport),
            .name = name,
            .linkKind = koloLinkPosted,
            .probe = Transport::probe,
            .deviceOpen = deviceOpen,
            .deviceClose = Transport::deviceClose,
            .memoryRegister = memoryRegister,
            .memoryDeregister = Transport::memoryDeregister,
            .linkOpen = linkOpen,
            .linkClose = linkClose,
            .memoryKind = koloMemoryHost,
            .memoryKey = Transport::memoryKey,
            .linkRails = Transport::linkRails,
            .linkPut = linkPut,
            .linkUnfinished = linkUnfinished,
            .linkQueued = linkQueued,
            .linkState = linkState,
            .deviceProgress = deviceProgress,
            .deviceAbandon = deviceAbandon,
            .deviceNics = Transport::deviceNics};
  }

  static Device& deviceOf(void* opened) { return *static_cast<Device*>(opened); }
  static Link& linkOf(void* opened) { return *static_cast<Link*>(opened); }

  static int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text,
                        std::size_t bytes) {
    const Why why{text, bytes};
    return guard(why, [&] {
      auto device = std::make_unique<Device>();
      const int code = device->open(*host, address, why);
      if (code == KOLO_TRANSPORT_OK) *opened = device.release();
      return code;
    });
  }
  static int memoryRegister(void* opened, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                            char* text, std::size_t bytes) {
    const Why why{text, bytes};
    return guard(why, [&] {
      const Party& party = deviceOf(opened).party();
      int code = checkRange(party, *range, why);
      if (code != KOLO_TRANSPORT_OK) return code;
      Memory* memory = nullptr;
      Descriptor descriptor{};
      code = Transport::registerMemory(deviceOf(opened), *range, &memory, &descriptor, why);
      if (code != KOLO_TRANSPORT_OK) return code;
      std::memcpy(descriptor.device, party.address.device, sizeof descriptor.device);
      prove(descriptor, party.key);
      toBlob(descriptor, blob);
      *registered = memory;
      return code;
    });
  }
  static int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
                      void** linked, void**, std::uint64_t* bytes, char* text, std::size_t textBytes) {
    const Why why{text, textBytes};
    return guard(why, [&] {
      const Party& party = deviceOf(opened).party();
      Address address{};
      Descriptor descriptor{};
      int code = readPeer(party, *peerAddress, *peerMemory, why, &address, &descriptor);
      if (code != KOLO_TRANSPORT_OK) return code;
      Link* link = nullptr;
      code = Transport::openLink(deviceOf(opened), address, descriptor, &link, why);
      *linked = link;
      *bytes = descriptor.bytes;  // what puts may reach: the peer checks them, and drops the link of others
      return code;
    });
  }
  static void linkClose(void* opened, void* linked) { deviceOf(opened).closeLink(&linkOf(linked)); }
  static int linkPut(void* opened, void* linked, const koloTransportPut* put, char* text, std::size_t bytes) {
    const Why why{text, bytes};
    return guard(why, [&] { return deviceOf(opened).put(linkOf(linked), *put, why); });
  }
  static std::uint64_t linkUnfinished(void* opened, void* linked) {
    return deviceOf(opened).loadOf(linkOf(linked)).unfinished;
  }
  static std::uint64_t linkQueued(void* opened, void* linked) { return deviceOf(opened).loadOf(linkOf(linked)).queued; }
  static int linkState(void* opened, void* linked, char* text, std::size_t bytes) {
    return deviceOf(opened).state(linkOf(linked), {text, bytes});
  }
  static int deviceProgress(void* opened, int peer, int waitUs) {
    return guard({nullptr, 0}, [&] { return deviceOf(opened).progress(peer, waitUs) ? 1 : 0; });
  }
  static void deviceAbandon(void* opened) { deviceOf(opened).abandon(); }

 private:
  // What a peer has sent, checked: both whole, proven, and of one device.
  static int readPeer(const Party& party, const koloTransportBlob& addressBlob, const koloTransportBlob& memoryBlob,
                      const Why& why, Address* address, Descriptor* descriptor) {
    int code = checkProcess(party, why);
    if (code == KOLO_TRANSPORT_OK) code = readAddress(party, addressBlob, why, address);
    if (code == KOLO_TRANSPORT_OK) code = readProven(party, memoryBlob, "descriptor", why, descriptor);
    if (code != KOLO_TRANSPORT_OK) return code;
    if (!same(descriptor->device, address->device))
      return why.fail(KOLO_TRANSPORT_ERROR, "the address and the descriptor come from different devices");
    return KOLO_TRANSPORT_OK;
  }
};

}  // namespace kolo::connect
