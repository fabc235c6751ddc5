#include "bootstrap/dial.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

namespace kolo::bootstrap {
namespace {

constexpr auto kRefusedRetry = std::chrono::seconds(2);  // a hub of an ordinary id is up before the id exists
constexpr auto kFirstPause = std::chrono::milliseconds(2);
constexpr auto kLongestPause = std::chrono::milliseconds(100);
constexpr auto kShortestAttempt = std::chrono::seconds(1);

// Why one address did not do.
struct Attempt {
  Status status;
  bool mayComeUp = false;  // refused, or a hub that does not know the job yet
};

Status exchangeFailure(int errnum, const std::string& where) {
  if (errnum == 0) return error(koloUnreachable, "{} closed the connection during the handshake", where);
  return error(koloUnreachable, "{}: {} during the handshake", where, std::strerror(errnum));
}

// Waits for events; false at the deadline.
bool awaitSocket(int fd, short events, Clock::time_point deadline) {
  pollfd ready{fd, events, 0};
  int count = 0;
  do {
    count = ::poll(&ready, 1, millisecondsUntil(deadline));
  } while (count < 0 && errno == EINTR);
  return count > 0;
}

// errnum 0 with false: the other end closed.
bool sendAll(int fd, std::string_view bytes, Clock::time_point deadline, int& errnum) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR && errno != EAGAIN) {
      errnum = errno;
      return false;
    } else if (!awaitSocket(fd, POLLOUT, deadline)) {
      errnum = ETIMEDOUT;
      return false;
    }
  }
  return true;
}

bool receiveExactly(int fd, std::size_t bytes, std::string& to, Clock::time_point deadline, int& errnum) {
  to.clear();
  while (to.size() < bytes) {
    char buffer[256];
    const ssize_t got = ::recv(fd, buffer, std::min(sizeof buffer, bytes - to.size()), 0);
    if (got > 0) {
      to.append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0) {
      errnum = 0;
      return false;
    } else if (errno != EINTR && errno != EAGAIN) {
      errnum = errno;
      return false;
    } else if (!awaitSocket(fd, POLLIN, deadline)) {
      errnum = ETIMEDOUT;
      return false;
    }
  }
  return true;
}

// Hellos out and back. clientBytes and serverBytes are what stood on the wire.
Attempt greet(int fd, const IdContents& id, const std::string& where, Clock::time_point deadline,
              std::string& clientBytes, std::string& serverBytes) {
  ClientHello mine;
  mine.tag = tagOf(id.secret);
  randombytes_buf(mine.nonce.data(), mine.nonce.size());
  clientBytes = mine.encode();
  int errnum = 0;
  if (!sendAll(fd, clientBytes, deadline, errnum) ||
      !receiveExactly(fd, ServerHello::kBytes, serverBytes, deadline, errnum)) {
    return {exchangeFailure(errnum, where), errnum == 0 || errnum == ECONNRESET};
  }
  ServerHello theirs;
  if (!ServerHello::decode(serverBytes, theirs)) {
    return {error(koloUnreachable, "{} is not Kolo: something else listens there", where), false};
  }
  if (theirs.protocol != kProtocol) {
    return {
        error(koloMismatch, "{} runs Kolo {} (control protocol {}), this process runs Kolo {} (control protocol {})",
              where, describeVersion(theirs.version), theirs.protocol, describeVersion(KOLO_VERSION_CODE), kProtocol),
        false};
  }
  if (theirs.reply != Reply::kOk) {
    return {error(koloUnreachable, "{} does not know this job: {}", where,
                  id.explicitRoot ? "it is over or has not begun, or KOLO_SECRET or the job's name differ"
                                  : "its ranks have all left, or its time to join is over"),
            id.explicitRoot};
  }
  return {};
}

Attempt tryAddress(const IdContents& id, const Address& address, Clock::time_point deadline,
                   std::optional<Dialled>& dialled) {
  const std::string where = address.text(id.port);
  int errnum = 0;
  Socket socket = connectTo(address, id.port, deadline, errnum);
  if (errnum == EMFILE || errnum == ENFILE)
    return {systemError(errnum, "making a control socket"), false};
  if (errnum != 0) return {error(koloUnreachable, "{}: {}", where, std::strerror(errnum)), errnum == ECONNREFUSED};
  std::string clientBytes;
  std::string serverBytes;
  if (Attempt failed = greet(socket.fd(), id, where, deadline, clientBytes, serverBytes); !failed.status.ok()) {
    return failed;
  }
  Session session(Session::Side::kClient, id.secret, clientBytes, serverBytes);
  std::string proof;
  if (!sendAll(socket.fd(), session.prove(), deadline, errnum) ||
      !receiveExactly(socket.fd(), Session::kProofBytes, proof, deadline, errnum)) {
    return {exchangeFailure(errnum, where), errnum == 0 || errnum == ECONNRESET};
  }
  if (session.check(proof) != Reply::kOk) {
    return {error(koloUnreachable, "{} does not hold this job's secret", where), false};
  }
  dialled.emplace(Dialled{std::move(socket), session});
  return {};
}

std::vector<Address> addressesToTry(const IdContents& id) {
  std::vector<Address> result;
  if (id.host == hostIdentity() && !id.boundToOne) result.push_back(Address::loopback());
  result.insert(result.end(), id.addresses.begin(), id.addresses.end());
  return result;
}

}  // namespace

Result<Dialled> dial(const IdContents& id, Clock::time_point deadline) {
  const std::vector<Address> addresses = addressesToTry(id);
  if (addresses.empty()) {
    return error(koloUnreachable, "the unique id was made on another host, which has no address to be reached at");
  }
  const Clock::time_point retryUntil = id.explicitRoot ? deadline : std::min(deadline, Clock::now() + kRefusedRetry);
  for (Clock::duration pause = kFirstPause;; pause = std::min<Clock::duration>(pause * 2, kLongestPause)) {
    std::string reasons;
    koloResult_t code = koloUnreachable;
    bool mayComeUp = false;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const auto share =
          std::max<Clock::duration>((deadline - Clock::now()) / (addresses.size() - i), kShortestAttempt);
      std::optional<Dialled> dialled;
      const Attempt attempt = tryAddress(id, addresses[i], std::min(deadline, Clock::now() + share), dialled);
      if (dialled.has_value()) return std::move(*dialled);
      if (attempt.status.code() != koloUnreachable) code = attempt.status.code();
      mayComeUp = mayComeUp || attempt.mayComeUp;
      reasons += (reasons.empty() ? "" : "; ") + attempt.status.message();
    }
    const Clock::time_point next = Clock::now() + pause;
    if (code != koloUnreachable || !mayComeUp || next >= retryUntil) {
      return error(code, "the job's hub cannot be reached: {}", reasons);
    }
    std::this_thread::sleep_until(next);
  }
}

bool answers(const IdContents& id, Clock::time_point deadline) {
  for (const Address& address : addressesToTry(id)) {
    int errnum = 0;
    const Socket socket = connectTo(address, id.port, deadline, errnum);
    if (errnum != 0) continue;
    std::string clientBytes;
    std::string serverBytes;
    if (greet(socket.fd(), id, address.text(), deadline, clientBytes, serverBytes).status.ok()) return true;
  }
  return false;
}

}  // namespace kolo::bootstrap
