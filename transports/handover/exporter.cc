#include "exporter.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace kolo::handover {
namespace {

// From connecting to having asked. An importer asks at once.
constexpr std::chrono::milliseconds kClientTime{2000};

std::uint32_t userOf(int socket) {
  ucred who{};
  socklen_t bytes = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 ? who.uid : UINT32_MAX;
}

}  // namespace

// An importer's connection.
class Exporter::Client final : public network::Stranger {
 public:
  Client(Exporter& exporter, network::Socket socket) : exporter_(exporter), socket_(std::move(socket)) {
    randombytes_buf(nonce_, sizeof nonce_);
  }
  bool greet() const;
  int fd() const override { return socket_.fd(); }
  Outcome advance() override;

 private:
  void answer(const Request& request) const;
  void reply(const Request& request, Answer answer, const Exported* memory) const;

  Exporter& exporter_;
  network::Socket socket_;
  Nonce nonce_;
};

Exporter::Exporter() : Server("kolo-shm", kClientTime) {}

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

void Exporter::copySocketName(char (&name)[kSocketNameBytes]) {
  const std::lock_guard lock(state_);
  std::memcpy(name, socketName_, sizeof name);
}

int Exporter::listen(network::Socket& listener) {
  unsigned char random[16];
  char hex[2 * sizeof random + 1];
  randombytes_buf(random, sizeof random);
  sodium_bin2hex(hex, sizeof hex, random, sizeof random);
  std::snprintf(socketName_, sizeof socketName_, "kolo-shm-%s", hex);
  listener = network::Socket(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return errno;
  sockaddr_un address;
  const socklen_t bytes = network::fill(socketName_, address);
  if (bind(listener.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return errno;
  return ::listen(listener.fd(), SOMAXCONN) == 0 ? 0 : errno;
}

std::unique_ptr<network::Stranger> Exporter::welcome(network::Socket socket) {
  auto client = std::make_unique<Client>(*this, std::move(socket));
  if (!client->greet()) return nullptr;
  return client;
}

// An importer is told which limit was reached.
std::string Exporter::refusal(int errnum) {
  Hello hello{};
  setMagic(hello);
  hello.outOfFiles = errnum;
  hello.limit = network::fileLimit();
  return {reinterpret_cast<const char*>(&hello), sizeof hello};
}

bool Exporter::Client::greet() const {
  Hello hello{};
  setMagic(hello);
  std::memcpy(hello.serverNonce, nonce_, sizeof hello.serverNonce);
  return send(fd(), &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof hello;
}

// What is no request of the right size and kind gets no answer.
network::Stranger::Outcome Exporter::Client::advance() {
  Request request;
  // MSG_TRUNC: the length that was sent, so a longer message is not taken for a request. Files sent along are dropped
  // by the kernel, as no room is given for them.
  const ssize_t got = recv(fd(), &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Outcome::kGoesOn;
  if (got == sizeof request && hasMagic(request)) answer(request);
  return Outcome::kOver;
}

void Exporter::Client::answer(const Request& request) const {
  IdKey id;
  std::copy(std::begin(request.memoryId), std::end(request.memoryId), id.begin());
  const auto at = exporter_.memories_.find(id);
  if (at == exporter_.memories_.end() || at->second.fd < 0) return reply(request, Answer::kUnknownMemory, nullptr);
  const bool fresh = sodium_memcmp(request.serverNonce, nonce_, sizeof nonce_) == 0;
  if (!fresh || !isProven(request, at->second.key)) return reply(request, Answer::kWrongProof, nullptr);
  reply(request, Answer::kGranted, &at->second);
}

// A reply that cannot be sent is dropped with the connection; the importer connects anew.
void Exporter::Client::reply(const Request& request, Answer answer, const Exported* memory) const {
  Reply made{};
  made.answer = answer;
  made.uidSeen = userOf(fd());
  std::memcpy(made.clientNonce, request.clientNonce, sizeof made.clientNonce);
  setMagic(made);
  iovec part{&made, sizeof made};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  if (memory != nullptr) {
    prove(made, memory->key);
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory->fd, sizeof(int));
  }
  (void)sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace kolo::handover
