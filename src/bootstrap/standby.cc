#include "bootstrap/standby.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/insist.h"
#include "bootstrap/process_info.h"

namespace kolo::bootstrap {
namespace {

constexpr std::string_view kFirstOfNames = "kolo-";

// How the names begin by which a process listens.
std::string nameOf(pid_t pid, uid_t user) { return fmt::format("{}{}-{}-", kFirstOfNames, pid, user); }

// The process that listened by the name, and whether it has ended.
pid_t ownerOf(const std::string& name) {
  return static_cast<pid_t>(std::strtol(name.c_str() + std::min(name.size(), kFirstOfNames.size()), nullptr, 10));
}
bool isOwnerOver(const std::string& name) { return ::kill(ownerOf(name), 0) != 0 && errno == ESRCH; }

}  // namespace

Secret standbySecret(const Secret& jobKey) { return expand(jobKey, "kolo standby"); }

Socket listenByName(std::string& name) {
  std::array<unsigned char, 16> drawn;
  std::array<char, 2 * drawn.size() + 1> text;
  randombytes_buf(drawn.data(), drawn.size());
  name = nameOf(::getpid(), ::geteuid()) + sodium_bin2hex(text.data(), text.size(), drawn.data(), drawn.size());
  sockaddr_un address;
  const socklen_t bytes = network::fill(name, address);
  Socket socket = network::socketForDial(AF_UNIX);
  if (!socket.valid() || ::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    return {};
  }
  return socket;
}

// Abstract names are public (/proc/net/unix), and whoever comes first may have one that is free. The kernel says who
// listens; of one who takes no connection it does not. Where a rank has left and its process lives on, one who takes
// none is not known from it: then those that knock give up when their time is over.
Socket knock(const std::string& name, int& errnum) {
  sockaddr_un address;
  const socklen_t bytes = network::fill(name, address);
  Socket socket = network::socketForDial(AF_UNIX);
  errnum = socket.valid() ? 0 : errno;
  if (errnum == 0 && ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) errnum = errno;
  if (errnum == 0) {
    const ucred listener = processAt(socket.fd());
    // The kernel of a sandbox (gVisor) answers with the process that asks. Who listens is not known then.
    const bool isKnown = listener.uid != UINT32_MAX && (listener.pid != ::getpid() || ownerOf(name) == listener.pid);
    if (isKnown && !name.starts_with(nameOf(listener.pid, listener.uid))) errnum = ECONNREFUSED;
  }
  if ((errnum == 0 || errnum == EAGAIN) && isOwnerOver(name)) errnum = ECONNREFUSED;
  return errnum == 0 ? std::move(socket) : Socket();
}

bool isGone(const Neighbour& rank) {
  int errnum = 0;
  (void)knock(rank.standby, errnum);
  return errnum == ECONNREFUSED;
}

Status Knock::start() {
  ClientHello hello;
  hello.tag = tagOf(secret_);
  hello.share = exchange_.share();
  hello_ = encode(hello);
  talk_.say(hello_.data(), hello_.size());
  (void)talk_.flush();  // a few bytes into an empty buffer
  return reactor_.add(talk_.fd(), shared_from_this());
}

void Knock::drop() {
  if (over_ == nullptr) return;
  reactor_.remove(talk_.fd());
  over_ = nullptr;
}

// False: it is over.
bool Knock::goesOn() {
  if (!session_.has_value()) {
    if (!talk_.hear(sizeof(ServerHello))) return talk_.failed() == 0;
    const std::string bytes(talk_.heardText());
    talk_.forget();
    isAnswered_ = true;
    ServerHello theirs;
    if (!decode(bytes, theirs) || theirs.protocol != kProtocol || theirs.reply != Reply::kOk) return false;
    session_.emplace(Session::Side::kClient, exchange_, theirs.share, hello_, bytes);
    const std::string proof = session_->prove();
    talk_.say(proof.data(), proof.size());
    if (!talk_.flush()) return false;
  }
  if (!talk_.hear(Session::kProofBytes)) return talk_.failed() == 0;
  end(session_->check(talk_.heardText()) == Reply::kOk);
  return true;
}

void Knock::onReadable() {
  if (over_ != nullptr && !goesOn()) end(false);
}

void Knock::end(bool isProven) {
  if (over_ == nullptr) return;
  reactor_.remove(talk_.fd());
  const Over over = std::exchange(over_, nullptr);
  (void)insist([&] { over(isProven ? session_ : std::nullopt, talk_.takeSocket()); });
}

}  // namespace kolo::bootstrap
