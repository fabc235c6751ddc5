// Posted links over InfiniBand and RoCE. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

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

Device& deviceOf(void* opened) { return *static_cast<Device*>(opened); }
Link& linkOf(void* opened) { return *static_cast<Link*>(opened); }

// libibverbs needs so many for a moment, and finds no device where it cannot open them.
constexpr int kFilesToLook = 4;

int probe(char* text, size_t bytes) {
  const Why why{text, bytes};
  std::array<connect::Socket, kFilesToLook> files;
  for (connect::Socket& file : files) {
    file = connect::Socket(eventfd(0, EFD_CLOEXEC));
    if (!file)
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

int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] {
    auto device = std::make_unique<Device>();
    const int code = device->open(*host, address, why);
    if (code == KOLO_TRANSPORT_OK) *opened = device.release();
    return code;
  });
}

void deviceClose(void* opened) {
  if (deviceOf(opened).isOurs()) delete &deviceOf(opened);
}

int registerMemory(Device& device, const koloTransportMemory& range, void** registered, koloTransportBlob* blob,
                   const Why& why) {
  if (const int code = connect::checkProcess(device.party(), why); code != KOLO_TRANSPORT_OK) return code;
  if (range.address == nullptr || range.bytes == 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "a range of %llu bytes at %p, expected at least one byte",
                    static_cast<unsigned long long>(range.bytes), range.address);
  }
  const bool isOfDevice = range.kind == koloMemoryCuda;
  Region* region = nullptr;
  const int code = device.registerRegion({.address = range.address,
                                          .bytes = range.bytes,
                                          .isOfDevice = isOfDevice,
                                          .dmaBuf = isOfDevice ? range.fd : -1,
                                          .dmaBufOffset = range.fdOffset},
                                         why, &region);
  if (code != KOLO_TRANSPORT_OK) return code;
  Descriptor descriptor{};
  std::memcpy(descriptor.device, device.party().address.device, sizeof descriptor.device);
  descriptor.target = region->target();
  descriptor.bytes = range.bytes;
  descriptor.isOfDevice = isOfDevice;
  prove(descriptor, device.party().key);
  toBlob(descriptor, blob);
  *registered = region;
  return KOLO_TRANSPORT_OK;
}

int memoryRegister(void* opened, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return registerMemory(deviceOf(opened), *range, registered, blob, why); });
}

void memoryDeregister(void* opened, void* registered) { deviceOf(opened).deregister(static_cast<Region*>(registered)); }

int memoryKey(void* opened, void* registered, koloTransportKey* key, char*, size_t) {
  const Target target = deviceOf(opened).relax(*static_cast<Region*>(registered));
  std::memcpy(key->data, &target, sizeof target);
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
  const int code = device.openLink(
      address, {nullptr, descriptor.target, descriptor.bytes, descriptor.isOfDevice != 0, {}}, why, &link);
  *linked = link;
  return code;
}

int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** linked,
             void**, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return openLink(deviceOf(opened), *peerAddress, *peerMemory, linked, why); });
}

void linkClose(void* opened, void* linked) { deviceOf(opened).closeLink(&linkOf(linked)); }

uint32_t linkRails(void*, void* linked) { return linkOf(linked).way->rails; }

int linkPut(void* opened, void* linked, const koloTransportPut* put, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return deviceOf(opened).put(linkOf(linked), *put, why); });
}

uint64_t linkUnfinished(void* opened, void* linked) { return deviceOf(opened).loadOf(linkOf(linked)).unfinished; }

uint64_t linkQueued(void* opened, void* linked) { return deviceOf(opened).loadOf(linkOf(linked)).queued; }

int linkState(void* opened, void* linked, char* text, size_t bytes) {
  return deviceOf(opened).state(linkOf(linked), {text, bytes});
}

int deviceProgress(void* opened, int peer, int waitUs) {
  return guard({nullptr, 0}, [&] { return deviceOf(opened).progress(peer, waitUs) ? 1 : 0; });
}

void deviceAbandon(void* opened) { deviceOf(opened).abandon(); }

int deviceNics(void* opened, koloTransportNic* nics, int most) {
  return deviceOf(opened).tellNics({nics, static_cast<std::size_t>(most)});
}

void linkAbandon(void* opened, void* linked) { deviceOf(opened).abandonLink(linkOf(linked)); }

}  // namespace
}  // namespace kolo::ib

extern "C" const koloTransport* koloTransportIb(void);

const koloTransport* koloTransportIb(void) {
  using namespace kolo::ib;
  static const koloTransport table = {
      .abi = KOLO_TRANSPORT_ABI,
      .size = sizeof(koloTransport),
      .name = "ib",
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
      .registersCheaply = 0,
      .deviceAbandon = deviceAbandon,
      .linkAbandon = linkAbandon,
      .registersDeviceMemory = 1,
      .deviceNics = deviceNics,
      // ib_write_lat's 1 to 2 us, and what the core does before and after; not measured on hardware.
      .messageNs = 3000,
      .putNs = 300,
      .mostMegabits = 0,
      .linkWrite = nullptr,
      .looksCheaply = 1,
      .sharesLinks = 0};
  return &table;
}
