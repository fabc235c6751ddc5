// Posted links over InfiniBand and RoCE. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "../connect/posted_table.h"
#include "device.h"

namespace kolo::ib {
namespace {

// Of a registered memory.
struct Descriptor {
  static constexpr char kMagic[9] = "KOLOib_D";
  char magic[8];
  Id device;
  Target target;
  std::uint64_t bytes;
  std::uint64_t isOfDevice;  // the memory is a GPU's: no processor puts anything there
  Proof proof;
};
static_assert(std::has_unique_object_representations_v<Descriptor> && sizeof(Descriptor) <= KOLO_TRANSPORT_BLOB_BYTES);

// libibverbs needs so many for a moment, and finds no device where it cannot open them.
constexpr int kFilesToLook = 4;

struct Ib;
using Table = connect::PostedTable<Ib>;

struct Ib {
  using Device = ib::Device;
  using Link = ib::Link;
  using Memory = Region;
  using Descriptor = ib::Descriptor;

  static int probe(char* text, size_t bytes) {
    const Why why{text, bytes};
    std::array<network::Socket, kFilesToLook> files;
    for (network::Socket& file : files) {
      file = network::Socket(eventfd(0, EFD_CLOEXEC));
      if (!file.valid())
        return why.fail(KOLO_TRANSPORT_UNREACHABLE, "RDMA devices cannot be looked for: %s", ErrorText(errno).text);
    }
    files = {};
    if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "libsodium cannot be initialised");
    const auto verbs = drivers::verbs();
    if (!verbs.ok()) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "%s", verbs.status().message().c_str());
    int count = 0;
    ibv_device** const list = verbs.value()->getDeviceList(&count);
    if (list != nullptr) verbs.value()->freeDeviceList(list);
    if (list != nullptr && count > 0) return KOLO_TRANSPORT_OK;
    return why.fail(KOLO_TRANSPORT_UNREACHABLE, "there is no RDMA device");
  }

  static int registerMemory(Device& device, const koloTransportMemory& range, Region** region, Descriptor* descriptor,
                            const Why& why) {
    const bool isOfDevice = range.kind == koloMemoryCuda;
    const int code = device.registerRegion({.address = range.address,
                                            .bytes = range.bytes,
                                            .isOfDevice = isOfDevice,
                                            .dmaBuf = isOfDevice ? range.fd : -1,
                                            .dmaBufOffset = range.fdOffset},
                                           why, region);
    if (code != KOLO_TRANSPORT_OK) return code;
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): without a region there is an error
    descriptor->target = (*region)->target();
    descriptor->bytes = range.bytes;
    descriptor->isOfDevice = isOfDevice;
    return KOLO_TRANSPORT_OK;
  }
  static int openLink(Device& device, const connect::Address& address, const Descriptor& descriptor, Link** link,
                      const Why& why) {
    return device.openLink(address, {nullptr, descriptor.target, descriptor.bytes, descriptor.isOfDevice != 0, {}}, why,
                           link);
  }
  static void deviceClose(void* opened) {
    if (Table::deviceOf(opened).isOurs()) delete &Table::deviceOf(opened);
  }

  static void memoryDeregister(void* opened, void* registered) {
    Table::deviceOf(opened).deregister(static_cast<Region*>(registered));
  }

  static int memoryKey(void* opened, void* registered, koloTransportKey* key, char*, size_t) {
    const Target target = Table::deviceOf(opened).relax(*static_cast<Region*>(registered));
    std::memcpy(key->data, &target, sizeof target);
    return KOLO_TRANSPORT_OK;
  }

  static uint32_t linkRails(void*, void* linked) { return Table::linkOf(linked).way->rails; }

  static int deviceNics(void* opened, koloTransportNic* nics, int most) {
    return Table::deviceOf(opened).tellNics({nics, static_cast<std::size_t>(most)});
  }
};

void linkAbandon(void* opened, void* linked) { Table::deviceOf(opened).abandonLink(Table::linkOf(linked)); }

}  // namespace
}  // namespace kolo::ib

extern "C" const koloTransport* koloTransportIb(void);

const koloTransport* koloTransportIb(void) {
  using namespace kolo::ib;
  static const koloTransport table = [] {
    koloTransport ib = Table::table("ib");
    ib.linkAbandon = linkAbandon;
    ib.registersDeviceMemory = 1;
    // ib_write_lat's 1 to 2 us, and what the core does before and after; not measured on hardware.
    ib.messageNs = 3000;
    ib.putNs = 300;
    return ib;
  }();
  return &table;
}
