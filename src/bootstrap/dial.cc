#include "bootstrap/dial.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "base/log.h"
#include "bootstrap/listener.h"
#include "network/talk.h"

namespace kolo::bootstrap {
namespace {

using network::Talk;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kRefusedRetry = seconds(2);  // a hub of an ordinary id is up before the id exists
constexpr auto kSilentFor = seconds(1);     // then the user is told what a rank waits for
constexpr auto kFirstPause = milliseconds(2);
constexpr auto kLongestPause = milliseconds(100);
constexpr auto kShortestAttempt = seconds(1);
// The kernel sends a lost packet again after one second and after three. A host that has not answered by then may not
// be there yet, and the name may mean another host by now. At first it is given up sooner, for another address may do.
constexpr auto kFirstConnect = milliseconds(250);
constexpr auto kLongestConnect = seconds(4);
// Of a hub that is busy with very many ranks. A host that was there before may accept connections and say nothing.
constexpr auto kLongestHandshake = seconds(15);
constexpr auto kLookUpAgain = seconds(1);
constexpr auto kLongestLookUp = seconds(5);
constexpr std::size_t kMostQuoted = 48;  // bytes of a foreign service's answer that a message shows

// What may come of an address that did not do.
enum class Hope : std::uint8_t {
  kNone,     // an answer that will not change
  kRefused,  // no socket listens there: the hub has not begun, or is over
  kLater,    // a host, a network or a hub that may come up
};

// Why one address did not do.
struct Attempt {
  Status status;
  Hope hope = Hope::kNone;
  bool isSilent = false;     // a host did not answer, or said that it may not be reached
  bool isForbidden = false;  // to this process, by its own system
  bool isAnswer = false;     // something listens there, and has answered
  bool isHostThere = false;  // something listens there, or nothing, as its host says
};

// By a filter of this process's own, or of this host's.
bool isRefusal(int errnum) { return errnum == EACCES || errnum == EPERM; }

// Something listens there, and has answered.
Attempt answered(Status status, Hope hope) { return {std::move(status), hope, false, false, true, true}; }

Attempt exchangeFailure(int errnum, const std::string& where) {
  // A reset, or a broken pipe, is how a closed connection shows where bytes of this process were unread.
  if (errnum == Talk::kEnded || errnum == ECONNRESET || errnum == EPIPE)
    return {error(koloUnreachable, "{} closed the connection during the handshake", where), Hope::kLater};
  if (errnum == ETIMEDOUT) {
    return {
        error(koloUnreachable,
              "{}: connected, but the process that listens there has said nothing (it is not Kolo, or it is stopped "
              "or very busy)",
              where),
        Hope::kLater};
  }
  return {error(koloUnreachable, "{}: {} during the handshake", where, std::strerror(errnum)),
          isRefusal(errnum) ? Hope::kNone : Hope::kLater, false, isRefusal(errnum)};
}

// The answer of a listener that does not speak this protocol, fit for a message.
std::string quote(std::string_view answer) {
  std::string text;
  for (const char byte : answer.substr(0, kMostQuoted)) text += byte >= ' ' && byte <= '~' ? byte : '.';
  return fmt::format("\"{}{}\"", text, answer.size() > kMostQuoted ? "..." : "");
}

// A foreign service at an address that the user named may end, and rank 0 listen there after it.
Attempt foreignAnswer(const IdContents& id, const std::string& where, const std::string& answer) {
  return answered(
      error(koloUnreachable, "{} is not Kolo: something else listens there, and answered {}", where, quote(answer)),
      id.explicitRoot ? Hope::kLater : Hope::kNone);
}

// Hears the hub's hello; false: it is not whole. Ends as soon as the bytes are no hello's: a foreign service may wait
// for an answer to a greeting of its own, which is shorter.
bool hearHello(Talk& talk, Clock::time_point deadline) {
  if (!talk.hearBy(ServerHello::kMagic.size(), deadline)) return false;
  if (beginsAs<ServerHello>(talk.heardText())) return talk.hearBy(sizeof(ServerHello), deadline);
  (void)talk.hear(ServerHello::kMagic.size() + kMostQuoted);  // as far as it is there already
  return true;
}

bool sayBy(Talk& talk, std::string_view bytes, Clock::time_point deadline) {
  talk.say(bytes.data(), bytes.size());
  return talk.flushBy(deadline);
}

// Hellos out and back, and the session that they make.
Attempt greet(Talk& talk, const IdContents& id, const std::string& where, Clock::time_point deadline,
              std::optional<Session>& session) {
  const KeyExchange exchange(id.secret);
  ClientHello mine;
  mine.tag = tagOf(id.secret);
  mine.share = exchange.share();
  const std::string clientBytes = encode(mine);
  const bool isWhole = sayBy(talk, clientBytes, deadline) && hearHello(talk, deadline);
  const std::string serverBytes(talk.heardText());
  talk.forget();
  if (!beginsAs<ServerHello>(serverBytes)) return foreignAnswer(id, where, serverBytes);
  if (!isWhole) return exchangeFailure(talk.failed(), where);
  ServerHello theirs;
  if (!decode(serverBytes, theirs)) return foreignAnswer(id, where, serverBytes);
  if (theirs.protocol != kProtocol) {
    return {error(koloMismatch,
                  "{} runs Kolo {} (control protocol {}), this process runs Kolo {} (control protocol {})", where,
                  describeVersion(theirs.version), +theirs.protocol, describeVersion(KOLO_VERSION_CODE), kProtocol)};
  }
  if (theirs.reply == Reply::kOutOfFiles) {
    return answered(
        error(koloUnreachable,
              "{}: the process there has run out of file descriptors (RLIMIT_NOFILE), so it takes no rank; raise the "
              "limit there (ulimit -n, LimitNOFILE)",
              where),
        Hope::kLater);
  }
  if (theirs.reply != Reply::kOk) {
    return answered(error(koloUnreachable, "{} does not know this job: {}", where,
                          id.explicitRoot ? "it ends, is over or has not begun, or KOLO_SECRET or the job's name differ"
                                          : "its ranks leave or have left, or its time to join is over"),
                    id.explicitRoot ? Hope::kLater : Hope::kNone);
  }
  session.emplace(Session::Side::kClient, exchange, theirs.share, clientBytes, serverBytes);
  return {};
}

Hope hopeAfter(int errnum) {
  if (errnum == ECONNREFUSED) return Hope::kRefused;
  const bool isKernelWithoutIt = errnum == EAFNOSUPPORT;  // IPv6
  return isKernelWithoutIt || isRefusal(errnum) ? Hope::kNone : Hope::kLater;
}

Attempt withoutSocket(int errnum) { return {systemError(errnum, "making a control socket")}; }

// The connection alone, before any handshake.
Attempt connect(const Address& address, std::uint16_t port, Clock::time_point deadline, Socket& socket) {
  int errnum = 0;
  socket = connectTo(address, port, deadline, errnum);
  if (errnum == 0) return {};
  if (network::isOutOfFiles(errnum)) return withoutSocket(errnum);
  return {error(koloUnreachable, "{}: {}", address.text(port), std::strerror(errnum)), hopeAfter(errnum),
          errnum == ETIMEDOUT || errnum == EHOSTUNREACH, isRefusal(errnum)};
}

// Both ends of a connection prove to each other that they are of this job.
Attempt introduce(const IdContents& id, const std::string& where, Socket socket, Clock::time_point deadline,
                  std::optional<Dialled>& dialled) {
  deadline = std::min(deadline, Clock::now() + kLongestHandshake);
  Talk talk(std::move(socket));
  std::optional<Session> session;
  if (Attempt failed = greet(talk, id, where, deadline, session); !failed.status.ok()) return failed;
  if (!sayBy(talk, session->prove(), deadline) || !talk.hearBy(Session::kProofBytes, deadline))
    return exchangeFailure(talk.failed(), where);
  if (session->check(talk.heardText()) != Reply::kOk) {
    return answered(
        error(koloUnreachable,
              "{} does not hold this job's secret: KOLO_SECRET differs there, or something else listens", where),
        id.explicitRoot ? Hope::kLater : Hope::kNone);
  }
  dialled.emplace(Dialled{talk.takeSocket(), *session, where});
  return {};
}

// Whether it is this id's hub. The tag of an ordinary id was drawn at random, so only its hub knows it. That of a root
// is made of names that other jobs may have as well, so there the hub has to prove that it holds the secret.
Attempt identify(const IdContents& id, const std::string& where, Socket socket, Clock::time_point deadline) {
  std::optional<Dialled> dialled;
  if (id.explicitRoot) return introduce(id, where, std::move(socket), deadline, dialled);
  Talk talk(std::move(socket));
  std::optional<Session> session;
  return greet(talk, id, where, deadline, session);
}

// Where a root was named its addresses; otherwise those of the hub that may lead there from this host, best first.
std::vector<Address> addressesToTry(const IdContents& id) {
  if (id.explicitRoot) return {id.places.begin(), id.places.end()};
  std::vector<Place> own;
  (void)network::ownPlaces(&own);
  const std::vector<Place> places = network::orderPlaces(id.places, own, id.stack == stackIdentity(), false);
  return {places.begin(), places.end()};
}

// What came of trying all addresses once.
struct Round {
  koloResult_t code = koloUnreachable;
  std::string reasons;
  bool mayComeLater = false;
  bool isRefused = false;
  bool isAnswered = false;
  bool isSilent = false;        // a host did not answer, or is not to be reached
  bool areAllForbidden = true;  // this process may make no such connection

