#include "bootstrap/greeting.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace kolo::bootstrap {
namespace {

// A few dozen bytes into an empty socket buffer: what does not fit at once never will.
bool reply(const Socket& socket, std::string_view bytes) {
  return ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

Greeting::Stage Greeting::advance(const Socket& socket) {
  while (stage_ < Stage::kProven) {
    // Never past the handshake: the bytes behind it belong to the session.
    const std::size_t expected = stage_ == Stage::kSilent ? ClientHello::kBytes : Session::kProofBytes;
    char buffer[128];
    const std::size_t most = std::min(sizeof buffer, expected - input_.size());
    const ssize_t got = ::recv(socket.fd(), buffer, most, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return stage_;
    if (got <= 0) return stage_ = Stage::kOver;
    input_.append(buffer, static_cast<std::size_t>(got));
    if (input_.size() < expected) continue;
    stage_ = stage_ == Stage::kSilent ? answerHello(socket) : answerProof(socket);
    input_.clear();
  }
  return stage_;
}

Greeting::Stage Greeting::answerHello(const Socket& socket) {
  ClientHello hello;
  if (!ClientHello::decode(input_, hello)) return Stage::kOver;
  tag_ = hello.tag;
  ServerHello answer;
  const Secret* const secret = find_(hello.tag);
  if (secret == nullptr) answer.reply = Reply::kUnknownJob;
  randombytes_buf(answer.nonce.data(), answer.nonce.size());
  const std::string bytes = answer.encode();
  // With another protocol nothing more can be said; the client finds both versions in the hellos.
  if (!reply(socket, bytes) || secret == nullptr || hello.protocol != kProtocol) return Stage::kOver;
  session_ = std::make_unique<Session>(Session::Side::kHub, *secret, input_, bytes);
  return Stage::kGreeted;
}

Greeting::Stage Greeting::answerProof(const Socket& socket) {
  if (session_->check(input_) != Reply::kOk) {
    (void)reply(socket, Session::refusal());
    return Stage::kOver;
  }
  return reply(socket, session_->prove()) ? Stage::kProven : Stage::kOver;
}

}  // namespace kolo::bootstrap
