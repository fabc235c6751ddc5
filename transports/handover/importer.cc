#include "importer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace kolo::handover {
namespace {

using network::Clock;
using network::Socket;
constexpr std::chrono::milliseconds kRetry{1};
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::chrono::milliseconds kRetryForFiles{20};
// Outcomes of one try, beside the codes of a transport.
constexpr int kAgain = -1;       // the exporter was too busy: try again
constexpr int kOutOfFiles = -2;  // the exporter has no descriptor for this connection: it may have one later
constexpr int kSilent = -3;      // the time is over

int explainRefused(const Address& address, const Descriptor& descriptor, int errnum, const Why& why) {
  const std::uint64_t own = networkNamespace();
  const ErrorText reason(errnum);
  if (own != 0 && address.networkNamespace != 0 && own != address.networkNamespace) {
    return why.fail(
        KOLO_TRANSPORT_UNREACHABLE,
        "connecting to the peer's socket @%s: %s; process %d is in another network namespace (%llu, here %llu), "
        "where abstract sockets do not reach: to share memory, run both containers with one network namespace",
        descriptor.socketName, reason.text, address.pid, static_cast<unsigned long long>(address.networkNamespace),
        static_cast<unsigned long long>(own));
  }
  return why.fail(own == 0 || address.networkNamespace == 0 ? KOLO_TRANSPORT_UNREACHABLE : KOLO_TRANSPORT_ERROR,
                  "connecting to the peer's socket @%s: %s; process %d has ended, or has closed its communicators",
                  descriptor.socketName, reason.text, address.pid);
}

int connectOnce(int socket, const Address& address, const Descriptor& descriptor, const Why& why) {
  sockaddr_un to;
  const std::size_t length = strnlen(descriptor.socketName, sizeof descriptor.socketName);
  const socklen_t bytes = network::fill({descriptor.socketName, length}, to);
  if (connect(socket, reinterpret_cast<const sockaddr*>(&to), bytes) == 0) return KOLO_TRANSPORT_OK;
  const int errnum = errno;
  if (errnum == EAGAIN || errnum == EINTR) return kAgain;  // its queue of connections is full
  if (errnum == ECONNREFUSED) return explainRefused(address, descriptor, errnum, why);
  const ErrorText reason(errnum);
  if (errnum == EPERM || errnum == EACCES) {
    return why.fail(
        KOLO_TRANSPORT_UNREACHABLE,
        "connecting to the socket @%s of process %d, user %u: %s; this process runs as user %u, and a security "
        "policy (Landlock, AppArmor, SELinux, seccomp) forbids it: allow abstract unix sockets between both",
        descriptor.socketName, address.pid, address.uid, reason.text, static_cast<unsigned>(geteuid()));
  }
  return why.fail(KOLO_TRANSPORT_ERROR, "connecting to the socket @%s of process %d: %s", descriptor.socketName,
                  address.pid, reason.text);
}

// Whether the exporter says that it has no descriptor, and so closes the connection; *told is then what it says.
bool isRefusal(const void* message, ssize_t bytes, Hello* told) {
  Hello hello;
  if (bytes != sizeof hello) return false;
  std::memcpy(&hello, message, sizeof hello);
  if (!hasMagic(hello) || hello.outOfFiles == 0) return false;
  *told = hello;
  return true;
}

// Takes the message and the first file that came with it; *first is empty if none. kAgain: it is no reply; kOutOfFiles:
// another connection needed the descriptor of this one (*told).
int receiveReply(int socket, Reply* reply, Socket* first, bool* filesLost, Hello* told) {
  unsigned char said[std::max(sizeof(Reply), sizeof(Hello))];
  iovec part{said, sizeof said};
  alignas(cmsghdr) char room[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  *first = Socket();
  const std::unique_lock lock = network::lockDescriptors();
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  if (got < 0) return kAgain;
  if (isRefusal(said, got, told)) return kOutOfFiles;
  *filesLost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(header) + i * sizeof(int), sizeof file);
      Socket taken(file);
      if (!first->valid()) *first = std::move(taken);
    }
  }
  if (got != sizeof *reply) return kAgain;
  std::memcpy(reply, said, sizeof *reply);
  return hasMagic(*reply) ? KOLO_TRANSPORT_OK : kAgain;
}

int judge(const Reply& reply, const Request& request, const Address& address, const Key& key, bool hasFile,
          bool filesLost, const Why& why) {
  if (std::memcmp(reply.clientNonce, request.clientNonce, sizeof reply.clientNonce) != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "what listens at the peer's socket is not process %d", address.pid);
  }
  switch (reply.answer) {
    case Answer::kUnknownMemory:
      return why.fail(KOLO_TRANSPORT_ERROR, "process %d has deregistered this memory", address.pid);
    case Answer::kWrongProof:
      return why.fail(
          KOLO_TRANSPORT_ERROR,
          "process %d of user %u refused: the request did not prove that it comes from its communicator (it saw "
          "user %u)",
          address.pid, address.uid, reply.uidSeen);
    case Answer::kGranted: break;
  }
  if (!isProven(reply, key)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "what listens at the peer's socket is not process %d of this communicator",
                    address.pid);
  }
  if (hasFile) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "the file of process %d did not arrive%s%s", address.pid, filesLost ? ": " : "",
                  filesLost ? ErrorText(EMFILE).text : "");
}

