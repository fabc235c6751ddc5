// What follows the end of a hub: ranks of its host return to another one, ask again, and give what only they have. Most
// ranks here are connections of the test's own, which say what a rank says, in an order that real ones have seldom.
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>

#include "bootstrap/listener.h"
#include "bootstrap/member_link.h"
#include "bootstrap/process_info.h"
#include "bootstrap/standby.h"
#include "bootstrap/text_list.h"
#include "bootstrap_child.h"
#include "bootstrap_fixture.h"
#include "network/talk.h"
#include "support/settings_scope.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

constexpr auto kSoon = 20s;

// What a rank has not got is the end of the connection: "closed".
struct Told {
  Frame kind{};
  std::string rest;
};

// The hub that takes the place of an earlier one, for ranks 0 to n - 1.
class NextHub {
 public:
  explicit NextHub(int ranks, bool isPastSilence = false) {
    randombytes_buf(secret.data(), secret.size());
    Succession succession{ranks, {}, 0, isPastSilence};
    for (int rank = 0; rank < ranks; ++rank)
      succession.neighbours.push_back({rank, static_cast<std::uint32_t>(::getpid()), ""});
    set(succession);
  }
  // An empty name: this process's standby, which is open.
  explicit NextHub(const Succession& succession) {
    randombytes_buf(secret.data(), secret.size());
    set(succession);
  }

  Secret secret{};
  int ranks = 0;
  std::shared_ptr<Standby> standby;

 private:
  void set(Succession succession) {
    ranks = succession.ranks;
    Reactor& reactor = *Reactor::get().value();
    REQUIRE(reactor.call([&] { standby = Standby::open(reactor, Standby::Reach::kEverywhere).standby; }));
    REQUIRE((standby != nullptr && standby->port() != 0));
    for (Neighbour& each : succession.neighbours) {
      if (each.standby.empty()) each.standby = standby->name();
    }
    Status made;
    REQUIRE(reactor.call([&] { made = standby->succeed(secret, succession); }));
    REQUIRE(made.ok());
  }
};

