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
#include "base/settings.h"
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

Tag tagOfStandby(const std::string& name) { return tagOf(expand({}, "kolo standby: " + name)); }

Secret standbySecret(const Secret& jobKey, const std::string& name) {
  Secret secret = expand(jobKey, "kolo standby");
  const Tag tag = tagOfStandby(name);
  std::copy(tag.begin(), tag.end(), secret.begin());
  return secret;
}

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

Socket reach(const Neighbour& rank, int& errnum) {
  if (rank.isHere) return knock(rank.standby, errnum);
  const std::optional<Address> address = network::parseAddress(rank.address);
  errnum = EHOSTUNREACH;
  if (!address.has_value() || rank.port == 0) return {};
  Socket socket = network::socketForDial(address->isV6 ? AF_INET6 : AF_INET);
  errnum = socket.valid() ? 0 : errno;
  if (errnum != 0) return {};
  tune(socket.fd());
  errnum = network::startConnecting(socket, *address, rank.port);
  return errnum == 0 ? std::move(socket) : Socket();
}

std::chrono::milliseconds silence() {
  return std::max<std::chrono::milliseconds>(kLongestKnock,
                                             std::chrono::milliseconds(settings::integer("KOLO_SILENCE_MS")));
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
  KOLO_TRY(reactor_.add(talk_.fd(), shared_from_this()));
  reactor_.watch(talk_.fd(), true, true);  // writable as soon as it is connected
  return {};
}

void Knock::drop() {
  if (over_ == nullptr) return;
  reactor_.remove(talk_.fd());
  over_ = nullptr;
}

// Connected, or not; and then the hello, a few bytes into an empty buffer.
void Knock::onWritable() {
  if (over_ == nullptr || word_ != Word::kNone) return;
  const int errnum = network::connected(talk_.socket());
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  const bool isTcp =
      ::getsockname(talk_.fd(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0 && at.ss_family != AF_UNIX;
  bytes = sizeof at;
  const bool isThere = ::getpeername(talk_.fd(), reinterpret_cast<sockaddr*>(&at), &bytes) == 0;
  if (errnum == 0 && isTcp && !isThere && errno == ENOTCONN) return;  // not yet: events are hints
  // One that ends a connection which it has not taken is about to close.
  const bool isAnswer = errnum == 0 || errnum == ECONNRESET || !isTcp;
  word_ = isAnswer ? Word::kConnected : errnum == ECONNREFUSED ? Word::kClosed : Word::kSilent;
  if (errnum != 0 || !talk_.flush()) return end(false);
  reactor_.watch(talk_.fd(), true, false);
}

// What the standby's process answers. False: it is over.
bool Knock::hear(const std::string& bytes) {
  ServerHello theirs;
  if (!decode(bytes, theirs)) return false;
  if (theirs.protocol != kProtocol) {  // a process of another version has the port now
    word_ = Word::kClosed;
    return false;
  }
  word_ = theirs.reply == Reply::kOk ? Word::kHub : theirs.reply == Reply::kUnknownJob ? Word::kClosed : Word::kOpen;
  if (theirs.reply != Reply::kOk || isLook_) return false;
  session_.emplace(Session::Side::kClient, exchange_, theirs.share, hello_, bytes);
  const std::string proof = session_->prove();
  talk_.say(proof.data(), proof.size());
  return talk_.flush();
}

// False: it is over.
bool Knock::goesOn() {
  if (!session_.has_value()) {
    if (!talk_.hear(sizeof(ServerHello))) return talk_.failed() == 0;
    const std::string bytes(talk_.heardText());
    talk_.forget();
    if (!hear(bytes)) return false;
  }
  if (!talk_.hear(Session::kProofBytes)) return talk_.failed() == 0;
  end(session_->check(talk_.heardText()) == Reply::kOk);
  return true;
}

// Before it is connected there is nothing to read, or its end, which onWritable() is told of as well.
void Knock::onReadable() {
  if (word_ == Word::kNone) onWritable();
  if (over_ != nullptr && word_ != Word::kNone && !goesOn()) end(false);
}

void Knock::end(bool isProven) {
  if (over_ == nullptr) return;
  reactor_.remove(talk_.fd());
  const Over over = std::exchange(over_, nullptr);
  (void)insist([&] { over(isProven ? session_ : std::nullopt, talk_.takeSocket()); });
}

}  // namespace kolo::bootstrap