  void add(const Attempt& attempt) {
    if (attempt.status.ok()) return;
    if (attempt.status.code() != koloUnreachable) code = attempt.status.code();
    mayComeLater = mayComeLater || attempt.hope == Hope::kLater;
    isRefused = isRefused || attempt.hope == Hope::kRefused;
    isAnswered = isAnswered || attempt.isAnswer;
    isSilent = isSilent || attempt.isSilent;
    areAllForbidden = areAllForbidden && attempt.isForbidden;
    reasons += (reasons.empty() ? "" : "; ") + attempt.status.message();
  }
};

// Tries the addresses, one after the other, again and again while there is hope.
class Search {
 public:
  Search(const IdContents& id, const Root& root, Clock::time_point deadline, const Interrupt* interrupt)
      : id_(id), root_(root), interrupt_(interrupt), deadline_(deadline), addresses_(addressesToTry(id)) {}

  Result<Dialled> run();

 private:
  std::optional<Dialled> tryAll();
  void tryAddresses(Round& round, std::optional<Dialled>& dialled) const;
  Attempt tryAddress(const Address& address, int port, Clock::time_point deadline,
                     std::optional<Dialled>& dialled) const;
  void tryNextPorts(const Address& address, std::optional<Dialled>& dialled) const;
  bool isHopeless() const;
  void lookUpAgain();
  Status failure(bool inTime) const;