// One connection. kAgain: the exporter closed it, for it serves a bounded number at a time. told: what the exporter
// said last of descriptors.
int askOnce(const Address& address, const Descriptor& descriptor, const Key& key, Deadline deadline, const Why& why,
            Hello* told, Socket* file, pid_t* process) {
  const Socket socket = network::socketForDial(AF_UNIX, SOCK_SEQPACKET);
  if (!socket.valid()) return why.fail(KOLO_TRANSPORT_ERROR, "opening a unix socket: %s", ErrorText(errno).text);
  if (const int code = connectOnce(socket.fd(), address, descriptor, why); code != KOLO_TRANSPORT_OK) return code;

  Hello hello;
  if (!network::await(socket.fd(), POLLIN, deadline)) return kSilent;
  if (recv(socket.fd(), &hello, sizeof hello, MSG_DONTWAIT | MSG_TRUNC) != sizeof hello || !hasMagic(hello))
    return kAgain;
  if (isRefusal(&hello, sizeof hello, told)) return kOutOfFiles;

  Request request{};
  std::memcpy(request.serverNonce, hello.serverNonce, sizeof request.serverNonce);
  std::memcpy(request.memoryId, descriptor.memoryId, sizeof request.memoryId);
  randombytes_buf(request.clientNonce, sizeof request.clientNonce);
  prove(request, key);
  (void)send(socket.fd(), &request, sizeof request, MSG_NOSIGNAL);  // what a closed connection says is read below

  if (!network::await(socket.fd(), POLLIN, deadline)) return kSilent;
  Reply reply;
  bool filesLost = false;
  if (const int code = receiveReply(socket.fd(), &reply, file, &filesLost, told); code != KOLO_TRANSPORT_OK)
    return code;
  ucred who{};
  socklen_t bytes = sizeof who;
  *process = getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 ? who.pid : 0;
  return judge(reply, request, address, key, file->valid(), filesLost, why);
}

// After the deadline.
int explainVainWait(int outcome, const Address& address, const Descriptor& descriptor, const Hello& told,
                    const Why& why) {
  if (told.outOfFiles != 0) return failForFiles(told.outOfFiles, told.limit, address.pid, why);
  if (outcome == kSilent) {
    return why.fail(KOLO_TRANSPORT_ERROR, "process %d does not answer at its socket @%s; is it stopped?", address.pid,
                    descriptor.socketName);
  }
  return why.fail(KOLO_TRANSPORT_ERROR, "process %d kept closing connections to its socket @%s until the deadline",
                  address.pid, descriptor.socketName);
}

}  // namespace

std::uint64_t networkNamespace() {
  struct stat info {};
  return stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

int failForFiles(int errnum, std::uint64_t limit, int process, const Why& why) {
  if (errnum != EMFILE) {
    return why.fail(KOLO_TRANSPORT_ERROR, "process %d cannot hand its memory over: %s", process,
                    ErrorText(errnum).text);
  }
  return why.fail(KOLO_TRANSPORT_ERROR,
                  "process %d is at its limit of %llu open files (RLIMIT_NOFILE), so it cannot hand its memory over; "
                  "raise it there "
                  "(ulimit -n, LimitNOFILE)",
                  process, static_cast<unsigned long long>(limit));
}

int fetchFile(const Address& address, const Descriptor& descriptor, const Key& key, Deadline deadline, const Why& why,
              Socket* file, pid_t* process) {
  for (Hello told{};;) {
    const int code = askOnce(address, descriptor, key, deadline, why, &told, file, process);
    if (code != kAgain && code != kOutOfFiles && code != kSilent) return code;
    if (code == kSilent || Clock::now() >= deadline) return explainVainWait(code, address, descriptor, told, why);
    std::this_thread::sleep_for(code == kOutOfFiles ? kRetryForFiles : kRetry);
  }
}

bool isSealed(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

int mapRange(int fd, std::uint64_t offset, std::uint64_t bytes, const Why& why, Mapping* mapping) {
  struct stat info {};
  if (!isSealed(fd))  // before its size is asked for
    return why.fail(KOLO_TRANSPORT_ERROR, "the peer's file may shrink, expected one that is sealed (F_SEAL_SHRINK)");
  if (fstat(fd, &info) != 0)
    return why.fail(KOLO_TRANSPORT_ERROR, "fstat of the peer's file: %s", ErrorText(errno).text);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (bytes == 0 || offset > size || bytes > size - offset) {  // touching pages past the end would be SIGBUS
    return why.fail(KOLO_TRANSPORT_ERROR, "the peer's file has %llu bytes, expected at least %llu from offset %llu on",
                    static_cast<unsigned long long>(size), static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(offset));
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t below = offset / page * page;
  const std::size_t length = bytes + (offset - below);
  void* const base = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(below));
  if (base == MAP_FAILED) {
    return why.fail(KOLO_TRANSPORT_ERROR, "mapping %zu bytes of the peer's memory: %s", length, ErrorText(errno).text);
  }
  // Only a hint: systems that give shared memory no huge pages refuse it, and nothing changes.
  if (length >= kHugePage) (void)madvise(base, length, MADV_HUGEPAGE);
  // A core dump has what is the process's own. To write that of the peer, much of which nobody may have touched yet,
  // the kernel would take memory for all of it.
  (void)madvise(base, length, MADV_DONTDUMP);
  *mapping = {base, length, static_cast<unsigned char*>(base) + (offset - below)};
  return KOLO_TRANSPORT_OK;
}

void unmap(const Mapping& mapping) {
  if (mapping.base != nullptr) munmap(mapping.base, mapping.length);
}

}  // namespace kolo::handover
