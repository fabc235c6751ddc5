// Mapped links between processes of one machine, and between ranks of one process. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>

#include "exporter.h"
#include "importer.h"
#include "wire.h"

namespace kolo::shm {
namespace {

constexpr int kFallbackTimeoutMs = 10000;

struct Device {
  Key key;
  Address address;
  int ranks;
  int timeoutMs;
  pid_t pid;            // that opened it: a forked child has a copy that it must not use
  bool serves = false;  // holds the exporter's thread
};

struct Memory {
  IdKey id;
};

struct Link {
  Mapping mapping;       // empty in the same process
  bool inProcess;
  pid_t pid;             // of the peer, as it sees itself
  int readErrno;         // why its ordinary memory cannot be read; 0: it can
};

template <std::size_t n>
bool same(const unsigned char (&a)[n], const unsigned char (&b)[n]) {
  return std::memcmp(a, b, n) == 0;
}

// What may throw inside is an allocation; nothing is thrown through the table.
template <class Function>
int guard(const Why& why, Function&& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return why.fail(KOLO_TRANSPORT_ERROR, "out of memory");
  }
}

int checkProcess(const Device& device, const Why& why) {
  if (device.pid == getpid()) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR,
                  "this process was forked from process %d, which made the communicator; make one here",
                  static_cast<int>(device.pid));
}

int probe(char* text, size_t bytes) {
  const Why why{text, bytes};
  if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_UNREACHABLE, "libsodium cannot be initialised");
  const int fd = memfd_create("kolo-probe", MFD_CLOEXEC);
  if (fd < 0) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE, "memfd_create: %s; needs Linux 3.17 and no seccomp filter against it",
                    ErrorText(errno).text);
  }
  close(fd);
  return KOLO_TRANSPORT_OK;
}

int openDevice(const koloTransportHost* host, void** opened, koloTransportBlob* address, const Why& why) {
  if (host->size < sizeof *host) {
    return why.fail(KOLO_TRANSPORT_ERROR, "koloTransportHost has %u bytes, expected at least %zu", host->size,
                    sizeof *host);
  }
  if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_ERROR, "libsodium cannot be initialised");
  auto device = std::make_unique<Device>();
  device->key = deriveKey(host->communicator);
  device->ranks = host->ranks;
  device->timeoutMs = host->timeoutMs > 0 ? host->timeoutMs : kFallbackTimeoutMs;
  device->pid = getpid();
  Address& own = device->address;
  std::memcpy(own.processId, host->processId, sizeof own.processId);
  std::memcpy(own.hostId, host->hostId, sizeof own.hostId);
  own.networkNamespace = networkNamespace();
  own.processIdAt = reinterpret_cast<std::uint64_t>(&own.processId);
  own.pid = device->pid;
  own.uid = geteuid();
  prove(own, device->key);
  toBlob(own, address);
  *opened = device.release();
  return KOLO_TRANSPORT_OK;
}

int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return openDevice(host, opened, address, why); });
}

void deviceClose(void* opened) {
  const std::unique_ptr<Device> device(static_cast<Device*>(opened));
  if (device->serves && device->pid == getpid()) Exporter::instance().release();
  sodium_memzero(&device->key, sizeof device->key);
}

// An exporter that maps less than it says, or read-only, is found here and not by its peers.
int checkFile(const koloTransportMemory& range, const Why& why) {
  struct stat info {};
  const int flags = fcntl(range.fd, F_GETFL);
  if (flags < 0 || fstat(range.fd, &info) != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "file descriptor %d: %s", range.fd, ErrorText(errno).text);
  }
  if ((flags & O_ACCMODE) != O_RDWR) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE, "file descriptor %d is not open for reading and writing", range.fd);
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (range.fdOffset > size || range.bytes > size - range.fdOffset) {
    return why.fail(KOLO_TRANSPORT_ERROR, "a range of %llu bytes at offset %llu lies outside its file of %llu bytes",
                    static_cast<unsigned long long>(range.bytes), static_cast<unsigned long long>(range.fdOffset),
                    static_cast<unsigned long long>(size));
  }
  return KOLO_TRANSPORT_OK;
}