  const IdContents& id_;
  const Root& root_;
  const Interrupt* const interrupt_;  // null: nothing ends it
  const Clock::time_point begun_ = Clock::now();
  const Clock::time_point deadline_;
  std::vector<Address> addresses_;
  Clock::duration patience_ = kFirstConnect;  // with an address that does not answer
  Clock::time_point lookedUp_ = begun_;
  Round last_;         // that the deadline did not cut short, if there is one
  std::string heard_;  // what the last round that had an answer said: its sender may be gone now
};

Result<Dialled> Search::run() {
  bool isTold = false;
  for (Clock::duration pause = kFirstPause;; pause = std::min<Clock::duration>(pause * 2, kLongestPause)) {
    if (std::optional<Dialled> dialled = tryAll(); dialled.has_value()) return std::move(*dialled);
    if (interrupt_ != nullptr) KOLO_TRY(interrupt_->why());
    const Clock::time_point next = Clock::now() + pause;
    if (isHopeless()) return failure(true);
    if (next >= deadline_) return failure(false);
    if (!isTold && Clock::now() - begun_ > kSilentFor) {
      isTold = true;
      log::warn("{}; it is tried again", failure(true).message());
    }
    std::this_thread::sleep_until(next);
    lookUpAgain();
  }
}

// The hub may be in this very process, which needs no network then.
std::optional<Dialled> Search::tryAll() {
  Round round;
  std::optional<Dialled> dialled;
  int errnum = 0;
  if (Socket here = connectToHubHere(id_.secret, errnum); errnum == 0) {
    round.add(introduce(id_, fmt::format("port {} of this process", id_.port), std::move(here), deadline_, dialled));
  } else if (errnum != ECONNREFUSED) {
    round.add(withoutSocket(errnum));
  } else if (addresses_.empty()) {
    round.add({error(koloUnreachable,
                     "the process that made the unique id (pid {} there) {}; KOLO_INTERFACE there says at which "
                     "interface or address it listens (any: at all of them)",
                     id_.makerPid, network::whyNone(id_.places))});
  } else {
    tryAddresses(round, dialled);
  }
  if (dialled.has_value()) return dialled;
  patience_ = std::min<Clock::duration>(2 * patience_, kLongestConnect);
  if (round.isAnswered) heard_ = round.reasons;
  // Silence until the deadline says less than the answers of before.
  if (last_.reasons.empty() || Clock::now() < deadline_) last_ = std::move(round);
  return std::nullopt;
}

void Search::tryAddresses(Round& round, std::optional<Dialled>& dialled) const {
  for (std::size_t i = 0; i < addresses_.size() && !dialled.has_value(); ++i) {
    // A signed number: nothing may be left of the time, and less than nothing divided by an unsigned number is much.
    const auto untried = static_cast<std::int64_t>(addresses_.size() - i);
    const auto share = std::max<Clock::duration>((deadline_ - Clock::now()) / untried, kShortestAttempt);
    const Attempt attempt = tryAddress(addresses_[i], id_.port, std::min(deadline_, Clock::now() + share), dialled);
    round.add(attempt);
    if (id_.explicitRoot && attempt.isHostThere) tryNextPorts(addresses_[i], dialled);
  }
  // A name may mean another host soon, whatever this one answers.
  round.mayComeLater = round.mayComeLater || (!root_.name.empty() && round.code == koloUnreachable);
}

Attempt Search::tryAddress(const Address& address, int port, Clock::time_point deadline,
                           std::optional<Dialled>& dialled) const {
  const auto number = static_cast<std::uint16_t>(port);
  Socket socket;
  Attempt attempt = connect(address, number, std::min(deadline, Clock::now() + patience_), socket);
  attempt.isHostThere = attempt.hope == Hope::kRefused;
  if (!attempt.status.ok()) return attempt;
  attempt = introduce(id_, address.text(number), std::move(socket), deadline, dialled);
  attempt.isHostThere = true;
  return attempt;
}

// Something else may have had the root's port when rank 0 came. What else listens at the next ports is of no interest.
void Search::tryNextPorts(const Address& address, std::optional<Dialled>& dialled) const {
  for (int port = id_.port + 1; port <= lastRootPort(id_.port) && !dialled.has_value(); ++port)
    (void)tryAddress(address, port, std::min(deadline_, Clock::now() + patience_), dialled);
}

// A root that the user named may come up at any time. Of an ordinary id the hub has been there, and its host may be out
// of reach for now; but a host that refuses is there.
bool Search::isHopeless() const {
  if (last_.code != koloUnreachable || (!last_.mayComeLater && !last_.isRefused)) return true;
  return !id_.explicitRoot && last_.isRefused && Clock::now() - begun_ >= kRefusedRetry;
}

void Search::lookUpAgain() {
  const Clock::time_point now = Clock::now();
  if (root_.name.empty() || now - lookedUp_ < kLookUpAgain) return;
  const Result<std::vector<Address>> found = lookUp(root_.name, std::min(deadline_, now + kLongestLookUp));
  lookedUp_ = Clock::now();
  if (found.ok()) addresses_ = found.value();
}

Status Search::failure(bool inTime) const {
  const auto ms = std::chrono::ceil<milliseconds>(deadline_ - begun_).count();
  std::string text = inTime ? "the job's hub cannot be reached"
                            : fmt::format("the job's hub has not been reached within {} ms (KOLO_INIT_TIMEOUT_MS)", ms);
  text += " (it is in the process of rank 0 if a launcher started the ranks): " + last_.reasons;
  if (!last_.isAnswered && !heard_.empty()) text += fmt::format("; before that, {}", heard_);
  if (id_.explicitRoot && !root_.text.empty())
    text += fmt::format("; rank 0 was looked for at {} (by {})", root_.text, root_.from);
  if (id_.hasMore) {
    text += "; its host has more addresses than the unique id has room for: KOLO_INTERFACE there says which one counts";
  }
  if (last_.isSilent && id_.explicitRoot) {
    text += fmt::format("; if a firewall keeps port {} shut, name another one by KOLO_ROOT", id_.port);
  } else if (last_.isSilent) {
    text += fmt::format("; if a firewall keeps port {} shut, KOLO_PORT_RANGE says which ports may be used", id_.port);
  }
  return {last_.areAllForbidden ? koloSystemError : last_.code, std::move(text)};
}

}  // namespace

Result<Dialled> dial(const IdContents& id, Clock::time_point deadline, const Root& root, const Interrupt* interrupt) {
  return Search(id, root, deadline, interrupt).run();
}

bool tell(Dialled& dialled, std::string_view frame, Clock::time_point deadline) {
  std::string sealed;
  dialled.session.seal(frame, sealed);
  Talk talk(std::move(dialled.socket));
  const bool isTold = sayBy(talk, sealed, deadline);
  dialled.socket = talk.takeSocket();
  return isTold;
}

bool answers(const IdContents& id, Clock::time_point deadline) {
  for (const Address& address : addressesToTry(id)) {
    int errnum = 0;
    Socket socket = connectTo(address, id.port, deadline, errnum);
    if (errnum == 0 && identify(id, address.text(), std::move(socket), deadline).status.ok()) return true;
  }
  return false;
}

}  // namespace kolo::bootstrap
