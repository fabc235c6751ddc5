// Posted links over TCP. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "../connect/posted_table.h"
#include "device.h"

namespace kolo::tcp {
namespace {

using common::Id;
using common::Proof;

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

struct Tcp;
using Table = connect::PostedTable<Tcp>;

struct Tcp {
  using Device = tcp::Device;
  using Link = tcp::Link;
  using Descriptor = tcp::Descriptor;
  struct Memory {
    std::uint64_t number;
    std::uint64_t bytes;
  };

  static int probe(char* text, size_t bytes) {
    const Why why{text, bytes};
    if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "libsodium cannot be initialised");
    network::Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid()) socket = network::Socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid())
      return why.fail(KOLO_TRANSPORT_UNREACHABLE, "opening a TCP socket: %s", common::ErrorText(errno).text);
    return KOLO_TRANSPORT_OK;
  }

  static int registerMemory(Device& device, const koloTransportMemory& range, Memory** registered,
                            Descriptor* descriptor, const Why&) {
    auto memory = std::make_unique<Memory>(Memory{device.memories().add(range.address, range.bytes), range.bytes});
    descriptor->number = memory->number;
    descriptor->bytes = memory->bytes;
    *registered = memory.release();
    return KOLO_TRANSPORT_OK;
  }
  static int openLink(Device& device, const connect::Address& address, const Descriptor& descriptor, Link** link,
                      const Why& why) {
    return device.openLink(address, descriptor.number, descriptor.bytes, why, link);
  }
  static void deviceClose(void* opened) { delete &Table::deviceOf(opened); }

  static void memoryDeregister(void* opened, void* registered) {
    const std::unique_ptr<Memory> memory(static_cast<Memory*>(registered));
    Table::deviceOf(opened).deregister(memory->number);
  }

  static int memoryKey(void*, void* registered, koloTransportKey* key, char*, size_t) {
    const Memory& memory = *static_cast<const Memory*>(registered);
    const MemoryKey plain{memory.number, memory.bytes, 0};
    std::memcpy(key->data, &plain, sizeof plain);
    return KOLO_TRANSPORT_OK;
  }

  static uint32_t linkRails(void*, void* linked) {
    return static_cast<uint32_t>(Table::linkOf(linked).way->rails.size());
  }

  // The interface that peers try first; what is told to them of others matters if they cannot reach it.
  static int deviceNics(void* opened, koloTransportNic* nics, int most) {
    const network::Place& best = Table::deviceOf(opened).party().best;
    if (most < 1) return 0;
    *nics = {};
    best.interface.copy(nics->name, sizeof nics->name - 1);
    nics->megabits = static_cast<std::uint64_t>(best.megabits);
    return 1;
  }
};

}  // namespace
}  // namespace kolo::tcp

extern "C" const koloTransport* koloTransportTcp(void);

const koloTransport* koloTransportTcp(void) {
  using namespace kolo::tcp;
  static const koloTransport table = [] {
    koloTransport tcp = Table::table("tcp");
    tcp.registersCheaply = 1;
    // Measured by tools/compare-network: what one core sends, perf/results/2026-11-22-network-3hosts.txt.
    tcp.messageNs = 20000;
    tcp.putNs = 3000;
    tcp.mostMegabits = 20000;
    tcp.encrypts = 1;
    return tcp;
  }();
  return &table;
}
