#include "attempt.h"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cerrno>

namespace kolo::connect {

Attempt::Attempt(const Party& self, const Address& peer, const Place& to, const Id& set, std::size_t rail,
                 std::size_t rails)
    : exchange_(self.key.bytes), place_(to) {
  setMagic(hello_);
  hello_.version = kVersion;
  hello_.rail = static_cast<std::uint16_t>(rail);
  hello_.rails = static_cast<std::uint16_t>(rails);
  hello_.cipher = cipherBetween(self.address, peer);
  hello_.fromRank = self.address.rank;
  hello_.toRank = peer.rank;
  std::memcpy(hello_.from, self.address.device, sizeof hello_.from);
  std::memcpy(hello_.to, peer.device, sizeof hello_.to);
  std::memcpy(hello_.set, set, sizeof hello_.set);
  hello_.share = exchange_.share();
  startConnecting(to, peer.port);
}

void Attempt::startConnecting(const Place& to, std::uint16_t port) {
  Socket socket = network::socketForDial(to.isV6 ? AF_INET6 : AF_INET);
  if (!socket.valid()) {
    ownErrno_ = network::isOutOfFiles(errno) ? errno : 0;
    fail(ErrorText(errno).text);
    return;
  }
  const int yes = 1;
  (void)setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  talk_ = Talk(std::move(socket));
  const int errnum = network::startConnecting(talk_.socket(), to, port);
  if (errnum != 0) failToConnect(errnum);
}

short Attempt::awaits() const { return stage_ == Stage::kConnecting ? short{POLLOUT} : talk_.awaits(); }

// Each stage returns whether the next one may begin.
void Attempt::advance() {
  for (bool goesOn = true; goesOn && stage_ != Stage::kFailed;) {
    if (stage_ != Stage::kConnecting && !talk_.flush()) {
      goesOn = failByTalk();
      continue;
    }
    switch (stage_) {
      case Stage::kConnecting: goesOn = finishConnecting(); break;
      case Stage::kChallenge: goesOn = hearChallenge() || failByTalk(); break;
      case Stage::kReply: goesOn = hearReply() || failByTalk(); break;
      case Stage::kFilling: goesOn = hearFilling() || failByTalk(); break;
      case Stage::kVerdict: goesOn = hearVerdict() || failByTalk(); break;
      case Stage::kProven:
      case Stage::kDecided:
      case Stage::kFailed: goesOn = false;
    }
  }
}

bool Attempt::fail(std::string story) {
  stage_ = Stage::kFailed;
  story_ = std::move(story);
  return false;
}

bool Attempt::failToConnect(int errnum) {
  isSilent_ = errnum == ETIMEDOUT || errnum == EHOSTUNREACH;
  return fail(ErrorText(errnum).text);
}

// A listener that closes before the end was too busy.
bool Attempt::failByTalk() {
  if (stage_ == Stage::kFailed || talk_.failed() == 0) return false;
  isWorthRepeating_ = stage_ < Stage::kProven;
  const bool isClosed = talk_.failed() == Talk::kEnded || talk_.failed() == ECONNRESET || talk_.failed() == EPIPE;
  return fail(isClosed ? "connected, then closed by who listens there"
                       : fmt::format("connected, then {}", ErrorText(talk_.failed()).text));
}

bool Attempt::finishConnecting() {
  pollfd one{fd(), POLLOUT, 0};
  if (poll(&one, 1, 0) <= 0) return false;
  if (const int errnum = network::connected(talk_.socket()); errnum != 0) return failToConnect(errnum);
  talk_.say(hello_);
  stage_ = Stage::kChallenge;
  return true;
}

bool Attempt::hearChallenge() {
  if (!talk_.hear(kVersionedHead)) return false;
  Challenge challenge{};
  std::memcpy(&challenge, talk_.heard(), kVersionedHead);
  if (!hasMagic(challenge)) return fail("what listens there is not Kolo");
  if (challenge.version != kVersion) {
    return fail(fmt::format("speaks version {} of this transport's protocol, this one version {}", challenge.version,
                            kVersion));
  }
  if (!talk_.hear(sizeof challenge)) return false;
  talk_.copyHeard(&challenge);
  talk_.forget();
  return judge(challenge);
}

bool Attempt::judge(const Challenge& challenge) {
  switch (challenge.status) {
    case Status::kGoOn: break;
    case Status::kUnknown:
      return fail("another process of Kolo listens there, or the peer has closed its communicator");
    case Status::kOutOfFiles:
      isWorthRepeating_ = true;
      return fail(fmt::format("the peer's process is at its limit of {} open files; raise it (ulimit -n, LimitNOFILE)",
                              challenge.detail));
    default: return fail("an answer that means nothing");
  }
  key_ = connectionKey(exchange_, challenge.share, hello_, challenge);
  std::vector<unsigned char> filling(hello_.rail == 0 ? fillingBytes(talk_.fd()) : 0);
  makeFilling(key_, true, &filling);
  Claim claim{};
  claim.filling = filling.size();
  prove(claim, key_);
  talk_.say(claim);
  talk_.say(filling.data(), filling.size());
  stage_ = Stage::kReply;
  return true;
}

bool Attempt::hearReply() {
  Reply reply;
  if (!talk_.hear(sizeof reply)) return false;
  talk_.copyHeard(&reply);
  talk_.forget();
  if (!isProven(reply, key_) || reply.filling > kMostFilling)
    return fail("what listens there is not of this communicator");
  filling_ = reply.filling;
  stage_ = Stage::kFilling;
  return true;
}

bool Attempt::hearFilling() {
  if (!talk_.hear(filling_)) return false;
  std::vector<unsigned char> expected(filling_);
  makeFilling(key_, false, &expected);
  if (filling_ != 0 && std::memcmp(expected.data(), talk_.heard(), expected.size()) != 0) {
    return fail("bytes were altered on the way");
  }
  talk_.forget();
  stage_ = Stage::kProven;
  return true;
}

void Attempt::commit() {
  Commit commit{};
  prove(commit, key_);
  talk_.say(commit);
  stage_ = Stage::kVerdict;
}

bool Attempt::hearVerdict() {
  Verdict verdict;
  if (!talk_.hear(sizeof verdict)) return false;
  talk_.copyHeard(&verdict);
  if (!isProven(verdict, key_)) return fail("what listens there is not of this communicator");
  decision_ = verdict.decision;
  stage_ = Stage::kDecided;
  return true;
}

std::string Attempt::story() const {
  const std::string where = place_.text();
  switch (stage_) {
    case Stage::kFailed: return fmt::format("{}: {}", where, story_);
    case Stage::kConnecting: return where + ": no answer";
    case Stage::kChallenge: return where + ": connected, but who listens there says nothing (is the process stopped?)";
    case Stage::kReply:
    case Stage::kFilling:
      return where + ": connected, but larger packets do not pass (is the packet size, MTU, the same all the way?)";
    default: return where + ": not committed in time";
  }
}

}  // namespace kolo::connect