// The descriptor's part on how to get the file. A socket that cannot be had is said to the peer that needs it: peers in
// this process do not.
void offerFile(Device& device, Descriptor& descriptor) {
  descriptor.hasFile = 1;
  if (device.ranks < 2) return;  // nobody to ask for it
  if (!device.serves) {
    descriptor.serverErrno = Exporter::instance().acquire();
    device.serves = descriptor.serverErrno == 0;
  }
  if (device.serves) Exporter::instance().copySocketName(descriptor.socketName);
}

int registerMemory(Device& device, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   const Why& why) {
  if (const int code = checkProcess(device, why); code != KOLO_TRANSPORT_OK) return code;
  if (range->size < sizeof *range) {
    return why.fail(KOLO_TRANSPORT_ERROR, "koloTransportMemory has %u bytes, expected at least %zu", range->size,
                    sizeof *range);
  }
  if (range->address == nullptr || range->bytes == 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "a range of %llu bytes at %p, expected at least one byte",
                    static_cast<unsigned long long>(range->bytes), range->address);
  }
  Descriptor descriptor{};
  if (range->fd >= 0) {
    if (const int code = checkFile(*range, why); code != KOLO_TRANSPORT_OK) return code;
    descriptor.fdOffset = range->fdOffset;
    offerFile(device, descriptor);
  }
  auto memory = std::make_unique<Memory>();
  memory->id = Exporter::instance().add({range->address, range->bytes, range->fd, device.key});
  descriptor.bytes = range->bytes;
  std::memcpy(descriptor.processId, device.address.processId, sizeof descriptor.processId);
  std::memcpy(descriptor.memoryId, memory->id.data(), sizeof descriptor.memoryId);
  prove(descriptor, device.key);
  toBlob(descriptor, blob);
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
}

int readPeer(const Device& device, const koloTransportBlob& addressBlob, const koloTransportBlob& memoryBlob,
             const Why& why, Address* address, Descriptor* descriptor) {
  if (!fromBlob(addressBlob, address)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are not an address of this transport", addressBlob.bytes);
  }
  if (!fromBlob(memoryBlob, descriptor)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%u bytes that are not a descriptor of this transport", memoryBlob.bytes);
  }
  if (!isProven(*address, device.key) || !isProven(*descriptor, device.key)) {
    return why.fail(KOLO_TRANSPORT_ERROR,
                    "the address or the descriptor was altered, or comes from another communicator");
  }
  if (!same(address->processId, descriptor->processId)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "the address and the descriptor come from different processes");
  }
  return KOLO_TRANSPORT_OK;
}

int openInProcess(const Descriptor& descriptor, const Why& why, void** mapped) {
  IdKey id;
  std::memcpy(id.data(), descriptor.memoryId, id.size());
  const auto memory = Exporter::instance().find(id);
  if (!memory) return why.fail(KOLO_TRANSPORT_ERROR, "the peer in this process has deregistered this memory");
  *mapped = memory->address;
  return KOLO_TRANSPORT_OK;
}

int openAcross(const Device& device, const Address& address, const Descriptor& descriptor, const Why& why,
               Mapping* mapping) {
  if (!same(address.hostId, device.address.hostId)) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                    "process %d runs on another machine, which shares no memory with this one", address.pid);
  }
  if (descriptor.hasFile == 0) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "ordinary memory of another process, %d, cannot be mapped; memory from koloMemAlloc can",
                    address.pid);
  }
  if (descriptor.socketName[0] == '\0') {
    return why.fail(
        KOLO_TRANSPORT_UNREACHABLE, "process %d has no socket to hand its memory over: %s", address.pid,
        descriptor.serverErrno != 0 ? ErrorText(descriptor.serverErrno).text : "it is alone in its communicator");
  }
  int fd = -1;
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(device.timeoutMs);
  int code = fetchFile(address, descriptor, device.key, deadline, why, &fd);
  if (code != KOLO_TRANSPORT_OK) return code;
  code = mapRange(fd, descriptor.fdOffset, descriptor.bytes, why, mapping);
  close(fd);  // the mapping holds the memory, also when the peer is gone
  return code;
}

