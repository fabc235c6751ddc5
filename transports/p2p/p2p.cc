// Mapped links between the memories of CUDA devices of one machine, for the devices' own kernels. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <unistd.h>

#include <memory>

#include "../handover/party.h"
#include "allocation.h"

namespace kolo::p2p {
namespace {

using namespace handover;

struct Device {
  Party party;
  const drivers::CudaDriver* driver = nullptr;
  int ordinal = 0;
  CUdevice handle = 0;
  CUcontext context = nullptr;
};

struct Memory {
  IdKey id;
  int fd;  // -1: for this process only
};

struct Link {
  Import import;  // empty where the peer's own pointer is used
};

// Of a memory: what the peers are given, and how it is to be used.
struct Offer {
  static constexpr char kMagic[9] = "KOLOp2pM";
  char magic[8];
  Descriptor memory;  // the file is that of the allocation
  std::uint64_t allocationBytes;
  std::uint64_t offset;  // of the memory in it
  Export kind;
  Obstacle obstacle;
  Proof proof;
};
static_assert(std::has_unique_object_representations_v<Offer> && sizeof(Offer) <= KOLO_TRANSPORT_BLOB_BYTES);

// Makes the device's context the thread's, for a scope in which a capture elsewhere forbids nothing.
class Current {
 public:
  explicit Current(const Device& device)
      : device_(device), pushed_(device.driver->cuCtxPushCurrent(device.context) == CUDA_SUCCESS) {
    (void)device_.driver->cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Current() {
    (void)device_.driver->cuThreadExchangeStreamCaptureMode(&mode_);
    if (pushed_) (void)device_.driver->cuCtxPopCurrent(nullptr);
  }
  Current(const Current&) = delete;

 private:
  const Device& device_;
  const bool pushed_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

int probe(char* text, size_t bytes) {
  const Why why{text, bytes};
  if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "libsodium cannot be initialised");
  const auto driver = drivers::cuda();
  if (!driver.ok()) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "%s", driver.status().message().c_str());
  return KOLO_TRANSPORT_OK;
}

int openDevice(const koloTransportHost* host, void** opened, koloTransportBlob* address, const Why& why) {
  auto device = std::make_unique<Device>();
  if (const int code = openParty(*host, "kolo transport p2p", &device->party, why); code != KOLO_TRANSPORT_OK)
    return code;
  const auto driver = drivers::cuda();
  if (!driver.ok()) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "%s", driver.status().message().c_str());
  device->driver = driver.value();
  device->ordinal = host->device;
  CUresult result = device->driver->cuDeviceGet(&device->handle, host->device);
  if (result != CUDA_SUCCESS) return failed(*device->driver, result, "cuDeviceGet", KOLO_TRANSPORT_ERROR, why);
  result = device->driver->cuDevicePrimaryCtxRetain(&device->context, device->handle);
  if (result != CUDA_SUCCESS)
    return failed(*device->driver, result, "cuDevicePrimaryCtxRetain", KOLO_TRANSPORT_ERROR, why);
  toBlob(device->party.address, address);
  *opened = device.release();
  return KOLO_TRANSPORT_OK;
}

int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return openDevice(host, opened, address, why); });
}

void deviceClose(void* opened) {
  const std::unique_ptr<Device> device(static_cast<Device*>(opened));
  (void)device->driver->cuDevicePrimaryCtxRelease(device->handle);
  closeParty(device->party);
}

int registerMemory(Device& device, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   const Why& why) {
  int code = checkRange(device.party, *range, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  if (range->kind != koloMemoryCuda) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE, "host memory: expected memory of a CUDA device");
  }
  const Current current(device);
  const auto address = reinterpret_cast<CUdeviceptr>(range->address);
  Allocation allocation;
  code = describe(*device.driver, address, range->bytes, device.party.ranks > 1, why, &allocation);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto memory = std::make_unique<Memory>();
  memory->fd = allocation.fd;
  Offer given{};
  memory->id = offer(device.party, {range->address, range->bytes, allocation.fd, device.party.key}, 0, &given.memory);
  given.allocationBytes = allocation.bytes;
  given.offset = address - allocation.base;
  given.kind = allocation.kind;
  given.obstacle = allocation.obstacle;
  prove(given, device.party.key);
  toBlob(given, blob);
  *registered = memory.release();
  return KOLO_TRANSPORT_OK;
}

int memoryRegister(void* opened, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return registerMemory(*static_cast<Device*>(opened), range, registered, blob, why); });
}

void memoryDeregister(void*, void* registered) {
  const std::unique_ptr<Memory> memory(static_cast<Memory*>(registered));
  Exporter::instance().remove(memory->id);
  if (memory->fd >= 0) close(memory->fd);
}

// Where the memory lies in the mapped allocation. The peer says so, but how much is mapped this rank has found itself.
int placeIn(const Import& import, const Offer& offered, const Why& why, void** mapped, std::uint64_t* bytes) {
  if (offered.offset > import.bytes || offered.memory.bytes > import.bytes - offered.offset) {
    return why.fail(KOLO_TRANSPORT_ERROR,
                    "the peer's memory of %llu bytes at %llu lies outside of its allocation of %llu",
                    static_cast<unsigned long long>(offered.memory.bytes),
                    static_cast<unsigned long long>(offered.offset), static_cast<unsigned long long>(import.bytes));
  }
  *mapped = reinterpret_cast<void*>(import.base + offered.offset);
  *bytes = offered.memory.bytes;
  return KOLO_TRANSPORT_OK;
}

