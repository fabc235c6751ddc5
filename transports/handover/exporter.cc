#include "exporter.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/descriptor.h"

namespace kolo::handover {
namespace {

constexpr std::size_t kMostClients = 256;
// From connecting to having asked. An importer asks at once.
constexpr std::chrono::milliseconds kClientTime{2000};
// How long no client is accepted after the process ran out of file descriptors.
constexpr int kPauseMs = 20;
constexpr int kMostRefusedAtOnce = 16;

std::uint32_t userOf(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 ? who.uid : UINT32_MAX;
}

// An importer is told which limit was reached.
void tellOfLimit(int client, int errnum) {
  Hello hello{};
  setMagic(hello);
  hello.outOfFiles = errnum;
  hello.limit = fileLimit();
  (void)send(client, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

std::uint64_t fileLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

Exporter& Exporter::instance() {
  static auto* const exporter = new Exporter;
  return *exporter;
}

Exporter::Exporter() {
  // A fork while another thread is inside would copy a locked mutex and a half-made table to the child.
  const auto before = [] {
    instance().lifecycle_.lock();
    instance().state_.lock();
  };
  const auto inParent = [] {
    instance().state_.unlock();
    instance().lifecycle_.unlock();
  };
  const auto inChild = [] {
    Exporter& exporter = instance();
    exporter.closeSockets();
    exporter.memories_.clear();
    exporter.users_ = 0;
    exporter.state_.unlock();
    exporter.lifecycle_.unlock();
  };
  (void)pthread_atfork(before, inParent, inChild);
}

IdKey Exporter::add(const Exported& memory) {
  IdKey id;
  randombytes_buf(id.data(), id.size());
  const std::lock_guard lock(state_);
  memories_.emplace(id, memory);
  return id;
}

void Exporter::remove(const IdKey& id) {
  const std::lock_guard lock(state_);
  memories_.erase(id);
}

std::optional<Exported> Exporter::find(const IdKey& id) {
  const std::lock_guard lock(state_);
  const auto at = memories_.find(id);
  if (at == memories_.end()) return std::nullopt;
  return at->second;
}

int Exporter::acquire() {
  const std::lock_guard lock(lifecycle_);
  if (users_ == 0) {
    if (const int errnum = start(); errnum != 0) return errnum;
  }
  ++users_;
  return 0;
}

void Exporter::release() {
  const std::lock_guard lock(lifecycle_);
  // 0 in a child that was forked between acquire and release.
  if (users_ == 0 || --users_ > 0) return;
  const std::uint64_t one = 1;
  while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  pthread_join(thread_, nullptr);
  const std::lock_guard stateLock(state_);
  closeSockets();
}

void Exporter::copySocketName(char (&name)[kSocketNameBytes]) {
  const std::lock_guard lock(state_);
  std::memcpy(name, socketName_, sizeof name);
}

// REQUIRES: lifecycle_ held
int Exporter::start() {
  const std::lock_guard lock(state_);
  clients_.reserve(kMostClients);  // the thread has nobody to tell that memory is short
  int errnum = openSockets();
  if (errnum == 0) {
    // The application's signals are not for this thread.
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const auto body = [](void* self) -> void* {
      static_cast<Exporter*>(self)->serve();
      return nullptr;
    };
    errnum = pthread_create(&thread_, nullptr, body, this);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
  }
  if (errnum == 0) {
    (void)pthread_setname_np(thread_, "kolo-shm");
  } else {
    closeSockets();
  }
  return errnum;
}

// REQUIRES: state_ held
int Exporter::openSockets() {
  unsigned char random[16];
  char hex[2 * sizeof random + 1];
  randombytes_buf(random, sizeof random);
  sodium_bin2hex(hex, sizeof hex, random, sizeof random);
  std::snprintf(socketName_, sizeof socketName_, "kolo-shm-%s", hex);

  wake_ = clearOfStandard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_ < 0) return errno;
  spare_ = clearOfStandard(eventfd(0, EFD_CLOEXEC));  // if there is none, importers wait without being told why
  listener_ = clearOfStandard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener_ < 0) return errno;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = strlen(socketName_);
  std::memcpy(address.sun_path + 1, socketName_, length);  // the leading zero makes it abstract: no file is left behind
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return errno;
  return listen(listener_, SOMAXCONN) == 0 ? 0 : errno;
}

// REQUIRES: state_ held, thread not running
void Exporter::closeSockets() {
  for (const Client& client : clients_) close(client.fd);
  clients_.clear();
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
  if (spare_ >= 0) close(spare_);
  listener_ = wake_ = spare_ = -1;
  socketName_[0] = '\0';
}

void Exporter::serve() {
  std::vector<pollfd> polls;
  polls.reserve(2 + kMostClients);
  bool paused = false;  // out of file descriptors: polling the listener would spin
  for (;;) {
    {
      const std::lock_guard lock(state_);
      polls.assign({{wake_, POLLIN, 0}, {paused ? -1 : listener_, POLLIN, 0}});
      for (const Client& client : clients_) polls.push_back({client.fd, POLLIN, 0});
    }
    const int timeout = pollTimeout();
    if (poll(polls.data(), polls.size(), paused && (timeout < 0 || timeout > kPauseMs) ? kPauseMs : timeout) < 0) {
      continue;  // EINTR cannot be, signals are blocked; ENOMEM passes
    }
    if (polls[0].revents != 0) return;
    const std::lock_guard lock(state_);
    const Clock::time_point now = Clock::now();
    std::size_t at = 2;
    std::erase_if(clients_, [&](const Client& client) {
      const bool asked = polls[at++].revents != 0;
      if (asked) answer(client);
      const bool gone = asked || now >= client.deadline;
      if (gone) close(client.fd);
      return gone;
    });
    paused = !paused && polls[1].revents != 0 && !acceptClients();
  }
}

// Milliseconds until the first client's time is over; -1: no client. Called by the thread, which alone changes
// clients_.
int Exporter::pollTimeout() const {
  if (clients_.empty()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(clients_.front().deadline - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

// False if there are no file descriptors for more. REQUIRES: state_ held
bool Exporter::acceptClients() {
  for (std::size_t accepted = 0; accepted < kMostClients; ++accepted) {
    const int fd = clearOfStandard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd >= 0) {
      addClient(fd);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno == EMFILE || errno == ENFILE) {
      refuseForFiles(errno);
      return false;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return false;
    }
  }
  return true;
}

// By the descriptor that is kept for this. Another thread may take it meanwhile: then importers hear nothing until
// there is one again. REQUIRES: state_ held
void Exporter::refuseForFiles(int errnum) {
  for (int i = 0; i < kMostRefusedAtOnce && spare_ >= 0; ++i) {
    close(std::exchange(spare_, -1));
    const int client = clearOfStandard(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client >= 0) {
      tellOfLimit(client, errnum);
      close(client);
    }
    spare_ = clearOfStandard(eventfd(0, EFD_CLOEXEC));
    if (client < 0) break;
  }
  if (spare_ < 0) spare_ = clearOfStandard(eventfd(0, EFD_CLOEXEC));
}

// REQUIRES: state_ held
void Exporter::addClient(int fd) {
  Client client{fd, Clock::now() + kClientTime, {}};
  randombytes_buf(client.nonce, sizeof client.nonce);
  Hello hello{};
  setMagic(hello);
  std::memcpy(hello.serverNonce, client.nonce, sizeof hello.serverNonce);
  if (send(fd, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof hello) {
    close(fd);
    return;
  }
  if (clients_.size() >= kMostClients) {
    close(clients_.front().fd);
    clients_.erase(clients_.begin());
  }
  clients_.push_back(client);
}

// What is no request of the right size and kind gets no answer. REQUIRES: state_ held
void Exporter::answer(const Client& client) {
  Request request;
  // MSG_TRUNC: the length that was sent, so a longer message is not taken for a request. Files sent along are dropped
  // by the kernel, as no room is given for them.
  const ssize_t got = recv(client.fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
  if (got != sizeof request || !hasMagic(request)) return;
  IdKey id;
  std::copy(std::begin(request.memoryId), std::end(request.memoryId), id.begin());
  const auto at = memories_.find(id);
  if (at == memories_.end() || at->second.fd < 0) return sendReply(client, request, Answer::kUnknownMemory, nullptr);
  const bool fresh = sodium_memcmp(request.serverNonce, client.nonce, sizeof client.nonce) == 0;
  if (!fresh || !isProven(request, at->second.key)) return sendReply(client, request, Answer::kWrongProof, nullptr);
  sendReply(client, request, Answer::kGranted, &at->second);
}

// A reply that cannot be sent is dropped with the connection; the importer connects anew. REQUIRES: state_ held
void Exporter::sendReply(const Client& client, const Request& request, Answer answer, const Exported* memory) {
  Reply reply{};
  reply.answer = answer;
  reply.uidSeen = userOf(client.fd);
  std::memcpy(reply.clientNonce, request.clientNonce, sizeof reply.clientNonce);
  setMagic(reply);
  iovec part{&reply, sizeof reply};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  if (memory != nullptr) {
    prove(reply, memory->key);
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory->fd, sizeof(int));
  }
  (void)sendmsg(client.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace kolo::handover