// All of the range or an errno. In chunks: the kernel holds the pages of one call all at once.
int readMemory(pid_t pid, void* to, std::uint64_t from, std::uint64_t bytes) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::size_t step = std::min(bytes - done, kMostBytes);
    const iovec here{static_cast<unsigned char*>(to) + done, step};
    const iovec there{reinterpret_cast<void*>(from + done), step};
    const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got < 0) return errno;
    if (got == 0) return EFAULT;
    done += static_cast<std::uint64_t>(got);
  }
  return 0;
}

// A pid means something only within its namespace, and a policy may forbid reading (ptrace access): reading what the peer
// said stands there tells. Should the peer die and its pid be given to another process, what is read then is of no use, and
// the operation fails with the peer.
int tryReading(const Address& address) {
  Id found;
  const int failure = readMemory(address.pid, found, address.processIdAt, sizeof found);
  if (failure != 0) return failure;
  return same(found, address.processId) ? 0 : ESRCH;
}

int openLink(const Device& device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
             void** linked, void** mapped, const Why& why) {
  if (const int code = checkProcess(device, why); code != KOLO_TRANSPORT_OK) return code;
  Address address;
  Descriptor descriptor;
  int code = readPeer(device, *peerAddress, *peerMemory, why, &address, &descriptor);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto link = std::make_unique<Link>();
  link->pid = address.pid;
  link->inProcess = same(address.processId, device.address.processId);
  if (link->inProcess) {
    code = openInProcess(descriptor, why, mapped);
  } else {
    code = openAcross(device, address, descriptor, why, &link->mapping);
    *mapped = link->mapping.first;
    link->readErrno = code == KOLO_TRANSPORT_OK ? tryReading(address) : 0;
  }
  if (code == KOLO_TRANSPORT_OK) *linked = link.release();
  return code;
}

int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** linked,
             void** mapped, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(
      why, [&] { return openLink(*static_cast<const Device*>(opened), peerAddress, peerMemory, linked, mapped, why); });
}

void linkClose(void*, void* linked) {
  const std::unique_ptr<Link> link(static_cast<Link*>(linked));
  unmap(link->mapping);
}

int linkRead(void*, void* linked, void* to, std::uint64_t from, std::uint64_t bytes, char* text, size_t textBytes) {
  const Why why{text, textBytes};
  const Link& link = *static_cast<const Link*>(linked);
  if (link.readErrno != 0) {
    return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                    "process_vm_readv from process %d: %s; it needs one process id namespace and the right to trace the "
                    "peer (same user, kernel.yama.ptrace_scope 0)",
                    static_cast<int>(link.pid), ErrorText(link.readErrno).text);
  }
  if (link.inProcess) {
    if (bytes != 0) std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return KOLO_TRANSPORT_OK;
  }
  const int failure = bytes != 0 ? readMemory(link.pid, to, from, bytes) : 0;
  if (failure == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "process_vm_readv of %llu bytes from process %d: %s",
                  static_cast<unsigned long long>(bytes), static_cast<int>(link.pid), ErrorText(failure).text);
}

}  // namespace
}  // namespace kolo::shm

extern "C" const koloTransport* koloTransportShm(void);

const koloTransport* koloTransportShm(void) {
  using namespace kolo::shm;
  static const koloTransport table = {
      KOLO_TRANSPORT_ABI, sizeof(koloTransport), "shm",    koloLinkMapped, probe, deviceOpen, deviceClose,
      memoryRegister,     memoryDeregister,      linkOpen, linkClose,      linkRead};
  return &table;
}