// The peer's own pointer on the same device. On another: memory by handle is mapped once more, for this device; the
// rest is reached by peer access between the contexts. In which allocation the memory lies only its own device's
// context can tell: that is in the offer.
int openInProcess(const Device& device, const Offer& offered, const Why& why, Import* import, void** mapped,
                  std::uint64_t* bytes) {
  Exported memory;
  if (const int code = findHere(offered.memory, why, &memory); code != KOLO_TRANSPORT_OK) return code;
  const drivers::CudaDriver& driver = *device.driver;
  int owner = -1;
  if (const int code = deviceOf(driver, reinterpret_cast<CUdeviceptr>(memory.address), why, &owner);
      code != KOLO_TRANSPORT_OK)
    return code;
  *mapped = memory.address;
  *bytes = memory.bytes;
  if (owner == device.ordinal) return KOLO_TRANSPORT_OK;
  if (offered.obstacle == Obstacle::kPool || offered.obstacle == Obstacle::kSeveral) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE, "memory of device %d, for device %d: %s", owner, device.ordinal,
                    explain(offered.obstacle));
  }
  CUdevice peer = 0;
  int possible = 0;
  CUresult result = driver.cuDeviceGet(&peer, owner);
  if (result == CUDA_SUCCESS) result = driver.cuDeviceCanAccessPeer(&possible, device.handle, peer);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuDeviceCanAccessPeer", KOLO_TRANSPORT_ERROR, why);
  if (possible == 0) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE, "device %d cannot reach the memory of device %d", device.ordinal,
                    owner);
  }
  CUmemGenericAllocationHandle handle = 0;
  if (driver.cuMemRetainAllocationHandle(&handle, memory.address) == CUDA_SUCCESS) {
    const int code = mapHandle(driver, handle, offered.allocationBytes, device.ordinal, why, import);
    return code == KOLO_TRANSPORT_OK ? placeIn(*import, offered, why, mapped, bytes) : code;
  }
  // The peer's context lives as long as its memory does. Peer access stays: others may rely on it.
  CUcontext context = nullptr;
  result = driver.cuDevicePrimaryCtxRetain(&context, peer);
  if (result != CUDA_SUCCESS) return failed(driver, result, "cuDevicePrimaryCtxRetain", KOLO_TRANSPORT_ERROR, why);
  result = driver.cuCtxEnablePeerAccess(context, 0);
  (void)driver.cuDevicePrimaryCtxRelease(peer);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return KOLO_TRANSPORT_OK;
  return failed(driver, result, "cuCtxEnablePeerAccess", KOLO_TRANSPORT_UNREACHABLE, why);
}

int openAcross(const Device& device, const Address& address, const Offer& offered, const Why& why, Import* import,
               void** mapped, std::uint64_t* bytes) {
  if (const int code = checkMachine(device.party, address, why); code != KOLO_TRANSPORT_OK) return code;
  if (offered.kind == Export::kNone) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE, "memory of process %d: %s", address.pid, explain(offered.obstacle));
  }
  network::Socket file;
  pid_t process = 0;
  int code = fetch(device.party, address, offered.memory, why, &file, &process);
  if (code != KOLO_TRANSPORT_OK) return code;
  code = importFile(*device.driver, file.fd(), offered.kind, offered.allocationBytes, device.ordinal, why, import);
  return code == KOLO_TRANSPORT_OK ? placeIn(*import, offered, why, mapped, bytes) : code;
}

int openLink(const Device& device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
             void** linked, void** mapped, std::uint64_t* bytes, const Why& why) {
  Address address{};
  Offer offered{};
  int code = readPeer(device.party, *peerAddress, *peerMemory, why, &address, &offered);
  if (code == KOLO_TRANSPORT_OK) code = checkPair(address, offered.memory, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto link = std::make_unique<Link>();
  const Current current(device);
  code = isInProcess(device.party, address) ? openInProcess(device, offered, why, &link->import, mapped, bytes)
                                            : openAcross(device, address, offered, why, &link->import, mapped, bytes);
  if (code == KOLO_TRANSPORT_OK) *linked = link.release();
  else release(*device.driver, link->import);
  return code;
}

int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** linked,
             void** mapped, std::uint64_t* bytes, char* text, size_t textBytes) {
  const Why why{text, textBytes};
  return guard(why, [&] {
    return openLink(*static_cast<const Device*>(opened), peerAddress, peerMemory, linked, mapped, bytes, why);
  });
}

void linkClose(void* opened, void* linked) {
  const Device& device = *static_cast<const Device*>(opened);
  const std::unique_ptr<Link> link(static_cast<Link*>(linked));
  const Current current(device);
  release(*device.driver, link->import);
}

}  // namespace
}  // namespace kolo::p2p

extern "C" const koloTransport* koloTransportP2p(void);

const koloTransport* koloTransportP2p(void) {
  using namespace kolo::p2p;
  static const koloTransport table = {
      KOLO_TRANSPORT_ABI, sizeof(koloTransport), "p2p",    koloLinkMapped, probe,   deviceOpen,    deviceClose,
      memoryRegister,     memoryDeregister,      linkOpen, linkClose,      nullptr, koloMemoryCuda};
  return &table;
}
