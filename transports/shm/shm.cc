// Mapped links between processes of one machine, and between ranks of one process. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently. A link
// does not change once it is open, so any thread may read and write by it (sharesLinks).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>

#include "../handover/party.h"

namespace kolo::shm {
namespace {

using namespace handover;

using Device = Party;

struct Memory {
  IdKey id;
};

struct Link {
  Mapping mapping;  // empty in the same process
  pid_t pid;        // of the peer, as it sees itself
  int readErrno;    // why its ordinary memory cannot be read; 0: it can
  int writeErrno;   // why it cannot be written; 0: it can
};

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
  auto device = std::make_unique<Device>();
  const int code = openParty(*host, "kolo transport shm", device.get(), why);
  if (code != KOLO_TRANSPORT_OK) return code;
  toBlob(device->address, address);
  *opened = device.release();
  return KOLO_TRANSPORT_OK;
}

int deviceOpen(const koloTransportHost* host, void** opened, koloTransportBlob* address, char* text, size_t bytes) {
  const Why why{text, bytes};
  return guard(why, [&] { return openDevice(host, opened, address, why); });
}

void deviceClose(void* opened) {
  const std::unique_ptr<Device> device(static_cast<Device*>(opened));
  closeParty(*device);
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

int registerMemory(Device& device, const koloTransportMemory* range, void** registered, koloTransportBlob* blob,
                   const Why& why) {
  int code = checkRange(device, *range, why);
  if (code == KOLO_TRANSPORT_OK && range->fd >= 0) code = checkFile(*range, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto memory = std::make_unique<Memory>();
  Descriptor descriptor;
  memory->id = offer(device, {range->address, range->bytes, range->fd, device.key}, range->fdOffset, &descriptor);
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

int openInProcess(const Descriptor& descriptor, const Why& why, void** mapped) {
  Exported memory;
  const int code = findHere(descriptor, why, &memory);
  if (code == KOLO_TRANSPORT_OK) *mapped = memory.address;
  return code;
}

int openAcross(const Device& device, const Address& address, const Descriptor& descriptor, const Why& why,
               Mapping* mapping) {
  int code = checkMachine(device, address, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  if (descriptor.hasFile == 0) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "ordinary memory of another process, %d, cannot be mapped; memory from koloMemAlloc can",
                    address.pid);
  }
  network::Socket file;
  code = fetch(device, address, descriptor, why, &file);
  if (code != KOLO_TRANSPORT_OK) return code;
  // The mapping holds the memory without the file, also when the peer is gone.
  return mapRange(file.fd(), descriptor.fdOffset, descriptor.bytes, why, mapping);
}

// process_vm_readv or process_vm_writev, of all of the range, or an errno. In chunks: the kernel holds the pages of one
// call all at once.
template <class Call>
int copyAcross(const Call& call, pid_t pid, const void* hereAt, std::uint64_t thereAt, std::uint64_t bytes) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::size_t step = std::min(bytes - done, kMostBytes);
    const iovec here{const_cast<unsigned char*>(static_cast<const unsigned char*>(hereAt)) + done, step};
    const iovec there{reinterpret_cast<void*>(thereAt + done), step};
    const ssize_t moved = call(pid, &here, 1, &there, 1, 0);
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    done += static_cast<std::uint64_t>(moved);
  }
  return 0;
}
int readMemory(pid_t pid, void* to, std::uint64_t from, std::uint64_t bytes) {
  return copyAcross(process_vm_readv, pid, to, from, bytes);
}

// A pid means something only within its namespace, and a policy may forbid reading (ptrace access): reading what the
// peer said stands there tells. Should the peer die and its pid be given to another process, what is read then is of no
// use, and the operation fails with the peer.
int tryReading(const Address& address) {
  Id found;
  const int failure = readMemory(address.pid, found, address.processIdAt, sizeof found);
  if (failure != 0) return failure;
  return same(found, address.processId) ? 0 : ESRCH;
}

// The kernel asks for the same rights as for reading, so the peer is left alone: what else may forbid it forbids the
// call itself (seccomp).
int tryWriting(const Address& address) {
  const iovec nothing{nullptr, 0};
  return process_vm_writev(address.pid, &nothing, 1, &nothing, 1, 0) == 0 ? 0 : errno;
}

int openLink(const Device& device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
             void** linked, void** mapped, const Why& why) {
  Address address;
  Descriptor descriptor;
  int code = readPeer(device, *peerAddress, *peerMemory, why, &address, &descriptor);
  if (code == KOLO_TRANSPORT_OK) code = checkPair(address, descriptor, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto link = std::make_unique<Link>();
  link->pid = address.pid;
  if (isInProcess(device, address)) {
    code = openInProcess(descriptor, why, mapped);
  } else {
    code = openAcross(device, address, descriptor, why, &link->mapping);
    *mapped = link->mapping.first;
  }
  link->readErrno = code == KOLO_TRANSPORT_OK ? tryReading(address) : 0;
  link->writeErrno = link->readErrno == 0 ? tryWriting(address) : link->readErrno;
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

// Of memory that could be read, or written, when the link was opened.
const char* whyNoMore(int errnum) {
  if (errnum != EPERM) return "";
  return "; it could be when the communicator was made. Since then that process may have become undumpable (prctl "
         "PR_SET_DUMPABLE), or one of the two may have changed its user or capabilities: expected that of all ranks "
         "before they make a communicator, or KOLO_SINGLE_COPY_BYTES=9223372036854775807, by which all is staged";
}

int linkRead(void*, void* linked, void* to, std::uint64_t from, std::uint64_t bytes, char* text, size_t textBytes) {
  const Why why{text, textBytes};
  const Link& link = *static_cast<const Link*>(linked);
  if (link.readErrno != 0) {
    return why.fail(
        KOLO_TRANSPORT_UNREACHABLE,
        "process_vm_readv from process %d: %s; it needs one process id namespace and the right to trace the "
        "peer (same user, kernel.yama.ptrace_scope 0)",
        static_cast<int>(link.pid), ErrorText(link.readErrno).text);
  }
  // In this process, too: a peer whose operation has failed may have given its buffer back, which must be an error here
  // and not a crash.
  const int failure = bytes != 0 ? readMemory(link.pid, to, from, bytes) : 0;
  if (failure == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "process_vm_readv of %llu bytes from process %d: %s%s",
                  static_cast<unsigned long long>(bytes), static_cast<int>(link.pid), ErrorText(failure).text,
                  whyNoMore(failure));
}

// A pid that another process has got meanwhile: the core does not write to a rank that has been reported dead, and pids
// do not come back within the moment that takes.
int linkWrite(void*, void* linked, std::uint64_t to, const void* from, std::uint64_t bytes, char* text,
              size_t textBytes) {
  const Why why{text, textBytes};
  const Link& link = *static_cast<const Link*>(linked);
  const int failure = link.writeErrno != 0 ? link.writeErrno : copyAcross(process_vm_writev, link.pid, from, to, bytes);
  if (failure == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "process_vm_writev of %llu bytes to process %d: %s%s",
                  static_cast<unsigned long long>(bytes), static_cast<int>(link.pid), ErrorText(failure).text,
                  link.writeErrno == 0 ? whyNoMore(failure) : "");
}

}  // namespace
}  // namespace kolo::shm

extern "C" const koloTransport* koloTransportShm(void);

const koloTransport* koloTransportShm(void) {
  using namespace kolo::shm;
  static const koloTransport table = {.abi = KOLO_TRANSPORT_ABI,
                                      .size = sizeof(koloTransport),
                                      .name = "shm",
                                      .linkKind = koloLinkMapped,
                                      .probe = probe,
                                      .deviceOpen = deviceOpen,
                                      .deviceClose = deviceClose,
                                      .memoryRegister = memoryRegister,
                                      .memoryDeregister = memoryDeregister,
                                      .linkOpen = linkOpen,
                                      .linkClose = linkClose,
                                      .linkRead = linkRead,
                                      .memoryKind = koloMemoryHost,
                                      .linkWrite = linkWrite,
                                      .looksCheaply = 0,
                                      .sharesLinks = 1};
  return &table;
}
