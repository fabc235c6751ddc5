// Mapped links between processes of one machine, and between ranks of one process. See README.md.
//
// Thread safety: as the table demands: one device from one thread at a time, different devices concurrently. A link
// does not change once it is open, so any thread may read and write by it (sharesLinks).
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "../handover/party.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // of all machines; older C libraries do not name it
#endif

namespace kolo::shm {
namespace {

using namespace handover;

using Device = Party;

struct Memory {
  IdKey id;
};

// A process, held by a descriptor, which tells whether it still lives: no other one has its number as long as it does.
class Process {
 public:
  // The same for all links to it, so that these need no descriptors of their own. nullptr, and errno: the system gives
  // no descriptor of it.
  static std::shared_ptr<const Process> hold(pid_t pid) {
    Held& held = Process::held();
    const std::lock_guard lock(held.mutex);
    if (held.byPid.size() >=
        held.sweepAt) {  // seldom: a communicator of n ranks holds n processes, one after the other
      std::erase_if(held.byPid, [](const auto& each) { return each.second.expired(); });
      held.sweepAt = 2 * held.byPid.size() + kFewHeld;
    }
    if (auto known = held.byPid[pid].lock(); known != nullptr && known->lives()) return known;
    network::Socket file = open(pid);
    if (pid != getpid() && !file.valid()) return nullptr;
    auto made = std::make_shared<const Process>(pid, std::move(file));
    held.byPid[pid] = made;
    return made;
  }
  // Empty for this process itself.
  static network::Socket open(pid_t pid) {
    const std::unique_lock lock = network::lockDescriptors();
    return network::Socket(pid == getpid() ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  }
  Process(pid_t pid, network::Socket file) : pid_(pid), file_(std::move(file)) {}
  pid_t pid() const { return pid_; }
  bool lives() const {
    pollfd end{file_.fd(), POLLIN, 0};
    return !file_.valid() || poll(&end, 1, 0) == 0;
  }

 private:
  static constexpr std::size_t kFewHeld = 16;
  struct Held {
    std::mutex mutex;
    std::map<pid_t, std::weak_ptr<const Process>> byPid;
    std::size_t sweepAt = kFewHeld;  // processes: then those that nobody holds any more are forgotten
  };
  static Held& held() {
    static auto* const instance = new Held;  // links may be closed during exit
    return *instance;
  }

  const pid_t pid_;
  const network::Socket file_;  // none of this process itself
};

struct Link {
  Mapping mapping;                         // empty in the same process
  std::shared_ptr<const Process> process;  // null: it cannot be held
  int readErrno;                           // why its ordinary memory cannot be read; 0: it can
  int writeErrno;                          // why it cannot be written; 0: it can
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
  if (!isSealed(range.fd)) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "file descriptor %d is of a file that may shrink: expected F_SEAL_SHRINK", range.fd);
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

int openInProcess(const Descriptor& descriptor, const Why& why, void** mapped, std::uint64_t* bytes) {
  Exported memory;
  const int code = findHere(descriptor, why, &memory);
  if (code != KOLO_TRANSPORT_OK) return code;
  *mapped = memory.address;
  *bytes = memory.bytes;
  return code;
}

int openAcross(const Device& device, const Address& address, const Descriptor& descriptor, const Why& why,
               Mapping* mapping, pid_t* process) {
  int code = checkMachine(device, address, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  if (descriptor.hasFile == 0) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "ordinary memory of another process, %d, cannot be mapped; memory from koloMemAlloc can",
                    address.pid);
  }
  network::Socket file;
  code = fetch(device, address, descriptor, why, &file, process);
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
// The kernel reads by the number. A process that lives afterwards has had it all the time.
int readMemory(const Process& process, void* to, std::uint64_t from, std::uint64_t bytes) {
  const int failure = copyAcross(process_vm_readv, process.pid(), to, from, bytes);
  return failure == 0 && !process.lives() ? ESRCH : failure;
}
// It writes by the number, too: to the process, unless that ends just now and the number, after a round through all of
// them, is another's before the call. A rank that has been reported dead is not written to at all.
int writeMemory(const Process& process, std::uint64_t to, const void* from, std::uint64_t bytes) {
  return process.lives() ? copyAcross(process_vm_writev, process.pid(), from, to, bytes) : ESRCH;
}

// A policy may forbid reading (ptrace access): reading what the peer said stands there tells.
int tryReading(const Process& process, const Address& address) {
  Id found;
  const int failure = readMemory(process, found, address.processIdAt, sizeof found);
  if (failure != 0) return failure;
  return same(found, address.processId) ? 0 : ESRCH;
}

// The kernel asks for the same rights as for reading, so the peer is left alone: what else may forbid it forbids the
// call itself (seccomp).
int tryWriting(const Process& process) {
  const iovec nothing{nullptr, 0};
  return process_vm_writev(process.pid(), &nothing, 1, &nothing, 1, 0) == 0 ? 0 : errno;
}

int openLink(const Device& device, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory,
             void** linked, void** mapped, std::uint64_t* bytes, const Why& why) {
  Address address{};
  Descriptor descriptor{};
  int code = readPeer(device, *peerAddress, *peerMemory, why, &address, &descriptor);
  if (code == KOLO_TRANSPORT_OK) code = checkPair(address, descriptor, why);
  if (code != KOLO_TRANSPORT_OK) return code;
  auto link = std::make_unique<Link>();
  pid_t process = getpid();
  if (isInProcess(device, address)) {
    code = openInProcess(descriptor, why, mapped, bytes);
  } else {
    code = openAcross(device, address, descriptor, why, &link->mapping, &process);
    *mapped = link->mapping.first;
    *bytes = descriptor.bytes;  // as many as have been mapped
  }
  if (code != KOLO_TRANSPORT_OK) return code;
  link->process = process != 0 ? Process::hold(process) : nullptr;
  link->readErrno = link->process != nullptr ? tryReading(*link->process, address) : process == 0 ? ESRCH : errno;
  link->writeErrno = link->readErrno == 0 ? tryWriting(*link->process) : link->readErrno;
  *linked = link.release();
  return code;
}

int linkOpen(void* opened, const koloTransportBlob* peerAddress, const koloTransportBlob* peerMemory, void** linked,
             void** mapped, std::uint64_t* bytes, char* text, size_t textBytes) {
  const Why why{text, textBytes};
  return guard(why, [&] {
    return openLink(*static_cast<const Device*>(opened), peerAddress, peerMemory, linked, mapped, bytes, why);
  });
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

// Of memory that could not be reached from the beginning. call: with its preposition.
int failRefused(const Why& why, const char* call, int errnum) {
  return why.fail(
      KOLO_TRANSPORT_UNREACHABLE,
      "%s the peer's process: %s; it needs one process id namespace, the right to trace the peer (same user, "
      "kernel.yama.ptrace_scope 0), and pidfd_open (Linux 5.3, and no seccomp filter against it)",
      call, ErrorText(errnum).text);
}

int linkRead(void*, void* linked, void* to, std::uint64_t from, std::uint64_t bytes, char* text, size_t textBytes) {
  const Why why{text, textBytes};
  const Link& link = *static_cast<const Link*>(linked);
  if (link.readErrno != 0) return failRefused(why, "process_vm_readv from", link.readErrno);
  // In this process, too: a peer whose operation has failed may have given its buffer back, which must be an error here
  // and not a crash.
  const int failure = bytes != 0 ? readMemory(*link.process, to, from, bytes) : 0;
  if (failure == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "process_vm_readv of %llu bytes from process %d: %s%s",
                  static_cast<unsigned long long>(bytes), static_cast<int>(link.process->pid()),
                  ErrorText(failure).text, whyNoMore(failure));
}

int linkWrite(void*, void* linked, std::uint64_t to, const void* from, std::uint64_t bytes, char* text,
              size_t textBytes) {
  const Why why{text, textBytes};
  const Link& link = *static_cast<const Link*>(linked);
  if (link.writeErrno != 0) return failRefused(why, "process_vm_writev to", link.writeErrno);
  const int failure = writeMemory(*link.process, to, from, bytes);
  if (failure == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "process_vm_writev of %llu bytes to process %d: %s%s",
                  static_cast<unsigned long long>(bytes), static_cast<int>(link.process->pid()),
                  ErrorText(failure).text, whyNoMore(failure));
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
                                      .reserved = 0,
                                      .sharesLinks = 1};
  return &table;
}
