// The functions of the table of a transport with posted links, in terms of its own classes.
//
// Thread safety: as the table demands.
#pragma once

#include <kolo/transport.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../common/checks.h"
#include "party.h"

namespace kolo::connect {

// Transport has, as types, its Device, Link and Memory, and
//   int registerMemory(Device&, const koloTransportMemory&, Memory**, koloTransportBlob*, const Why&)
//   int openLink(Device&, const koloTransportBlob& address, const koloTransportBlob& descriptor, Link**, const Why&).
template <class Transport>
struct PostedTable {
  using Device = typename Transport::Device;
  using Link = typename Transport::Link;
  using Memory = typename Transport::Memory;

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
      int code = checkProcess(deviceOf(opened).party(), why);
      if (code == KOLO_TRANSPORT_OK) code = checkRange(*range, why);
      if (code != KOLO_TRANSPORT_OK) return code;
      Memory* memory = nullptr;
      code = Transport::registerMemory(deviceOf(opened), *range, &memory, blob, why);
      *registered = memory;
      return code;
    });
  }
  static int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
                      void** linked, void**, char* text, std::size_t bytes) {
    const Why why{text, bytes};
    return guard(why, [&] {
      int code = checkProcess(deviceOf(opened).party(), why);
      if (code != KOLO_TRANSPORT_OK) return code;
      Link* link = nullptr;
      code = Transport::openLink(deviceOf(opened), *peerAddress, *peerMemory, &link, why);
      *linked = link;
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
};

}  // namespace kolo::connect