class RawRank {
 public:
  RawRank(const NextHub& hub, int rank) : RawRank(knockAt(hub), hub.secret, rank, hub.ranks) {}
  RawRank(Socket socket, const Secret& secret, int rank, int ranks = 0) : rank_(rank), ranks_(ranks) {
    network::Talk talk(std::move(socket));
    const KeyExchange exchange(secret);
    ClientHello hello;
    hello.tag = tagOf(secret);
    hello.share = exchange.share();
    const std::string mine = encode(hello);
    const auto deadline = Clock::now() + kSoon;
    talk.say(mine.data(), mine.size());
    REQUIRE((talk.flushBy(deadline) && talk.hearBy(sizeof(ServerHello), deadline)));
    const std::string theirs(talk.heardText());
    talk.forget();
    ServerHello answer;
    REQUIRE((decode(theirs, answer) && answer.reply == Reply::kOk));
    session_ = std::make_unique<Session>(Session::Side::kClient, exchange, answer.share, mine, theirs);
    const std::string proof = session_->prove();
    talk.say(proof.data(), proof.size());
    REQUIRE((talk.flushBy(deadline) && talk.hearBy(Session::kProofBytes, deadline)));
    REQUIRE(session_->check(talk.heardText()) == Reply::kOk);
    socket_ = talk.takeSocket();
  }
  // As a rank of another host, of which the kernel does not say who it is.
  static RawRank fromAfar(const NextHub& hub, int rank) {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, hub.standby->port(), Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    return {std::move(socket), hub.secret, rank, hub.ranks};
  }
  RawRank& joins(int ranks) { return tell(rawJoin(rank_, ranks, KOLO_VERSION_CODE, placeIdentity(), "nobody's")); }
  // As from another host, with this standby there.
  RawRank& joinsFromAfar(int ranks, const Standby& standby) {
    return tell(rawJoin(rank_, ranks, KOLO_VERSION_CODE, 4711, standby.name(), "127.0.0.1", standby.port()));
  }
  // Whether the hub that it has joined can have a successor.
  bool hearsOfStandbys() {
    for (;;) {
      const std::optional<std::string> plain = next();
      REQUIRE(plain.has_value());
      const auto kind = static_cast<Frame>(plain->front());
      if (kind == Frame::kNeighbours || kind == Frame::kWelcome) return kind == Frame::kNeighbours;
    }
  }
  // That it is back, and which rank has left in good order, or ended otherwise, as far as it knows.
  RawRank& returns(int gone = -1, std::uint8_t how = kHasLeft, const std::vector<int>& counting = {},
                   bool hasLeft = false, std::string_view farewell = "it said goodbye") {
    Encoder words = frame(Frame::kReturn);
    words.number(std::int32_t{rank_})
        .number(static_cast<std::uint8_t>(hasLeft))
        .raw(std::string(16, 'p'))
        .text("")
        .ranks(counting.empty() ? upTo(ranks_) : counting);
    TextList farewells, knowns;
    if (gone >= 0) {
      farewells.add(farewell);
      knowns.add("");
    }
    words.ranks(gone >= 0 ? std::vector<int>{gone} : std::vector<int>());
    if (gone >= 0) words.number(how);
    return tell(words.raw(farewells.take()).raw(knowns.take()).take());
  }
  // had: the last result that the rank had heard of when it asked an earlier hub
  RawRank& asks(std::uint64_t sequence, const std::vector<int>& members, const std::string& blob, bool isRepeated,
                std::uint64_t had = 0) {
    const auto at = std::find(members.begin(), members.end(), rank_) - members.begin();
    return tell(frame(Frame::kGather)
                    .number(std::uint64_t{5})
                    .number(sequence)
                    .number(isRepeated ? had : kNeverAsked)
                    .number(static_cast<std::uint32_t>(at))
                    .number(std::uint32_t{kPatienceMs})
                    .ranks(members)
                    .text(blob)
                    .take());
  }
  // The result of an exchange of an earlier hub, or its first blobs.
  RawRank& brings(std::uint64_t sequence, const std::vector<std::string>& blobs, const std::vector<int>& members,
                  std::uint64_t number = 1) {
    Encoder words = frame(Frame::kResult);
    words.number(std::uint64_t{5}).number(sequence).number(number).number(std::int32_t{koloSuccess}).text("");
    words.ranks(members).number(std::uint32_t{0});
    words.number(static_cast<std::uint32_t>(blobs.size()));
    TextList list;
    for (const std::string& each : blobs) list.add(each);
    return tell(words.raw(list.take()).take());
  }
  RawRank& isBack() { return tell(frame(Frame::kFinished).take()); }
  RawRank& tell(std::string_view plain) {
    std::string bytes;
    session_->seal(plain, bytes);
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t sent = ::send(socket_.fd(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
      else REQUIRE((errno == EAGAIN && network::await(socket_.fd(), POLLOUT, Clock::now() + kSoon)));
    }
    return *this;
  }
  // The next frame of this kind; those before it are dropped. Nothing: the connection has ended.
  std::optional<std::string> hear(Frame kind) {
    for (;;) {
      const std::optional<std::string> plain = next();
      if (!plain.has_value() || static_cast<Frame>(plain->front()) == kind)
        return plain.has_value() ? std::optional(plain->substr(1)) : plain;
    }
  }
  // The blobs of the next exchange that ends, or its error.
  std::string hearsResult() {
    for (;;) {
      const std::optional<std::string> plain = next();
      if (!plain.has_value()) return "closed";
      Decoder decoder(*plain);
      const auto kind = static_cast<Frame>(decoder.number<std::uint8_t>());
      if (kind != Frame::kGathered && kind != Frame::kGatherFailed) continue;
      for (int i = 0; i < 3; ++i) (void)decoder.number<std::uint64_t>();
      settled = decoder.number<std::uint64_t>();
      if (kind == Frame::kGatherFailed) {
        (void)decoder.number<std::int32_t>();
        return std::string(decoder.text());
      }
      (void)decoder.number<std::uint32_t>();
      std::vector<std::string> blobs(decoder.number<std::uint32_t>());
      CHECK((readTexts(decoder, blobs) && decoder.done()));
      return std::accumulate(blobs.begin(), blobs.end(), std::string());
    }
  }
  // Takes those for dead whom the next vote names, which are so many.
  RawRank& votes(std::uint32_t named) {
    const std::optional<std::string> asked = hear(Frame::kVote);
    REQUIRE(asked.has_value());
    Decoder decoder(*asked);
    const auto number = decoder.number<std::uint64_t>();
    CHECK(decoder.ranks(kMaxFrameBytes).size() == named);
    return tell(frame(Frame::kVoted, number).take());
  }
  // Reads what has come, and takes those for dead whom votes name. Whether a frame of this kind was among it.
  bool agreesUntil(Frame kind) {
    while (hasNews() || !in_.empty()) {
      const std::optional<std::string> plain = next();
      const auto what = plain.has_value() ? static_cast<Frame>(plain->front()) : Frame{};
      if (what == Frame::kVote) tell(frame(Frame::kVoted, Decoder(plain->substr(1)).number<std::uint64_t>()).take());
      if (what == Frame::kCounting) counting.push_back(Decoder(plain->substr(1)).ranks(kMaxFrameBytes));
      if (!plain.has_value() || what == kind) return plain.has_value();
    }
    return false;
  }
  void ends() { socket_.close(); }
  bool hasNews() const { return network::await(socket_.fd(), POLLIN, Clock::now()); }
  std::uint64_t settled = 0;  // as the last result says
  std::vector<std::vector<int>> counting;

 private:
  static Socket knockAt(const NextHub& hub) {
    int errnum = 0;
    Socket socket = kolo::bootstrap::knock(hub.standby->name(), errnum);
    REQUIRE(errnum == 0);
    return socket;
  }
  std::optional<std::string> next() {
    const auto deadline = Clock::now() + kSoon;
    for (;;) {
      const std::size_t bytes = in_.size() < kLengthBytes ? 0 : Session::cipherBytes(in_.substr(0, kLengthBytes));
      if (bytes != 0 && in_.size() >= kLengthBytes + bytes) {
        std::string plain;
        REQUIRE(session_->open(in_.substr(0, kLengthBytes), in_.substr(kLengthBytes, bytes), plain));
        in_.erase(0, kLengthBytes + bytes);
        return plain;
      }
      REQUIRE(network::await(socket_.fd(), POLLIN, deadline));
      char room[4096];
      const ssize_t got = ::recv(socket_.fd(), room, sizeof room, 0);
      if (got <= 0) return std::nullopt;
      in_.append(room, static_cast<std::size_t>(got));
    }
  }

  const int rank_;
  int ranks_ = 0;  // of the job
  Socket socket_;
  std::unique_ptr<Session> session_;
  std::string in_;
};

// At one end of a connection, as getpeername or getsockname tells; 0: it is none over IP.
int portOf(int fd, int (*end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (end(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  const bool isIp = address.ss_family == AF_INET || address.ss_family == AF_INET6;
  return isIp ? ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port) : 0;  // both have it at one place
}

// Breaks one connection that this process has to a port, though both ends live.
void breakConnectionTo(std::uint16_t port) {
  DIR* const files = ::opendir("/proc/self/fd");
  REQUIRE(files != nullptr);
  bool isBroken = false;
  while (const dirent* const each = isBroken ? nullptr : ::readdir(files)) {
    const int fd = std::atoi(each->d_name);
    isBroken = portOf(fd, ::getpeername) == port && ::shutdown(fd, SHUT_RDWR) == 0;
  }
  ::closedir(files);
  REQUIRE(isBroken);
}

// The names of all abstract sockets, which everybody may see.
std::set<std::string> namesInUse() {
  std::ifstream file("/proc/net/unix");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (const std::size_t at = line.find('@'); at != std::string::npos) names.insert(line.substr(at + 1));
  }
  return names;
}

// A stranger that listens by a name. One that is busy takes no connection.
class NameTaker {
 public:
  NameTaker(const std::string& name, bool isBusy) : listener_(network::socketForDial(AF_UNIX)) {
    sockaddr_un address;
    const socklen_t bytes = network::fill(name, address);
    const auto* const at = reinterpret_cast<const sockaddr*>(&address);
    REQUIRE(::bind(listener_.fd(), at, bytes) == 0);
    REQUIRE(::listen(listener_.fd(), isBusy ? 0 : SOMAXCONN) == 0);
    if (!isBusy) return;
    first_ = network::socketForDial(AF_UNIX);
    REQUIRE(::connect(first_.fd(), at, bytes) == 0);
  }

 private:
  Socket listener_, first_;
};

// A host to which no way leads: a port that takes no connection. The kernel drops what comes.
class SilentPort {
 public:
  SilentPort() : listener_(network::socketForDial(AF_INET)) {
    sockaddr_storage address;
    const socklen_t bytes = kLoopback.fill(0, address);
    REQUIRE(::bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
    REQUIRE(::listen(listener_.fd(), 0) == 0);
    port = static_cast<std::uint16_t>(portOf(listener_.fd(), ::getsockname));
    for (int errnum = 0; errnum == 0;) {
      callers_.push_back(connectTo(kLoopback, port, Clock::now() + 100ms, errnum));
      REQUIRE((errnum == 0 || errnum == ETIMEDOUT));
    }
  }
  std::uint16_t port = 0;
  // Nobody listens there any more.
  void close() { listener_.close(); }

 private:
  Socket listener_;
  std::vector<Socket> callers_;
};

// Another program that has the port of a standby now: it hears a hello, says this, and hangs up.
class PortTaker {
 public:
  explicit PortTaker(std::string says) : listener_(network::socketForDial(AF_INET)), says_(std::move(says)) {
    sockaddr_storage address;
    const socklen_t bytes = kLoopback.fill(0, address);
    REQUIRE(::bind(listener_.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0);
    REQUIRE(::listen(listener_.fd(), SOMAXCONN) == 0);
    port = static_cast<std::uint16_t>(portOf(listener_.fd(), ::getsockname));
    thread_ = std::thread([this] {
      while (!isOver_) serve();
    });
  }
  ~PortTaker() {
    isOver_ = true;
    thread_.join();
  }
  PortTaker(const PortTaker&) = delete;
  PortTaker& operator=(const PortTaker&) = delete;
  std::uint16_t port = 0;

 private:
  void serve() {
    if (!network::await(listener_.fd(), POLLIN, Clock::now() + 50ms)) return;
    network::Talk talk(Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!talk.socket().valid() || !talk.hearBy(sizeof(ClientHello), Clock::now() + kSoon)) return;
    talk.say(says_.data(), says_.size());
    (void)talk.flushBy(Clock::now() + kSoon);
  }

  Socket listener_;
  const std::string says_;
  std::atomic<bool> isOver_{false};
  std::thread thread_;
};

// A rank of another host.
Neighbour afar(int rank, std::uint16_t port, const std::string& standby = "elsewhere") {
  return {rank, 4711, standby, false, "127.0.0.1", port, "elsewhere"};
}
// Of this process.
Neighbour near(int rank) { return {rank, static_cast<std::uint32_t>(::getpid()), ""}; }

std::shared_ptr<Standby> openStandby() {
  std::shared_ptr<Standby> made;
  Reactor& reactor = *Reactor::get().value();
  REQUIRE(reactor.call([&] { made = Standby::open(reactor, Standby::Reach::kEverywhere).standby; }));
  REQUIRE((made != nullptr && made->port() != 0));
  return made;
}

// Copies of all connections of a process.
std::vector<std::pair<int, Socket>> connectionsOf(int pid) {
  std::vector<std::pair<int, Socket>> all;  // by the port at the other end
  const Socket process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  for (int fd = 3; process.valid() && fd < 100; ++fd) {
    Socket copy(static_cast<int>(::syscall(SYS_pidfd_getfd, process.fd(), fd, 0)));
    if (const int port = portOf(copy.fd(), ::getpeername); port != 0) all.emplace_back(port, std::move(copy));
  }
  return all;
}

// Of one process, those to the other one.
std::vector<Socket> connectionsOf(int pid, int to) {
  std::vector<Socket> both;
  const auto ends = connectionsOf(to);
  for (auto& [port, copy] : connectionsOf(pid)) {
    const int other = port;
    const bool isIt = std::any_of(ends.begin(), ends.end(), [other](const auto& each) {
      return portOf(each.second.fd(), ::getsockname) == other;
    });
    if (isIt) both.push_back(std::move(copy));
  }
  return both;
}

// Of a process that has ended.
std::uint32_t endedPid() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  REQUIRE(::waitpid(pid, nullptr, 0) == pid);
  return static_cast<std::uint32_t>(pid);
}

// Of two ranks of this process.
int exchangesDone(const ControlPtr& a, const ControlPtr& b, std::uint64_t sequence) {
  const ControlPtr both[] = {a, b};
  std::atomic<int> done{0};
  onThreads(2, [&](int i) {
    const Blobs all = both[i]->allGather(9, sequence, {a->rank(), b->rank()}, i, fmt::format("{}", i), kPatienceMs);
    done += all.ok() && all.value() == std::vector<std::string>{"0", "1"} ? 1 : 0;
  });
  return done;
}

// All take those for dead whom votes name. Whether the first of them hears such a frame soon.
bool agreeUntil(const std::vector<RawRank*>& ranks, Frame kind) {
  bool isHeard = false;
  for (const auto until = Clock::now() + kSoon; !isHeard && Clock::now() < until; std::this_thread::sleep_for(1ms)) {
    for (RawRank* const each : ranks) isHeard = (each->agreesUntil(kind) && each == ranks.front()) || isHeard;
  }
  return isHeard;
}

// This process gets no descriptor more.
class NoFiles {
 public:
  NoFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoFiles() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("requests that were under way when the hub ended are repeated, and new ones join them", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().asks(1, upTo(3), "a", true).isBack();
  one.returns().asks(1, upTo(3), "b", true).isBack();
  two.returns().isBack().asks(1, upTo(3), "c", false);
  CHECK(zero.hearsResult() == "abc");
  CHECK(one.hearsResult() == "abc");
  CHECK(two.hearsResult() == "abc");
}

TEST_CASE("a result that one rank has and another one lacks is handed on", "[bootstrap]") {
  const bool isHolderFirst = GENERATE(true, false);
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  const auto zeroReturns = [&] {
    zero.returns().brings(7, {"first", "second"}, upTo(2)).isBack();
    REQUIRE(zero.hear(Frame::kReturned).has_value());
  };
  if (isHolderFirst) zeroReturns();
  one.returns().asks(7, upTo(2), "again", true);
  REQUIRE(one.hear(Frame::kReturned).has_value());
  if (!isHolderFirst) zeroReturns();
  CHECK(one.hearsResult() == "firstsecond");
  // It has to be kept for one more hub until this one says that it has reached all.
  for (RawRank* const each : {&zero, &one}) each->asks(8, upTo(2), "x", false);
  CHECK(zero.hearsResult() == "xx");
  CHECK(zero.settled == 0);
  CHECK(one.isBack().hearsResult() == "xx");
  for (RawRank* const each : {&zero, &one}) each->asks(9, upTo(2), "y", false);
  CHECK(zero.hearsResult() == "yy");
  CHECK(zero.settled >= resultsBefore(0));
}

TEST_CASE("a result that is gone with the rank that had it fails the request", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  one.returns().asks(7, {0, 1}, "x", true).isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  zero.ends();
  const std::string why = one.hearsResult();
  CHECK(contains(why, "rank 0 (pid "));
  CHECK(contains(why, "died"));
}

TEST_CASE("a result outlives a rank that has ended with the hub, and no death comes before it", "[bootstrap]") {
  const bool isThere = GENERATE(true, false);
  const auto own = static_cast<std::uint32_t>(::getpid());
  const NextHub hub(Succession{3, {{0, endedPid(), "nobody's"}, {1, own, ""}, {2, own, ""}}});
  RawRank one(hub, 1), two(hub, 2);
  one.returns().asks(7, upTo(3), "x", true).isBack();
  REQUIRE(one.hear(Frame::kDeaths).has_value());
  two.returns();
  if (isThere) two.brings(7, {"a", "b", "c"}, upTo(3));
  two.isBack();
  const std::string told = one.hearsResult();
  if (isThere) CHECK(told == "abc");
  else CHECK(contains(told, "rank 0 (pid "));
}

TEST_CASE("a result that is still to be brought comes before what was reported after it", "[bootstrap]") {
  const bool isBrought = GENERATE(true, false), isAskedFirst = GENERATE(true, false);
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  const auto asks = [&] { one.asks(7, upTo(3), "x", true).isBack(); };
  one.returns();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  if (isAskedFirst) asks();
  two.returns().tell(frame(Frame::kReport, std::uint64_t{1}, std::uint64_t{5}, std::uint64_t{5},
                           std::int32_t{koloAborted}, std::int32_t{2}, "rank 2 gave up")
                         .take());
  two.isBack();
  REQUIRE(two.hear(Frame::kReturned).has_value());
  if (!isAskedFirst) asks();
  zero.returns();
  if (isBrought) zero.brings(7, {"a", "b", "c"}, upTo(3));
  zero.isBack();
  CHECK(one.hearsResult() == (isBrought ? "abc" : "rank 2 gave up"));
}

TEST_CASE("a rank that an earlier hub had given up, and that lives, hears that it counts as dead", "[bootstrap]") {
  const bool isBackFirst = GENERATE(true, false);
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  two.returns().isBack();
  REQUIRE(two.hear(Frame::kReturned).has_value());
  const auto tells = [&] {
    zero.returns(1, 0, {}, false, "rank 1 was silent");
    REQUIRE(zero.hear(Frame::kReturned).has_value());
  };
  if (!isBackFirst) tells();
  one.returns().isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  if (isBackFirst) tells();
  for (RawRank* const each : {&one, &two, &zero}) {  // not all knew
    const std::optional<std::string> news = each->hear(Frame::kDeaths);
    REQUIRE(news.has_value());
    CHECK(contains(*news, "rank 1 was silent"));
  }
}

TEST_CASE("of two ranks that have a result the second one gives it if the first one dies while it does",
          "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  one.returns().asks(7, upTo(3), "x", true).isBack();
  zero.returns().brings(7, {"lost"}, upTo(3));
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  two.returns().brings(7, {"a", "b", "c"}, upTo(3)).isBack();
  zero.ends();
  CHECK(one.hearsResult() == "abc");
}

TEST_CASE("ranks that meet a second time under one name are not given the result of the first time", "[bootstrap]") {
  const bool isHolderFirst = GENERATE(true, false);
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  const auto twoReturns = [&] {
    two.returns().brings(7, {"o", "l", "d"}, upTo(3), 5).isBack();
    REQUIRE(two.hear(Frame::kReturned).has_value());
  };
  if (isHolderFirst) twoReturns();
  zero.returns().asks(7, upTo(3), "n", true, 5).isBack();
  one.returns().asks(7, upTo(3), "e", true, 6).isBack();
  for (RawRank* const each : {&zero, &one}) REQUIRE(each->hear(Frame::kReturned).has_value());
  if (!isHolderFirst) twoReturns();
  two.asks(7, upTo(3), "w", false);
  for (RawRank* const each : {&zero, &one, &two}) CHECK(each->hearsResult() == "new");
}

TEST_CASE("of the results of several meetings under one name each rank is given the one that it lacks", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  two.returns().brings(7, {"o", "l", "d"}, upTo(3), 5).brings(7, {"n", "e", "w"}, upTo(3), 8).isBack();
  REQUIRE(two.hear(Frame::kReturned).has_value());
  zero.returns().asks(7, upTo(3), "x", true, 4);
  one.returns().asks(7, upTo(3), "x", true, 5);
  CHECK(zero.hearsResult() == "old");
  CHECK(one.hearsResult() == "new");
}

TEST_CASE("a group that is made again while the hub ends is not that of before", "[bootstrap][threads]") {
  Child maker("hub alone", 0, 4, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 4, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 4, 1);
  const auto meet = [&](int i, const std::string& mine) {
    const Blobs all = controls[static_cast<std::size_t>(i)]->allGather(9, 1, {1, 2, 3}, i - 1, mine, kPatienceMs);
    return all.ok() ? all.value()[0] + all.value()[1] + all.value()[2] : all.status().message();
  };
  std::string told[4];
  onThreads(3, [&](int i) { told[i + 1] = meet(i + 1, "a"); });
  CHECK(told[3] == "aaa");
  std::thread first([&] { told[1] = meet(1, "b"); }), second([&] { told[2] = meet(2, "b"); });
  std::this_thread::sleep_for(50ms);  // any order will do: mostly they have asked
  maker.kill();
  std::this_thread::sleep_for(50ms);  // and mostly they ask again before the third one does
  told[3] = meet(3, "b");
  first.join();
  second.join();
  for (int i = 1; i < 4; ++i) CHECK(told[i] == "bbb");
  leaveAll(controls);
}

TEST_CASE("what a rank has withdrawn from a hub that answers no more is no part of what it asks the next one",
          "[bootstrap][threads]") {
  Child maker("hub alone", 0, 3, "");
  const std::vector<ControlPtr> controls = joinAll(unhex(maker.line()), 3);
  const auto meet = [&](int i, const std::string& mine, Interrupt* interrupt) {
    const Blobs all = controls[static_cast<std::size_t>(i)]->allGather(9, 1, upTo(3), i, mine, kPatienceMs, interrupt);
    return all.ok() ? all.value()[0] + all.value()[1] + all.value()[2] : all.status().message();
  };
  maker.stop();
  Interrupt interrupt;
  std::string told[3];
  std::thread first([&] { told[0] = meet(0, "x", &interrupt); });
  std::this_thread::sleep_for(50ms);  // any order will do: mostly it has asked
  interrupt.raise(error(koloAborted, "enough"));
  first.join();
  CHECK(told[0] == "enough");
  std::thread anew([&] { told[0] = meet(0, "a", nullptr); });
  std::this_thread::sleep_for(50ms);  // and mostly it waits again
  maker.kill();
  onThreads(2, [&](int i) { told[i + 1] = meet(i + 1, i == 0 ? "b" : "c", nullptr); });
  anew.join();
  for (const std::string& each : told) CHECK(each == "abc");
  leaveAll(controls);
}

TEST_CASE("results that a rank invents end nobody else's return", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns();
  for (std::uint64_t i = 0; i < kMaxGathersOfRank + 100; ++i) zero.brings(100 + i, {"x"}, {0});
  zero.isBack();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  one.returns().brings(7, {"b", "c"}, {1, 2}, 5).isBack();
  two.returns().asks(7, {1, 2}, "x", true).isBack();
  CHECK(two.hearsResult() == "bc");
}

TEST_CASE("of the results that a rank brings those are kept that a rank keeps", "[bootstrap]") {
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  const std::string big((512 << 10) - 256, 'x'), other(big.size(), 'y');  // nothing in them is equal
  constexpr std::uint64_t kMost = kMaxResultBytesOfRank >> 20, kMore = kMost + 6;
  zero.returns();
  for (std::uint64_t i = 1; i <= kMore; ++i) zero.brings(i, {big, other}, upTo(2), i);
  zero.isBack().asks(kMore, upTo(2), "a", true, kMore - 1);
  CHECK(one.returns().asks(kMore, upTo(2), "b", true, kMore - 1).hearsResult() == "ab");
  CHECK(one.asks(kMost, upTo(2), "b", true, kMost - 1).hearsResult() == big + other);
}

TEST_CASE("a rank that returns and does not come to an end keeps no other from leaving", "[bootstrap][slow]") {
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  one.returns().isBack().tell(frame(Frame::kLeave).take());
  CHECK(one.hear(Frame::kFarewell).has_value());
  // It lives, and what it says then is too late.
  zero.brings(7, {"a", "b"}, upTo(2)).isBack().asks(8, {0}, "x", false);
  CHECK(zero.hearsResult() == "x");
}

TEST_CASE("the next hub takes a death of long ago for the cause of nothing that follows", "[bootstrap]") {
  const bool isOld = GENERATE(true, false);
  const auto own = static_cast<std::uint32_t>(::getpid());
  const NextHub hub(Succession{3, {{0, own, ""}, {1, own, ""}, {2, endedPid(), "nobody's"}}});
  RawRank zero(hub, 0), one(hub, 1);
  for (RawRank* const each : {&zero, &one}) {
    each->returns(2, isOld ? kIsOld : std::uint8_t{0}).isBack();
    CHECK(each->hear(Frame::kDeaths).has_value());  // it may be news to some
  }
  one.tell(frame(Frame::kLeave).take());
  const std::string why = zero.asks(3, upTo(2), "x", false).hearsResult();
  INFO(why);
  CHECK(contains(why, "has left the job"));
  CHECK(contains(why, ", after it said goodbye") == !isOld);
}

TEST_CASE("ranks without a descriptor for the way to the next hub try again", "[bootstrap][threads]") {
  Child hub("hub", 0, 3, "");
  const koloUniqueId id = unhex(hub.line());
  const std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  const auto isConnected = [port = contentsOf(id).port] {
    for (int fd = 3; fd < 1000; ++fd) {
      if (portOf(fd, ::getpeername) == port) return true;
    }
    return false;
  };
  REQUIRE(isConnected());
  {
    const NoFiles none;
    hub.kill();
    for (const auto until = Clock::now() + kSoon; isConnected() && Clock::now() < until;)
      std::this_thread::sleep_for(1ms);
  }
  CHECK_FALSE(isConnected());
  CHECK(exchangesDone(controls[1], controls[2], 1) == 2);
  leaveAll(controls);
}

TEST_CASE("ranks that find no descriptor for the way to the next hub say so", "[bootstrap][slow]") {
  Child hub("hub", 0, 3, "");
  const std::vector<ControlPtr> controls = joinAll(unhex(hub.line()), 3, 1);
  const NoFiles none;
  hub.kill();
  std::array<Status, 2> statuses;
  onThreads(2, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    statuses[at] = controls[at + 1]->allGather(9, 1, {1, 2}, i, "", kPatienceMs).status();
  });
  for (const Status& status : statuses) {
    CHECK(contains(status.message(), "then making a socket to reach the next hub"));
    CHECK(contains(status.message(), "RLIMIT_NOFILE"));
  }
}

TEST_CASE("a rank that invents the result of an exchange of others is not believed", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  const auto isClosed = [](RawRank& liar) { return liar.hearsResult() == "closed"; };
  one.returns().asks(7, {1, 2}, "b", true).isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  zero.returns().brings(7, {"l", "i", "e"}, upTo(3), 5);
  SECTION("as one of them") { CHECK(isClosed(zero.brings(7, {"l", "i"}, {1, 2}, 5))); }
  SECTION("with a blob too many") { CHECK(isClosed(zero.brings(7, {"l", "i", "e"}, {0, 1}, 5))); }
  SECTION("as of a later hub") { CHECK(isClosed(zero.brings(7, {"l", "i"}, {0, 1}, resultsBefore(0) + 1))); }
  two.returns().asks(7, {1, 2}, "c", true).isBack();
  CHECK(one.hearsResult() == "bc");
  CHECK(two.hearsResult() == "bc");
}

TEST_CASE("a rank that has not returned is dead only if its standby is closed, and not if it has left", "[bootstrap]") {
  const auto own = static_cast<std::uint32_t>(::getpid());
  // Nobody listens by the names of ranks 1 and 2; rank 3 is silent.
  const NextHub hub(
      Succession{4, {{0, own, ""}, {1, own + 1, "kolo-nobody-1"}, {2, own + 1, "kolo-nobody-2"}, {3, own, ""}}});
  RawRank zero(hub, 0);
  zero.returns(1).isBack();
  const std::optional<std::string> deaths = zero.hear(Frame::kDeaths);
  REQUIRE(deaths.has_value());
  Decoder decoder(*deaths);
  CHECK(decoder.number<std::uint32_t>() == 1);
  CHECK(decoder.number<std::int32_t>() == 2);
  zero.asks(1, {0, 1}, "x", false);
  CHECK(zero.hearsResult() == "it said goodbye");
  zero.asks(2, {0, 2}, "x", false);
  CHECK(contains(zero.hearsResult(), "rank 2 (pid "));
  zero.asks(3, {0, 3}, "x", false);
  std::this_thread::sleep_for(500ms);  // nothing follows from silence, however long
  RawRank three(hub, 3);
  three.returns().isBack().asks(3, {0, 3}, "y", false);
  CHECK(zero.hearsResult() == "xy");
}

TEST_CASE("the name of a rank that has ended proves nothing in the hands of another process", "[bootstrap]") {
  const auto own = static_cast<std::uint32_t>(::getpid()), gone = endedPid();
  const std::string names[] = {fmt::format("kolo-{}-{}-silent", gone, ::geteuid()),
                               fmt::format("kolo-{}-{}-busy", gone, ::geteuid()),
                               fmt::format("kolo-{}-{}-other user", own, ::geteuid() + 1)};
  const NameTaker silent(names[0], false), busy(names[1], true), other(names[2], false);
  const NextHub hub(Succession{4, {{0, own, ""}, {1, gone, names[0]}, {2, gone, names[1]}, {3, own, names[2]}}});
  RawRank zero(hub, 0);
  zero.returns().isBack();
  const std::optional<std::string> deaths = zero.hear(Frame::kDeaths);
  REQUIRE(deaths.has_value());
  CHECK(Decoder(*deaths).number<std::uint32_t>() == 3);
}

TEST_CASE("ranks pass by a standby whose name another process has taken", "[bootstrap][threads]") {
  const bool isBusy = GENERATE(false, true);
  Child maker("hub alone", 0, 3, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 3, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  std::set<std::string> names = namesInUse();
  zero.kill();
  for (const std::string& each : namesInUse()) names.erase(each);
  std::vector<std::unique_ptr<NameTaker>> takers;
  for (const std::string& each : names) takers.push_back(std::make_unique<NameTaker>(each, isBusy));
  REQUIRE(!takers.empty());
  maker.kill();
  CHECK(exchangesDone(controls[1], controls[2], 1) == 2);
  leaveAll(controls);
}

TEST_CASE("those that are back hear at once of a rank that leaves, and others as soon as they are", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  one.returns().isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  zero.returns().isBack().tell(frame(Frame::kLeave).take());
  CHECK(one.hear(Frame::kLeft).has_value());
  two.returns();
  CHECK(two.hear(Frame::kLeft).has_value());
  two.isBack();
  CHECK(zero.hear(Frame::kFarewell).has_value());
}

TEST_CASE("a rank that has left the next hub's process while another one was stopped is not called dead",
          "[bootstrap][threads]") {
  Child maker("hub alone", 0, 4, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank that leaves because of a death", 0, 4, hex(id)), two("rank", 2, 4, hex(id));
  Child three("rank", 3, 4, hex(id));
  std::vector<ControlPtr> controls(4);
  Result<ControlPtr> joined = join(id, 1, 4, kPatienceMs);
  REQUIRE(joined.ok());
  const ControlPtr one = joined.take();
  Inbox inbox;
  one->subscribe(1, upTo(4), inbox.callback());
  two.stop();
  maker.kill();
  three.kill();
  CHECK(zero.wait() == 0);
  const Blobs all = one->allGather(9, 1, {0, 1}, 1, "", kPatienceMs);
  CHECK(contains(all.status().message(), "has left the job"));
  for (const Failure& each : inbox.all()) CHECK(each.rank == 3);
  one->leave();
}

TEST_CASE("a farewell waits until all that have lost a hub know of it", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().isBack().tell(frame(Frame::kLeave).take());
  one.returns().isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  two.returns().isBack();
  REQUIRE(two.hear(Frame::kLeft).has_value());  // and so it is with its kernel
  CHECK(zero.hear(Frame::kFarewell).has_value());
}

TEST_CASE("nobody returns in the place of another process, or twice", "[bootstrap]") {
  const auto own = static_cast<std::uint32_t>(::getpid());
  const NextHub hub(Succession{3, {{0, own, ""}, {1, own + 1, ""}, {2, own, ""}}});
  RawRank zero(hub, 0), again(hub, 0), other(hub, 1), unknown(hub, 3);
  zero.returns().isBack();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  for (RawRank* const each : {&again, &other, &unknown}) {
    each->returns();
    CHECK(!each->hear(Frame::kReturned).has_value());
  }
}

TEST_CASE("who knocks at a standby without the job's key is turned away", "[bootstrap]") {
  const NextHub hub(2);
  Secret sameName = hub.secret, unknown{};  // what names the job is no secret: wire.h
  sameName.back() ^= 1;
  randombytes_buf(unknown.data(), unknown.size());
  Reactor& reactor = *Reactor::get().value();
  const auto isLetIn = [&](const Secret& secret) {
    Handover over;
    bool isProven = false;
    REQUIRE(reactor.call([&] {
      int errnum = 0;
      const auto knock =
          std::make_shared<Knock>(reactor, secret, false, kolo::bootstrap::knock(hub.standby->name(), errnum),
                                  [&](const std::optional<Session>& session, const Socket&) {
                                    isProven = session.has_value();
                                    over.finish({});
                                  });
      (void)knock->start();
    }));
    REQUIRE(over.wait(Clock::now() + kSoon));
    return isProven;
  };
  CHECK(isLetIn(hub.secret));
  CHECK_FALSE(isLetIn(sameName));
  CHECK_FALSE(isLetIn(unknown));
}

TEST_CASE("a failure that was reported before the hub ended is told once, also to who subscribes later",
          "[bootstrap][threads]") {
  Child child("hub alone", 0, 3, "");
  const std::vector<ControlPtr> controls = joinAll(unhex(child.line()), 3);
  Inbox inboxes[3];
  controls[1]->subscribe(5, upTo(3), inboxes[1].callback());
  controls[0]->reportFailure(5, {koloAborted, 0, "rank 0 gave up"});
  REQUIRE(inboxes[1].waitFor(1));
  child.kill();
  std::atomic<int> gathered{0};
  onThreads(3, [&](int i) {
    gathered += controls[static_cast<std::size_t>(i)]->allGather(6, 1, upTo(3), i, "", kPatienceMs).ok() ? 1 : 0;
  });
  CHECK(gathered == 3);
  controls[2]->subscribe(5, upTo(3), inboxes[2].callback());
  REQUIRE(inboxes[2].waitFor(1));
  controls[0]->reportFailure(5, {koloAborted, 1, "again"});
  REQUIRE(inboxes[1].waitFor(2));
  CHECK(inboxes[1].all()[1].why.message() == "again");
  CHECK(inboxes[1].all().size() == 2);
  leaveAll(controls);
}

TEST_CASE("exchanges go on while hub after hub is killed", "[bootstrap][threads]") {
  Child maker("hub alone", 0, 4, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 4, hex(id)), one("rank", 1, 4, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 4, 2);
  Inbox inbox;
  controls[2]->subscribe(1, upTo(4), inbox.callback());
  std::atomic<bool> isOver{false};
  std::atomic<int> failed{0};
  std::atomic<std::uint64_t> done{0};
  std::thread exchanges([&] {
    for (std::uint64_t sequence = 1; !isOver; ++sequence) {
      onThreads(2, [&](int i) {
        const std::string mine = fmt::format("{} of {}", sequence, i);
        const ControlPtr& own = controls[static_cast<std::size_t>(i) + 2];
        const Blobs all = own->allGather(9, sequence, {2, 3}, i, mine, kPatienceMs);
        const bool isRight = all.ok() && all.value()[0] == fmt::format("{} of 0", sequence) &&
                             all.value()[1] == fmt::format("{} of 1", sequence);
        if (!isRight) ++failed;
      });
      ++done;
    }
  });
  const auto goOn = [&] {
    for (const std::uint64_t until = done + 20; done < until && failed == 0;) std::this_thread::sleep_for(1ms);
  };
  for (Child* const each : {&maker, &zero, &one}) {
    goOn();
    each->kill();
  }
  goOn();
  isOver = true;
  exchanges.join();
  CHECK(failed == 0);
  REQUIRE(inbox.waitFor(2));
  CHECK(inbox.all()[0].rank == 0);
  CHECK(inbox.all()[1].rank == 1);
  leaveAll({controls[2], controls[3]});
}

TEST_CASE("the end of hub after hub because of one death names that death", "[bootstrap]") {
  Child zero("hub", 0, 5, "");
  const koloUniqueId id = unhex(zero.line());
  Child one("rank", 1, 5, hex(id)), four("rank", 4, 5, hex(id));
  std::vector<ControlPtr> controls(5);
  onThreads(2, [&](int i) {
    if (Result<ControlPtr> joined = join(id, i + 2, 5, kPatienceMs); joined.ok())
      controls[static_cast<std::size_t>(i) + 2] = joined.take();
  });
  REQUIRE((controls[2] != nullptr && controls[3] != nullptr));
  Inbox inbox;
  controls[2]->subscribe(1, upTo(5), inbox.callback());
  const std::string cause = fmt::format("rank 4 (pid {} on ", four.pid());
  four.kill();
  REQUIRE(inbox.waitFor(1, kSoon));
  std::size_t ended = 1;
  for (Child* const hub : {&zero, &one}) {
    hub->kill();
    CHECK(exchangesDone(controls[2], controls[3], ended) == 2);  // by the next one
    REQUIRE(inbox.waitFor(++ended, kSoon));
    CHECK(contains(inbox.all().back().why.message(), cause));
  }
  leaveAll(controls);
}

TEST_CASE("a rank whose connection breaks while the hub lives is the one that is lost, and is no next hub",
          "[bootstrap][threads]") {
  Child maker("hub alone", 0, 4, "");
  const koloUniqueId id = unhex(maker.line());
  // Of the ranks here the one that is cut off may be the first in the list, which would have the next hub.
  Child last("rank", 3, 4, hex(id));
  std::vector<ControlPtr> controls(4);
  onThreads(3, [&](int i) {
    if (Result<ControlPtr> joined = join(id, i, 4, kPatienceMs); joined.ok())
      controls[static_cast<std::size_t>(i)] = joined.take();
  });
  Inbox inboxes[3];
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(controls[i] != nullptr);
    controls[i]->subscribe(1, upTo(4), inboxes[i].callback());
  }
  breakConnectionTo(contentsOf(id).port);
  for (Inbox& inbox : inboxes) REQUIRE(inbox.waitFor(1, kSoon));
  const int lost = inboxes[0].all()[0].rank;
  REQUIRE((lost >= 0 && lost < 3));
  std::vector<ControlPtr> others;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(inboxes[i].all()[0].rank == lost);
    if (static_cast<int>(i) != lost) others.push_back(controls[i]);
  }
  CHECK(contains(inboxes[lost].all()[0].why.message(), "has lost its connection to the process"));
  CHECK(contains(inboxes[lost].all()[0].why.message(), "which lives"));
  const ControlPtr& given = controls[static_cast<std::size_t>(lost)];
  CHECK_FALSE(given->allGather(9, 1, upTo(3), lost, "", kPatienceMs).ok());
  CHECK(exchangesDone(others[0], others[1], 2) == 2);
  maker.kill();
  CHECK(exchangesDone(others[0], others[1], 3) == 2);
  CHECK_FALSE(given->allGather(9, 4, upTo(3), lost, "", kPatienceMs).ok());
  for (Inbox& inbox : inboxes) CHECK(inbox.all().size() == 1);
  leaveAll(controls);
}

TEST_CASE("a process that is stopped when it is to have the next hub is waited for, and not taken for dead",
          "[bootstrap][threads]") {
  Child maker("hub alone", 0, 3, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 3, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  Inbox inbox;
  controls[1]->subscribe(1, upTo(3), inbox.callback());
  zero.stop();
  maker.kill();
  std::atomic<int> done{-1};
  std::thread exchange([&] { done = exchangesDone(controls[1], controls[2], 1); });
  std::this_thread::sleep_for(500ms);  // nothing follows from silence, however long
  CHECK(done == -1);
  REQUIRE(::kill(zero.pid(), SIGCONT) == 0);
  exchange.join();
  CHECK(done == 2);
  CHECK(inbox.all().empty());
  leaveAll(controls);
}

TEST_CASE("a process that stays stopped when it is to have the next hub holds nobody up for ever",
          "[bootstrap][threads][slow]") {
  Child maker("hub alone", 0, 3, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 3, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  zero.stop();
  maker.kill();
  CHECK(exchangesDone(controls[1], controls[2], 1) == 0);
  // They have given up, both: none of them goes on alone, also when it lives again.
  REQUIRE(::kill(zero.pid(), SIGCONT) == 0);
  CHECK(exchangesDone(controls[1], controls[2], 2) == 0);
  leaveAll(controls);
}

// The last hub's end of the connection to rank 0 lasts for a while longer than those to the others.
TEST_CASE("a process that answers and has not lost the last hub yet is waited for", "[bootstrap][threads][slow]") {
  Child maker("hub alone", 0, 3, "");
  const koloUniqueId id = unhex(maker.line());
  Child zero("rank", 0, 3, hex(id));
  const std::vector<ControlPtr> controls = joinAll(id, 3, 1);
  std::vector<Socket> kept = connectionsOf(maker.pid(), zero.pid());
  REQUIRE(!kept.empty());
  maker.kill();
  std::atomic<int> done{-1};
  std::thread exchange([&] { done = exchangesDone(controls[1], controls[2], 1); });
  std::this_thread::sleep_for(4s);  // nothing follows from an answer, either
  CHECK(done == -1);
  kept.clear();
  exchange.join();
  CHECK(done == 2);
  leaveAll(controls);
}

TEST_CASE("a result is kept until no end of the hub can take it away from a rank that has not read it", "[bootstrap]") {
  const IdContents id = contentsOf(newId());
  const auto socketToHub = [&] {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    return socket;
  };
  Socket narrow = socketToHub();
  const int few = 1;  // of which the kernel makes some thousand
  REQUIRE(::setsockopt(narrow.fd(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few) == 0);
  RawRank zero(socketToHub(), id.secret, 0), one(std::move(narrow), id.secret, 1);
  one.joins(2);
  zero.joins(2);
  REQUIRE(zero.hear(Frame::kWelcome).has_value());
  const std::string big(30 << 10, 'x');  // more than one's kernel takes, and less than the hub's does
  std::uint64_t sequence = 1;
  for (RawRank* const each : {&zero, &one}) each->asks(sequence, upTo(2), big, false);
  CHECK(zero.hearsResult() == big + big);
  CHECK(zero.asks(++sequence, {0}, "y", false).hearsResult() == "y");
  CHECK(zero.settled == 0);
  CHECK(one.hearsResult() == big + big);
  for (const auto until = Clock::now() + kSoon; zero.settled == 0 && Clock::now() < until;)
    CHECK(zero.asks(++sequence, {0}, "y", false).hearsResult() == "y");
  CHECK(zero.settled > 0);
}

TEST_CASE("results wait together for a rank that does not read, and are settled when it has", "[bootstrap]") {
  const IdContents id = contentsOf(newId());
  const auto socketToHub = [&] {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    return socket;
  };
  RawRank zero(socketToHub(), id.secret, 0), one(socketToHub(), id.secret, 1);
  one.joins(2);
  zero.joins(2);
  REQUIRE(zero.hear(Frame::kWelcome).has_value());
  constexpr std::uint64_t kMany = 150;
  const std::string big(60 << 10, 'x');
  for (std::uint64_t i = 1; i <= kMany; ++i) {
    one.asks(i, upTo(2), "", false);
    REQUIRE(zero.asks(i, upTo(2), big, false).hearsResult() == big);
  }
  CHECK(zero.settled < kMany / 2);
  for (std::uint64_t i = 1; i <= kMany; ++i) REQUIRE(one.hearsResult() == big);
  std::uint64_t sequence = kMany;
  for (const auto until = Clock::now() + kSoon; zero.settled < kMany && Clock::now() < until;)
    CHECK(zero.asks(++sequence, {0}, "y", false).hearsResult() == "y");
  CHECK(zero.settled >= kMany);
}

TEST_CASE("a rank that sends more blobs than it can wait with is cut off", "[bootstrap]") {
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  one.returns().isBack();
  zero.returns().isBack();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  const std::string big(kMaxBlobBytes, 'x');
  const std::uint64_t most = kMaxGatherBytesOfRank / kMaxBlobBytes;
  // Blobs of exchanges that are over do not count.
  for (std::uint64_t i = 1; i <= most + 2; ++i) REQUIRE(zero.asks(i, {0}, big, false).hearsResult() == big);
  for (std::uint64_t i = 1; i <= most; ++i) zero.asks(1000 + i, upTo(2), big, false);
  CHECK(zero.asks(1, {0}, "", false).hearsResult() == "");
  zero.asks(2000, upTo(2), big, false);
  CHECK(zero.hearsResult() == "closed");
}

TEST_CASE("hub after hub ends on one host or another, and the ranks that are left go on, down to the last",
          "[bootstrap]") {
  Child maker("hub alone", 0, 5, "", true);
  const std::string first = maker.line();
  if (first == "no place") {
    WARN("no namespaces of users can be made here");
    return;
  }
  const koloUniqueId id = unhex(first);
  Child zero("rank", 0, 5, hex(id), true), one("rank", 1, 5, hex(id)), two("rank", 2, 5, hex(id), true);
  const std::vector<ControlPtr> controls = joinAll(id, 5, 3);
  Inbox inbox;
  controls[4]->subscribe(1, upTo(5), inbox.callback());
  std::uint64_t sequence = 0;
  int dead = 0;
  for (Child* const each : {&maker, &zero, &one, &two}) {
    each->kill();
    CHECK(exchangesDone(controls[3], controls[4], ++sequence) == 2);
    if (each == &maker) continue;
    REQUIRE(inbox.waitFor(static_cast<std::size_t>(dead) + 1, kSoon));
    const Failure told = inbox.all().back();
    CHECK(told.rank == dead);
    CHECK(contains(told.why.message(), fmt::format("rank {} (pid ", dead++)));
  }
  leaveAll(controls);
  CHECK(inbox.all().size() == 3);
}

TEST_CASE("a rank of another host that has not returned is dead if its port is closed, or does not know it",
          "[bootstrap]") {
  const std::shared_ptr<Standby> other = openStandby();
  SilentPort closed;
  closed.close();
  const NextHub hub(Succession{4, {near(0), afar(1, closed.port), afar(2, other->port()), near(3)}, 0, false});
  RawRank zero(hub, 0), three(hub, 3);
  zero.returns().isBack();
  for (std::uint32_t dead = 0; dead < 2;) {
    const std::optional<std::string> deaths = zero.hear(Frame::kDeaths);
    REQUIRE(deaths.has_value());
    dead += Decoder(*deaths).number<std::uint32_t>();
  }
  CHECK(contains(zero.asks(1, {0, 1}, "x", false).hearsResult(), "rank 1 (pid 4711 on elsewhere) died"));
  three.returns().isBack();
  CHECK(three.hear(Frame::kDeaths).has_value());
}

TEST_CASE("a rank of another host whose port a process of another version has is dead", "[bootstrap]") {
  ServerHello hello;
  hello.protocol = kProtocol + 1;
  const PortTaker other(encode(hello));
  const NextHub hub(Succession{2, {near(0), afar(1, other.port)}, 0, false});
  RawRank zero(hub, 0);
  zero.returns().isBack();
  CHECK(zero.hear(Frame::kDeaths).has_value());
}

TEST_CASE("a rank of another host whose port another program has is voted out like one that is silent",
          "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const PortTaker other("");
  const NextHub hub(Succession{3, {near(0), near(1), afar(2, other.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns().isBack();
  one.returns().isBack();
  zero.votes(1);
  one.votes(1);
  CHECK(zero.hear(Frame::kDeaths).has_value());
}

TEST_CASE("a hub behind a silent standby answers nothing before more than half of the ranks are together",
          "[bootstrap]") {
  const SilentPort silent;
  const NextHub hub(Succession{4, {afar(0, silent.port), near(1), near(2), near(3)}, 1, true});
  RawRank one(hub, 1), two(hub, 2), three(hub, 3);
  one.returns().isBack().asks(1, {1, 2}, "a", false);
  two.returns().isBack().asks(1, {1, 2}, "b", false);
  std::this_thread::sleep_for(300ms);  // nothing comes, however long
  CHECK_FALSE(one.hasNews());
  CHECK_FALSE(two.hasNews());
  three.returns().isBack();
  for (RawRank* const each : {&one, &two, &three}) REQUIRE(each->hear(Frame::kReturned).has_value());
  CHECK(one.hearsResult() == "ab");
  CHECK(two.hearsResult() == "ab");
}

TEST_CASE("a rank that returns twice to a mute hub is still given up", "[bootstrap]") {
  const SilentPort silent;
  const NextHub hub(Succession{4, {afar(0, silent.port), near(1), near(2), near(3)}, 1, true});
  RawRank two(hub, 2);
  two.returns(1, 0).isBack();
  {
    RawRank first(hub, 1);
    first.returns();
    first.ends();
  }
  std::this_thread::sleep_for(300ms);  // until its end is noticed
  RawRank one(hub, 1), three(hub, 3);
  one.returns().isBack();
  three.returns().isBack();
  std::this_thread::sleep_for(300ms);  // nothing comes, however long: it does not count
  CHECK_FALSE(three.hasNews());
  RawRank zero = RawRank::fromAfar(hub, 0);
  zero.returns().isBack();
  CHECK(one.hear(Frame::kDeaths).has_value());
}

TEST_CASE("who counts is not taken from a rank that does not count itself", "[bootstrap]") {
  const SilentPort silent;
  const NextHub hub(Succession{4, {afar(0, silent.port), near(1), near(2), near(3)}, 1, true});
  RawRank one(hub, 1), two(hub, 2), three(hub, 3);
  one.returns().isBack();
  two.returns(-1, 0, {1}).isBack();
  std::this_thread::sleep_for(300ms);  // nothing comes, however long
  CHECK_FALSE(one.hasNews());
  three.returns().isBack();
  CHECK(one.hear(Frame::kReturned).has_value());
}

TEST_CASE("half of the ranks are enough with the first of them", "[bootstrap]") {
  const SilentPort silent;
  const NextHub hub(Succession{4, {near(0), near(1), afar(2, silent.port), afar(3, silent.port)}, 1, true});
  RawRank zero(hub, 0), one(hub, 1);
  one.returns().isBack();
  zero.returns().isBack();
  CHECK(one.hear(Frame::kReturned).has_value());
  CHECK(zero.hear(Frame::kReturned).has_value());
}

TEST_CASE("half of the ranks without the first of them give up, and say why", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const SilentPort silent;
  const bool isMute = GENERATE(true, false);
  const NextHub hub(Succession{4, {afar(0, silent.port), afar(1, silent.port), near(2), near(3)}, 2, isMute});
  RawRank two(hub, 2), three(hub, 3);
  two.returns().isBack();
  three.returns().isBack();
  for (RawRank* const each : {&two, &three}) {
    const std::optional<std::string> why = each->hear(Frame::kCutOff);
    REQUIRE(why.has_value());
    CHECK(contains(*why, "2 of 4 ranks (2-3) are still together"));
    CHECK(contains(*why, "have lost rank 0, rank 1"));
  }
}

TEST_CASE("a rank that has left is let go when the others are cut off, and these hear of it", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  const SilentPort silent;
  const NextHub hub(Succession{4, {afar(0, silent.port), afar(1, silent.port), near(2), near(3)}, 2, false});
  RawRank two(hub, 2), three(hub, 3);
  three.returns().isBack().tell(frame(Frame::kLeave).take());
  two.returns().isBack();
  const std::optional<std::string> why = two.hear(Frame::kCutOff);
  REQUIRE(why.has_value());
  CHECK(contains(*why, "1 of 4 ranks (2) are still together"));
  CHECK(contains(*why, "have lost rank 0, rank 1; these have left: 3"));
  CHECK(three.hear(Frame::kFarewell).has_value());
}

TEST_CASE("ranks that are cut off hear who has died, and who has left and did not return", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  const SilentPort silent;
  Neighbour dead = near(3), gone = near(4);
  dead.pid = gone.pid = endedPid();
  dead.standby = gone.standby = fmt::format("kolo-{}-{}-none", dead.pid, ::geteuid());
  const NextHub hub(
      Succession{6, {afar(0, silent.port), afar(1, silent.port), near(2), dead, gone, near(5)}, 2, false});
  RawRank two(hub, 2);
  RawRank five(hub, 5);
  two.returns(4).isBack();
  five.returns().isBack();
  const std::optional<std::string> why = two.hear(Frame::kCutOff);
  REQUIRE(why.has_value());
  CHECK(contains(*why, "2 of 6 ranks (2, 5) are still together"));
  CHECK(contains(*why, "have lost rank 0, rank 1; these have died: 3; these have left: 4"));
}

// The first hub may go on without it, and count fewer ranks.
TEST_CASE("a rank that had left the first hub is not one of more than half with the next", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  const SilentPort silent;
  const NextHub hub(Succession{5, {afar(0, silent.port), afar(1, silent.port), near(2), near(3), near(4)}, 2, true});
  RawRank two(hub, 2), three(hub, 3), four(hub, 4);
  four.returns(-1, 0, {}, true).isBack().tell(frame(Frame::kLeave).take());
  for (RawRank* const each : {&two, &three}) each->returns().isBack();
  CHECK(agreeUntil({&two, &three}, Frame::kCutOff));
}

TEST_CASE("ranks that an earlier hub had voted out are dead for the next one without another vote", "[bootstrap]") {
  const SilentPort silent;
  SilentPort closed;
  closed.close();
  const NextHub hub(Succession{4, {afar(0, silent.port), afar(1, closed.port), near(2), near(3)}, 2, false});
  RawRank two(hub, 2), three(hub, 3);
  for (RawRank* const each : {&two, &three}) each->returns(0, 0, {1, 2, 3}).isBack();
  for (RawRank* const each : {&two, &three}) {
    std::set<int> dead;
    while (dead.size() < 2) {
      const std::optional<std::string> told = each->hear(Frame::kDeaths);
      REQUIRE(told.has_value());
      Decoder decoder(*told);
      for (auto count = decoder.number<std::uint32_t>(); count > 0; --count) {
        dead.insert(decoder.number<std::int32_t>());
        (void)decoder.text();
      }
    }
    CHECK(dead == std::set<int>{0, 1});
  }
}

TEST_CASE("a rank that a vote has named is given up though it returns before the vote is over", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const SilentPort silent;
  const NextHub hub(Succession{3, {afar(0, silent.port), near(1), near(2)}, 1, false});
  RawRank one(hub, 1), two(hub, 2);
  one.returns().isBack();
  two.returns().isBack();
  one.votes(1);
  RawRank zero = RawRank::fromAfar(hub, 0);
  zero.returns().isBack();
  const std::optional<std::string> told = zero.hear(Frame::kDeaths);
  REQUIRE(told.has_value());
  Decoder decoder(*told);
  CHECK(decoder.number<std::uint32_t>() == 1);
  CHECK(decoder.number<std::int32_t>() == 0);
}

// The other side of the partition has them, and is more than half.
TEST_CASE("a rank that lives and is given up counts until a vote has taken it for dead", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const bool isByVote = GENERATE(true, false);
  const SilentPort silent;
  const NextHub hub(
      Succession{5, {near(0), near(1), afar(2, silent.port), afar(3, silent.port), afar(4, silent.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1), two = RawRank::fromAfar(hub, 2), three = RawRank::fromAfar(hub, 3),
                                     four = RawRank::fromAfar(hub, 4);
  for (RawRank* const each : {&zero, &three, &four}) each->returns().isBack();
  if (isByVote) {
    one.returns().isBack();
    zero.votes(1);
    one.votes(1);
    two.returns().isBack();
  } else {
    two.returns().isBack();
    one.returns(2, 0).isBack();
  }
  REQUIRE(agreeUntil({&zero, &one}, Frame::kDeaths));
  std::this_thread::sleep_for(500ms);  // until what follows from that has followed
  for (RawRank* const each : {&two, &three, &four}) each->ends();
  CHECK(agreeUntil({&zero, &one}, Frame::kCutOff));
}

// Others may have lost this hub already, and have had its vote elsewhere. This hub notices later.
TEST_CASE("a rank that has ended counts until a vote has named it", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const SilentPort silent;
  SilentPort ending;
  const NextHub hub(
      Succession{5, {near(0), near(1), afar(2, silent.port), afar(3, silent.port), afar(4, ending.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1), two = RawRank::fromAfar(hub, 2), three = RawRank::fromAfar(hub, 3),
                                     four = RawRank::fromAfar(hub, 4);
  for (RawRank* const each : {&zero, &one, &two, &three, &four}) each->returns().isBack();
  REQUIRE(four.hear(Frame::kReturned).has_value());
  ending.close();
  four.ends();
  REQUIRE(agreeUntil({&zero, &one}, Frame::kDeaths));
  std::this_thread::sleep_for(500ms);  // until what follows from that has followed
  two.ends();
  three.ends();
  CHECK(agreeUntil({&zero, &one}, Frame::kCutOff));
}

TEST_CASE("a rank that was told that it counts as dead says so to the next hub", "[bootstrap]") {
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  one.returns().isBack();
  zero.returns(0, 0).isBack();
  for (RawRank* const each : {&zero, &one}) CHECK(each->hear(Frame::kDeaths).has_value());
}

TEST_CASE("a rank that returns is told who counts", "[bootstrap]") {
  SilentPort closed;
  closed.close();
  const NextHub hub(Succession{3, {near(0), near(1), afar(2, closed.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns(-1, 0, {0, 1}).isBack();
  one.returns().isBack();
  const std::optional<std::string> counting = one.hear(Frame::kCounting);
  REQUIRE(counting.has_value());
  CHECK(Decoder(*counting).ranks(3) == upTo(2));
}

TEST_CASE("an answer to a vote holds though one that it names returns, and nobody is asked twice",
          "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const SilentPort silent;
  const NextHub hub(Succession{5, {near(0), near(1), near(2), afar(3, silent.port), afar(4, silent.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  for (RawRank* const each : {&zero, &one, &two}) each->returns().isBack();
  zero.votes(2);
  RawRank four = RawRank::fromAfar(hub, 4);
  four.returns().isBack();
  REQUIRE(zero.hear(Frame::kDeaths).has_value());
  std::this_thread::sleep_for(3s);  // nothing comes, however long
  CHECK_FALSE(zero.hasNews());
  one.votes(2);
  two.votes(2);
  const std::optional<std::string> told = zero.hear(Frame::kDeaths);
  REQUIRE(told.has_value());
  Decoder decoder(*told);
  CHECK(decoder.number<std::uint32_t>() == 1);
  CHECK(decoder.number<std::int32_t>() == 3);
}

TEST_CASE("of ranks that leave one after the other, who counts is not told each time", "[bootstrap]") {
  constexpr int kRanks = 20, kStay = 11;
  const SilentPort silent;
  Succession succession{kRanks, {near(0)}, 0, false};
  for (int rank = 1; rank < kRanks; ++rank) succession.neighbours.push_back(afar(rank, silent.port));
  const NextHub hub(succession);
  std::vector<std::unique_ptr<RawRank>> ranks;
  std::vector<RawRank*> stay;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 0) ranks.push_back(std::make_unique<RawRank>(hub, 0));
    else ranks.push_back(std::make_unique<RawRank>(RawRank::fromAfar(hub, rank)));
    ranks.back()->returns().isBack();
    if (rank < kStay) stay.push_back(ranks.back().get());
  }
  for (const auto& each : ranks) REQUIRE(each->hear(Frame::kReturned).has_value());
  const auto since = Clock::now();
  for (int rank = kStay; rank < kRanks; ++rank) {
    RawRank& leaver = *ranks[static_cast<std::size_t>(rank)];
    REQUIRE(leaver.tell(frame(Frame::kLeave).take()).hear(Frame::kFarewell).has_value());
    REQUIRE(agreeUntil(stay, Frame::kLeft));
  }
  while (stay.front()->counting.empty() || stay.front()->counting.back() != upTo(kStay))
    REQUIRE(agreeUntil(stay, Frame::kCounting));
  const auto periods = static_cast<std::size_t>((Clock::now() - since) / 200ms);
  CHECK(stay.front()->counting.size() <= periods + 2);
}

TEST_CASE("all ranks that do not answer are looked at, however many there are", "[bootstrap]") {
  constexpr int kBusy = 300;
  const PortTaker other("");
  SilentPort closed;
  closed.close();
  Succession succession{kBusy + 2, {near(0)}, 0, false};
  for (int rank = 1; rank <= kBusy; ++rank) succession.neighbours.push_back(afar(rank, other.port));
  succession.neighbours.push_back(afar(kBusy + 1, closed.port));
  const NextHub hub(succession);
  RawRank zero(hub, 0);
  zero.returns().isBack();
  const std::optional<std::string> told = zero.hear(Frame::kDeaths);
  REQUIRE(told.has_value());
  Decoder decoder(*told);
  CHECK(decoder.number<std::uint32_t>() == 1);
  CHECK(decoder.number<std::int32_t>() == kBusy + 1);
}

TEST_CASE("a vote that names many ranks tells of each in few bytes", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  constexpr int kSilent = 30;
  const SilentPort silent;
  Succession succession{2 * kSilent + 1, {}, 0, false};
  for (int rank = 0; rank < succession.ranks; ++rank)
    succession.neighbours.push_back(rank <= kSilent ? near(rank) : afar(rank, silent.port));
  const NextHub hub(succession);
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int rank = 0; rank <= kSilent; ++rank) {
    ranks.push_back(std::make_unique<RawRank>(hub, rank));
    ranks.back()->returns().isBack();
  }
  std::optional<std::string> asked;
  std::size_t named = 0;
  while (named < kSilent) {
    REQUIRE((asked = ranks.front()->hear(Frame::kVote)).has_value());
    Decoder words(*asked);
    (void)words.number<std::uint64_t>();
    named = words.ranks(kMaxRanks).size();
  }
  CHECK(asked->size() < 40 * kSilent);
}

TEST_CASE("a rank of another host that does not return is voted on though its standby seems open",
          "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  ServerHello hello;
  hello.reply = Reply::kNoHub;  // which somebody else may say that has the port now
  const PortTaker other(encode(hello));
  const NextHub hub(Succession{3, {near(0), near(1), afar(2, other.port)}, 0, false});
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns().isBack();
  one.returns().isBack();
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  std::this_thread::sleep_for(12s);  // it may be about to return
  CHECK_FALSE(zero.hasNews());
  zero.votes(1);
  one.votes(1);
  CHECK(zero.hear(Frame::kDeaths).has_value());
}

TEST_CASE("a rank whose host cannot be reached for a moment is not silent yet", "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("1000")}});
  Neighbour unreachable = afar(1, 1);
  unreachable.address = "255.255.255.255";  // ENETUNREACH at once
  const NextHub hub(Succession{2, {near(0), unreachable}, 0, false});
  RawRank zero(hub, 0), one = RawRank::fromAfar(hub, 1);
  zero.returns().isBack();
  one.returns().isBack();
  REQUIRE(one.hear(Frame::kReturned).has_value());
  one.ends();
  const auto since = Clock::now();
  zero.votes(1);
  CHECK(Clock::now() - since > 3s);
  CHECK(zero.hear(Frame::kDeaths).has_value());
}

TEST_CASE("ranks that ended before a host fell silent do not count, and those that end afterwards do", "[bootstrap]") {
  const SilentPort silent;
  const bool isBefore = GENERATE(true, false);
  const NextHub hub(Succession{5, {near(0), near(1), near(2), afar(3, silent.port), afar(4, silent.port)}, 1, true});
  RawRank one(hub, 1), two(hub, 2);
  const std::vector<int> counting = isBefore ? std::vector<int>{1, 2, 4} : upTo(5);
  one.returns(-1, 0, counting);
  two.returns(-1, 0, counting);
  if (!isBefore) {
    std::this_thread::sleep_for(300ms);  // nothing comes, however long
    CHECK_FALSE(one.hasNews());
    RawRank zero(hub, 0);
    zero.returns();
    REQUIRE(zero.hear(Frame::kReturned).has_value());
  }
  CHECK(one.hear(Frame::kReturned).has_value());
}

TEST_CASE("a rank of another host whose connection ends is dead if its standby is closed, or more than half are left",
          "[bootstrap][slow]") {
  const test::SettingsScope soon({{"KOLO_SILENCE_MS", std::string("3000")}});
  const IdContents id = contentsOf(newId());
  const auto connects = [&](int rank) {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    return std::make_unique<RawRank>(std::move(socket), id.secret, rank);
  };
  std::vector<std::shared_ptr<Standby>> standbys;
  std::vector<std::unique_ptr<RawRank>> ranks;
  const auto joins = [&](int count) {
    for (int rank = 0; rank < count; ++rank) {
      standbys.push_back(openStandby());
      ranks.push_back(connects(rank));
      ranks.back()->joinsFromAfar(count, *standbys.back());
    }
    for (const auto& each : ranks) REQUIRE(each->hear(Frame::kWelcome).has_value());
  };
  const auto hearsDeathOf = [&](RawRank& rank, int dead) {
    const std::optional<std::string> told = rank.hear(Frame::kDeaths);
    REQUIRE(told.has_value());
    Decoder decoder(*told);
    CHECK(decoder.number<std::uint32_t>() == 1);
    CHECK(decoder.number<std::int32_t>() == dead);
  };
  SECTION("closed, of two") {
    joins(2);
    standbys[0] = nullptr;
    ranks[0]->ends();
    hearsDeathOf(*ranks[1], 0);
  }
  SECTION("closed, of three") {
    joins(3);
    standbys[0] = nullptr;
    ranks[0]->ends();
    for (const std::size_t rank : {1, 2}) hearsDeathOf(*ranks[rank], 0);
    for (const std::size_t rank : {1, 2}) ranks[rank]->votes(1);
    const std::optional<std::string> counting = ranks[1]->hear(Frame::kCounting);
    REQUIRE(counting.has_value());
    CHECK(Decoder(*counting).ranks(3) == std::vector<int>{1, 2});
  }
  SECTION("open, of three") {
    joins(3);
    ranks[0]->ends();
    ranks[1]->votes(1);
    std::this_thread::sleep_for(300ms);  // nothing follows, however long
    CHECK_FALSE(ranks[1]->hasNews());
    ranks[2]->votes(1);
    hearsDeathOf(*ranks[1], 0);
    hearsDeathOf(*ranks[2], 0);
    for (const int rank : {1, 2}) {
      const std::optional<std::string> counting = ranks[static_cast<std::size_t>(rank)]->hear(Frame::kCounting);
      REQUIRE(counting.has_value());
      CHECK(Decoder(*counting).ranks(3) == std::vector<int>{1, 2});
    }
  }
  SECTION("open, and the first of two is left") {
    joins(2);
    ranks[1]->ends();
    ranks[0]->votes(1);
    hearsDeathOf(*ranks[0], 1);
  }
  SECTION("closed, and it has been asked something meanwhile") {
    joins(2);
    ranks[0]->ends();
    std::this_thread::sleep_for(300ms);  // until the hub has noticed
    ranks[1]->tell(frame(Frame::kAsk, std::uint64_t{5}, std::uint64_t{1}, std::int32_t{0}, "how are you").take());
    standbys[0] = nullptr;
    hearsDeathOf(*ranks[1], 0);
    CHECK(ranks[1]->hear(Frame::kAnswered).has_value());
  }
  SECTION("open, and results that it may not have got are kept") {
    joins(3);
    for (const auto& each : ranks) each->asks(1, upTo(3), "x", false);
    for (const std::size_t rank : {1, 2}) REQUIRE(ranks[rank]->hearsResult() == "xxx");
    ranks[0]->ends();
    std::this_thread::sleep_for(300ms);  // until the hub has noticed
    for (const std::size_t rank : {1, 2}) ranks[rank]->asks(2, {1, 2}, "y", false);
    for (const std::size_t rank : {1, 2}) REQUIRE(ranks[rank]->hearsResult() == "yy");
    CHECK(ranks[1]->settled == 0);
  }
  SECTION("open for a moment, and the second of two is left") {
    joins(2);
    ranks[0]->ends();
    std::this_thread::sleep_for(300ms);  // until the hub has looked
    standbys[0] = nullptr;
    hearsDeathOf(*ranks[1], 0);
  }
  SECTION("open, and the first of two is left, after others have left in good order") {
    joins(5);
    for (const std::size_t rank : {2, 3, 4}) {
      ranks[rank]->tell(frame(Frame::kLeave).take());
      REQUIRE(ranks[rank]->hear(Frame::kFarewell).has_value());
    }
    ranks[1]->ends();
    ranks[0]->votes(1);
    hearsDeathOf(*ranks[0], 1);
  }
  SECTION("open, and the second of two is left") {
    joins(2);
    ranks[0]->ends();
    CHECK(ranks[1]->hear(Frame::kCutOff).has_value());
  }
}

namespace {

// What ranks of other hosts are told of the first hub, which is in this process.
struct FirstHub {
  explicit FirstHub(int count) : ranks(count), id(contentsOf(newId())) {
    std::vector<std::string> heard(2);
    for (int rank = 0; rank < count; ++rank) {
      standbys.push_back(openStandby());
      members.push_back(std::make_unique<RawRank>(connect(), id.secret, rank));
      members.back()->joinsFromAfar(count, *standbys.back());
    }
    for (const auto& each : members) {
      for (const Frame kind : {Frame::kNeighbours, Frame::kWelcome}) {
        const std::optional<std::string> told = each->hear(kind);
        REQUIRE(told.has_value());
        heard[kind == Frame::kWelcome ? 1 : 0] = *told;
      }
    }
    Decoder neighbours(heard[0]), welcome(heard[1]);
    std::vector<std::string> texts(static_cast<std::size_t>(neighbours.number<std::int32_t>()) + 1);
    REQUIRE(readTexts(neighbours, texts, kMaxNeighbourBytes));
    Decoder own(texts[0]);
    (void)own.number<std::uint64_t>();
    (void)own.text();
    (void)own.text();
    (void)own.number<std::uint16_t>();
    (void)own.number<std::uint32_t>();
    name = own.text();
    (void)welcome.number<std::uint32_t>();
    (void)welcome.text();
    const std::string_view key = welcome.raw(jobKey.size());
    std::copy(key.begin(), key.end(), jobKey.begin());
  }
  Socket connect() const {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    return socket;
  }
  // A rank that has lost its connection, and knocks at the standby of the hub.
  RawRank returns(int rank) const { return {connect(), standbySecret(jobKey, name), rank, ranks}; }
  bool isOpen() const {
    int errnum = 0;
    (void)kolo::bootstrap::knock(name, errnum);
    return errnum == 0;
  }

  const int ranks;
  const IdContents id;
  std::vector<std::shared_ptr<Standby>> standbys;
  std::vector<std::unique_ptr<RawRank>> members;
  std::string name;
  Secret jobKey{};
};

}  // namespace

TEST_CASE("the first hub ends for a rank that has lost its connection alone, and says that its process lives",
          "[bootstrap]") {
  FirstHub hub(3);
  const bool hasNoticed = GENERATE(true, false);
  if (hasNoticed) hub.members[2]->ends();
  REQUIRE(hub.isOpen());
  RawRank two = hub.returns(2);
  two.returns();
  for (const std::size_t rank : {0, 1}) {
    REQUIRE(hub.members[rank]->hear(Frame::kHubEnds).has_value());
    CHECK_FALSE(hub.members[rank]->hear(Frame::kFarewell).has_value());
  }
  CHECK_FALSE(two.hear(Frame::kReturned).has_value());
  const auto until = Clock::now() + kSoon;
  while (hub.isOpen() && Clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK_FALSE(hub.isOpen());
}

TEST_CASE("the first hub ends for nobody who has left, and for no stranger", "[bootstrap][lies]") {
  FirstHub hub(3);
  SECTION("one that has left") {
    hub.members[2]->tell(frame(Frame::kLeave).take());
    REQUIRE(hub.members[2]->hear(Frame::kFarewell).has_value());
    CHECK_FALSE(hub.returns(2).returns().hear(Frame::kReturned).has_value());
  }
  SECTION("one that is no rank") { CHECK_FALSE(hub.returns(3).returns().hear(Frame::kReturned).has_value()); }
  SECTION("one who knows the job's secret, and not its key") {
    RawRank stranger(hub.connect(), hub.id.secret, 2, 3);
    CHECK_FALSE(stranger.returns().hear(Frame::kReturned).has_value());
  }
  CHECK(hub.isOpen());
  for (const auto& each : {&hub.members[0], &hub.members[1]}) (*each)->asks(1, {0, 1}, "x", false);
  for (const auto& each : {&hub.members[0], &hub.members[1]}) CHECK((*each)->hearsResult() == "xx");
}

TEST_CASE("a hub has a successor where all know how to find out whether a rank lives", "[bootstrap]") {
  struct Case {
    const char* what;
    const char* interface;  // KOLO_INTERFACE of the hub's process
    std::string address, reached;
    std::uint64_t stack;
    bool isGiven;
    bool isFollowed;
  };
  const std::uint64_t here = stackIdentity();
  const auto test = GENERATE_COPY(
      Case{"within the host", "", "127.0.0.1", "127.0.0.1", here, false, true},
      Case{"at no address", "", "", "", here, false, true},
      Case{"at an address that the hub does not see", "", "10.9.9.9", "", here, false, false},
      Case{"with the hub at an address that it does not see", "", "127.0.0.1", "10.9.9.9", here, false, false},
      Case{"with a setting that names no address", "any", "10.9.9.9", "", here, false, false},
      Case{"with the hub's address as the hub's user has said, but not the rank's", "127.0.0.1", "10.9.9.9", "", here,
           false, false},
      Case{"as the rank's user has said", "", "10.9.9.9", "", here, true, true},
      Case{"as the rank's user has said, but with the hub at another address", "", "10.9.9.9", "10.8.8.8", here, true,
           false},
      Case{"through a tunnel", "", "", "", here + 1, false, false});
  INFO(test.what);
  const test::SettingsScope chosen({{"KOLO_INTERFACE", std::string(test.interface)}});
  const IdContents id = contentsOf(newId());
  const std::shared_ptr<Standby> standby = openStandby();
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    int errnum = 0;
    Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    ranks.push_back(std::make_unique<RawRank>(std::move(socket), id.secret, rank));
    ranks.back()->tell(rawJoin(rank, 2, KOLO_VERSION_CODE, 4711, standby->name(), test.address, standby->port(),
                               test.reached, test.stack, test.isGiven));
  }
  for (const auto& each : ranks) CHECK(each->hearsOfStandbys() == test.isFollowed);
}

TEST_CASE("a rank that says too much of its standby is turned away", "[bootstrap]") {
  const IdContents id = contentsOf(newId());
  int errnum = 0;
  Socket socket = connectTo(kLoopback, id.port, Clock::now() + kSoon, errnum);
  REQUIRE(errnum == 0);
  RawRank rank(std::move(socket), id.secret, 0);
  const std::string longest(kMaxNameBytes + 1, 'x');
  SECTION("its name") { rank.tell(rawJoin(0, 1, KOLO_VERSION_CODE, 4711, longest)); }
  SECTION("the hub's address") { rank.tell(rawJoin(0, 1, KOLO_VERSION_CODE, 4711, "", "", 0, longest)); }
  CHECK_FALSE(rank.hear(Frame::kWelcome).has_value());
}

// Sockets of this process that other hosts may connect to.
int openToAll() {
  int count = 0;
  DIR* const files = ::opendir("/proc/self/fd");
  REQUIRE(files != nullptr);
  while (const dirent* const each = ::readdir(files)) {
    const int fd = std::atoi(each->d_name);
    int isListening = 0;
    socklen_t bytes = sizeof isListening;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &bytes) != 0 || isListening == 0) continue;
    sockaddr_storage storage{};
    bytes = sizeof storage;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) continue;
    const auto at = network::addressOf(reinterpret_cast<const sockaddr*>(&storage));
    count += at.has_value() && !at->isLoopback() ? 1 : 0;
  }
  ::closedir(files);
  return count;
}

TEST_CASE("a job that no other host reaches opens no port to others, wherever its ranks are", "[bootstrap]") {
  const int before = openToAll();
  const Result<koloUniqueId> id = createUniqueId(true);
  REQUIRE(id.ok());
  const IdContents contents = contentsOf(id.value());
  int errnum = 0;
  std::vector<std::unique_ptr<RawRank>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Socket socket = connectTo(kLoopback, contents.port, Clock::now() + kSoon, errnum);
    REQUIRE(errnum == 0);
    ranks.push_back(std::make_unique<RawRank>(std::move(socket), contents.secret, rank));
    ranks.back()->tell(rawJoin(rank, 2, KOLO_VERSION_CODE, 4711, "nobody's"));
  }
  for (const auto& each : ranks) CHECK_FALSE(each->hearsOfStandbys());
  CHECK(openToAll() <= before);  // an earlier test's hub may end meanwhile
}

TEST_CASE("a rank's standby takes no port that the rank's data needs", "[bootstrap]") {
  Reactor& reactor = *Reactor::get().value();
  const int first = freePorts(2);
  const auto opens = [&](int count) {
    const test::SettingsScope range({{"KOLO_PORT_RANGE", fmt::format("{}-{}", first, first + count - 1)},
                                     {"KOLO_INTERFACE", "127.0.0.77"}});  // where no other test listens
    Standby::Opened made;
    REQUIRE(reactor.call([&] { made = Standby::open(reactor, Standby::Reach::kEverywhereOfRank); }));
    REQUIRE(made.standby != nullptr);
    return made;
  };
  SECTION("one port") {
    const Standby::Opened made = opens(1);
    CHECK(made.standby->port() == 0);
    CHECK(contains(made.lack, "KOLO_PORT_RANGE"));
    CHECK(isFree(first));
  }
  SECTION("two ports") {
    const Standby::Opened made = opens(2);
    CHECK(made.standby->port() != 0);
    CHECK((!isFree(first) && !isFree(first + 1)));
    REQUIRE(reactor.call([&] { made.standby->settle(true); }));
    CHECK(isFree(first) != isFree(first + 1));
  }
}
