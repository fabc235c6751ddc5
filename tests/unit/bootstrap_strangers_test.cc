// The hub's port is open to anybody; only those who hold the job's secret matter.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "bootstrap/member_link.h"
#include "bootstrap/reactor.h"
#include "bootstrap_child.h"
#include "support/deadline.h"
#include "support/seed.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

// A socket to the hub's port, of somebody who does not follow the protocol.
Socket knock(const IdContents& contents) {
  int errnum = 0;
  Socket socket = connectTo(kLoopback, contents.port, Clock::now() + 5s, errnum);
  REQUIRE(errnum == 0);
  return socket;
}

// What anybody can say who has heard a rank of the job.
ClientHello helloFor(const IdContents& contents) {
  ClientHello hello;
  hello.tag = tagOf(contents.secret);
  hello.share = KeyExchange(contents.secret).share();
  return hello;
}

// Reads until the other end closes (true) or the limit passes.
bool closedWithin(const Socket& socket, std::chrono::milliseconds limit, std::string* received = nullptr) {
  for (const auto deadline = Clock::now() + limit; Clock::now() < deadline;) {
    char buffer[4096];
    const ssize_t got = ::recv(socket.fd(), buffer, sizeof buffer, 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
    if (got > 0 && received != nullptr) received->append(buffer, static_cast<std::size_t>(got));
    if (got < 0) std::this_thread::sleep_for(2ms);
  }
  return false;
}

}  // namespace

TEST_CASE("strangers do not disturb a job", "[bootstrap]") {
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  Result<ControlPtr> zero = error(koloInternalError, "unset");
  std::thread first([&] { zero = join(id, 0, 2, kPatienceMs); });

  SECTION("garbage") {
    const Socket socket = knock(contents);
    push(socket, std::string(5000, 'G'));
    CHECK(closedWithin(socket, 2000ms));
  }
  SECTION("a port scan") {
    for (int i = 0; i < 200; ++i) (void)knock(contents);
  }
  SECTION("silence is ended after five seconds") {
    const auto since = Clock::now();
    const Socket silent = knock(contents);
    const Socket half = knock(contents);
    push(half, encode(ClientHello()).substr(0, 20));
    CHECK(closedWithin(silent, 7000ms));
    CHECK(Clock::now() - since > 4000ms);
    CHECK(closedWithin(half, 2000ms));
  }
  SECTION("a wrong secret is refused") {
    IdContents wrong = contents;
    wrong.secret.back() ^= 1;
    CHECK(join(encodeId(wrong), 1, 2, 1000).status().code() == koloUnreachable);
    const ClientHello hello = helloFor(contents);
    const Socket socket = knock(contents);
    push(socket, encode(hello));
    push(socket, std::string(Session::kProofBytes, '\0'));
    std::string answer;
    CHECK(closedWithin(socket, 2000ms, &answer));
    CHECK(answer.substr(sizeof(ServerHello)) == Session::refusal());
  }
  SECTION("a replayed handshake is refused") {
    const KeyExchange exchange(contents.secret);
    ClientHello hello = helloFor(contents);
    hello.share = exchange.share();
    const auto shake = [&](std::string proof, std::string& answer) {
      const Socket socket = knock(contents);
      push(socket, encode(hello));
      while (answer.size() < sizeof(ServerHello)) {
        char byte = 0;
        if (::recv(socket.fd(), &byte, 1, 0) == 1) answer.push_back(byte);
      }
      ServerHello theirs;
      REQUIRE(decode(answer, theirs));
      Session session(Session::Side::kClient, exchange, theirs.share, encode(hello), answer);
      if (proof.empty()) proof = session.prove();
      push(socket, proof);
      std::string reply;
      while (reply.size() < Session::kProofBytes) {
        char byte = 0;
        if (::recv(socket.fd(), &byte, 1, 0) == 1) reply.push_back(byte);
      }
      return std::pair(proof, session.check(reply));
    };
    std::string serverHello;
    const auto [proof, verdict] = shake("", serverHello);
    CHECK(verdict == Reply::kOk);
    std::string another;
    CHECK(shake(proof, another).second == Reply::kWrongSecret);
  }
  SECTION("half a frame, and a frame of four gigabytes, from one who knows the secret") {
    Result<Dialled> half = dial(contents, Clock::now() + 5s);
    Result<Dialled> huge = dial(contents, Clock::now() + 5s);
    REQUIRE(half.ok());
    REQUIRE(huge.ok());
    push(half.value().socket, std::string("\x40\0\0\0abc", 7));
    push(huge.value().socket, std::string("\xff\xff\xff\xff", 4));
    CHECK(closedWithin(huge.value().socket, 2000ms));
    half.value().socket.close();
  }
  SECTION("an authentic frame that makes no sense") {
    Result<Dialled> raw = dial(contents, Clock::now() + 5s);
    REQUIRE(raw.ok());
    std::string bytes;
    const bool isNameTooLong = GENERATE(false, true);
    raw.value().session.seal(isNameTooLong ? rawJoin(1, 2, KOLO_VERSION_CODE, placeIdentity(), std::string(101, 'x'))
                                           : rawJoin(7, 2, KOLO_VERSION_CODE),
                             bytes);
    push(raw.value().socket, bytes);
    CHECK(closedWithin(raw.value().socket, 2000ms));
  }

  Result<ControlPtr> one = join(id, 1, 2, kPatienceMs);
  first.join();
  REQUIRE(zero.ok());
  REQUIRE(one.ok());
  leaveAll({zero.value(), one.value()});
}

namespace {

// A hub that says what it wants to one rank.
class LyingHub {
 public:
  LyingHub() {
    REQUIRE(initialiseCrypto().ok());
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
    socket_ = Socket(ends[0]);
    Session theirs(Session::Side::kClient, ofRank_, ofHub_.share(), "client", "server");
    REQUIRE(session_.check(theirs.prove()) == Reply::kOk);
    REQUIRE(theirs.check(session_.prove()) == Reply::kOk);
    REQUIRE(reactor_.call([&] { link->start(Socket(ends[1]), theirs); }));
  }
  ~LyingHub() {
    (void)reactor_.call([&] { link->close(); });
  }
  void tell(std::string_view plain) {
    std::string bytes;
    session_.seal(plain, bytes);
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t now = ::send(socket_.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno != EAGAIN) return;  // the rank has given this hub up
      sent += now > 0 ? static_cast<std::size_t>(now) : 0;
    }
  }
  template <class Step>
  void onReactor(const Step& step) {
    REQUIRE(reactor_.call(step));
  }

 private:
  Reactor& reactor_ = *Reactor::get().value();
  Socket socket_;
  const KeyExchange ofRank_{Secret{}}, ofHub_{Secret{}};
  Session session_{Session::Side::kHub, ofHub_, ofRank_.share(), "client", "server"};

 public:
  const std::shared_ptr<MemberLink> link = std::make_shared<MemberLink>(reactor_, 1, Secret{}, nullptr);
};

// Fields at random, as many as any frame has, and often small numbers.
std::string randomFrame(std::mt19937_64& random, Frame first, std::uint64_t kinds) {
  Encoder encoder = frame(static_cast<Frame>(static_cast<std::uint64_t>(first) + random() % kinds));
  for (std::uint64_t fields = random() % 8; fields > 0; --fields) {
    const std::uint64_t number = random() % 2 == 0 ? random() % 4 : random();
    switch (random() % 4) {
      case 0: encoder.number(number); break;
      case 1: encoder.number(static_cast<std::uint32_t>(number)); break;
      case 2: encoder.number(static_cast<std::int32_t>(number)); break;
      default: encoder.text(std::string(random() % 50, 'x')); break;
    }
  }
  return encoder.take();
}

}  // namespace

TEST_CASE("an answer is taken from the rank alone that was asked", "[bootstrap][lies]") {
  LyingHub hub;
  const auto answer = std::make_shared<PendingAnswer>();
  hub.onReactor([&] { hub.link->ask(5, 3, "news", answer); });
  for (const auto& [rank, text] : {std::pair(2, "lies"), std::pair(-1, "lies"), std::pair(3, "news of 3")})
    hub.tell(frame(Frame::kAnswered).number(std::uint64_t{1}).number(std::int32_t{rank}).text(text).take());
  const std::string* const told = answer->wait(kPatienceMs);
  REQUIRE(told != nullptr);
  CHECK(*told == "news of 3");
}

TEST_CASE("frames of a hub altered at random end the connection, and nothing else", "[bootstrap][lies][fuzz]") {
  for (kolo::test::Rounds rounds(955); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    LyingHub hub;
    const auto exchange = std::make_shared<Exchange>();
    const auto answer = std::make_shared<PendingAnswer>();
    exchange->blobs.resize(3);
    hub.onReactor([&] {
      hub.link->gather({1, 1}, exchange);
      hub.link->ask(1, 1, "news", answer);
    });
    for (int i = 0; i < 50; ++i) hub.tell(randomFrame(random, Frame::kWelcome, 21));
  }
}

// A rank that holds the secret sends frames of its own. The worst that comes of them is its own end.
TEST_CASE("frames altered at random end their sender's connection, and nothing else", "[bootstrap][lies][fuzz]") {
  for (kolo::test::Rounds rounds(953); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    const koloUniqueId id = newId();
    Result<Dialled> liar = dial(contentsOf(id), Clock::now() + 20s);
    REQUIRE(liar.ok());
    const auto tell = [&](std::string_view plain) {
      std::string bytes;
      liar.value().session.seal(plain, bytes);
      (void)::send(liar.value().socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    };
    tell(rawJoin(2, 3, KOLO_VERSION_CODE));
    std::array<ControlPtr, 2> honest;
    onThreads(2, [&](int rank) {
      Result<ControlPtr> joined = join(id, rank, 3, kPatienceMs);
      if (joined.ok()) honest[static_cast<std::size_t>(rank)] = joined.take();
    });
    REQUIRE((honest[0] != nullptr && honest[1] != nullptr));
    for (int i = 0; i < 30; ++i)
      tell(randomFrame(random, random() % 4 == 0 ? Frame{} : Frame::kJoin, random() % 4 == 0 ? 256 : 18));
    std::array<Status, 2> gathered;
    onThreads(2, [&](int rank) {
      const auto at = static_cast<std::size_t>(rank);
      gathered[at] = honest[at]->allGather(0xabcdef, 1, {0, 1}, rank, "", kPatienceMs).status();
    });
    CHECK(gathered[0].message() == "");
    CHECK(gathered[1].message() == "");
    liar.value().socket.close();
    leaveAll({honest[0], honest[1]});
  }
}

TEST_CASE("greetings altered at random keep nobody from joining", "[bootstrap][lies][fuzz]") {
  for (kolo::test::Rounds rounds(954); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    const koloUniqueId id = newId();
    const IdContents contents = contentsOf(id);
    Result<ControlPtr> zero = error(koloInternalError, "unset");
    std::thread first([&] { zero = join(id, 0, 2, kPatienceMs); });
    for (int i = 0; i < 20; ++i) {
      std::string greeting = encode(helloFor(contents)) + std::string(random() % 200, 'p');
      for (std::uint64_t changes = random() % 4; changes > 0; --changes)
        greeting[random() % greeting.size()] = static_cast<char>(random());
      const Socket socket = knock(contents);
      push(socket, greeting.substr(0, random() % greeting.size()));
    }
    Result<ControlPtr> one = join(id, 1, 2, kPatienceMs);
    first.join();
    CHECK(zero.status().message() == "");
    CHECK(one.status().message() == "");
    if (zero.ok() && one.ok()) leaveAll({zero.value(), one.value()});
  }
}

namespace {

// So many descriptors for this process, or as many as the system allows it.
class Files {
 public:
  explicit Files(std::size_t count) {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit wanted = before_;
    wanted.rlim_cur = std::min<rlim_t>(count, before_.rlim_max);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &wanted) == 0);
    count_ = static_cast<std::size_t>(wanted.rlim_cur);
  }
  ~Files() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  std::size_t count() const { return count_; }

 private:
  rlimit before_{};
  std::size_t count_ = 0;
};

// The limit by which so many descriptors are free. It is one of their numbers, and some above the lowest free one may
// be taken: by jobs of earlier cases, which are kept for a while after they have failed.
std::size_t limitThatLeaves(std::size_t count) {
  std::vector<Socket> taken;
  for (std::size_t i = 0; i < count; ++i) {
    taken.emplace_back(::dup(STDIN_FILENO));
    REQUIRE(taken.back().valid());
  }
  return static_cast<std::size_t>(taken.back().fd()) + 1;
}

// A hub in a process of its own, as ranks elsewhere know it.
struct FarHub {
  Child process{"hub alone", 0, 1, ""};
  koloUniqueId id = unhex(process.line());
};

// Of strangers that come at once some are displaced, or turned away.
bool isOneClosed(const std::vector<Socket>& strangers) {
  for (const auto deadline = Clock::now() + 4s; Clock::now() < deadline;) {
    for (const Socket& each : strangers) {
      if (closedWithin(each, 1ms)) return true;
    }
  }
  return false;
}

// Sockets of strangers, not connected yet.
std::vector<Socket> strangersOf(std::size_t count) {
  std::vector<Socket> strangers;
  for (std::size_t i = 0; i < count; ++i) {
    strangers.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    REQUIRE(strangers.back().valid());
  }
  return strangers;
}

// Connects each, and leaves it at that; without waiting, for a listener whose queue is full answers late.
void connectIdly(const std::vector<Socket>& strangers, const IdContents& contents) {
  sockaddr_storage address;
  const socklen_t bytes = kLoopback.fill(contents.port, address);
  for (const Socket& stranger : strangers) {
    (void)::connect(stranger.fd(), reinterpret_cast<const sockaddr*>(&address), bytes);
  }
}

}  // namespace

TEST_CASE("thousands of idle connections keep no rank out", "[bootstrap]") {
  const Files files(10000);
  const std::size_t idle = std::min<std::size_t>(4000, files.count() / 2);
  FarHub hub;
  const IdContents contents = contentsOf(hub.id);
  const std::vector<Socket> strangers = strangersOf(idle);
  connectIdly(strangers, contents);
  leaveAll(joinAll(hub.id, 4, 0, 5000));
}

namespace {

// So many who repeat what they have heard a rank say, from one address, and come again when they are dropped.
class Parrots {
 public:
  Parrots(std::size_t count, const Address& from, const IdContents& contents)
      : from_(from), contents_(contents), hello_(encode(helloFor(contents))), parrots_(count),
        thread_([this] { run(); }) {}
  ~Parrots() {
    isOver_ = true;
    thread_.join();
  }
  // How often they have been dropped.
  std::size_t dropped() const { return dropped_; }

 private:
  struct Parrot {
    Socket socket;
    bool hasGreeted = false;
  };

  // No step waits for the listener, whose queue may be full.
  void run() {
    while (!isOver_) {
      for (Parrot& each : parrots_) {
        if (!each.socket.valid()) connect(each);
        else if (!each.hasGreeted) greet(each);
        else if (isDropped(each.socket)) ++dropped_, each = {};
      }
      std::this_thread::sleep_for(1ms);
    }
  }
  void connect(Parrot& parrot) const {
    parrot.socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_storage address;
    socklen_t bytes = from_.fill(0, address);
    (void)::bind(parrot.socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes);
    bytes = kLoopback.fill(contents_.port, address);
    if (::connect(parrot.socket.fd(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 && errno != EINPROGRESS)
      parrot.socket.close();
  }
  void greet(Parrot& parrot) const {
    parrot.hasGreeted = ::send(parrot.socket.fd(), hello_.data(), hello_.size(), MSG_NOSIGNAL) > 0;
    if (!parrot.hasGreeted && errno != EAGAIN && errno != ENOTCONN) parrot.socket.close();
  }
  static bool isDropped(const Socket& socket) {
    char answer[256];
    ssize_t got = 0;
    do got = ::recv(socket.fd(), answer, sizeof answer, 0);
    while (got > 0);
    return got == 0 || errno != EAGAIN;
  }

  const Address from_;
  const IdContents& contents_;
  const std::string hello_;
  std::vector<Parrot> parrots_;
  std::atomic<std::size_t> dropped_{0};
  std::atomic<bool> isOver_{false};
  std::thread thread_;
};

}  // namespace

TEST_CASE("thousands who repeat a greeting keep no rank out", "[bootstrap]") {
  const Files files(12000);
  FarHub hub;
  const IdContents contents = contentsOf(hub.id);
  const Address from = GENERATE(Address{.bytes = {127, 0, 0, 1}}, Address{.bytes = {127, 0, 0, 2}});  // the ranks': 1
  const Parrots parrots(std::min<std::size_t>(4500, files.count() / 2), from, contents);
  // The hub waits for its first rank no longer than a minute.
  for (const auto deadline = Clock::now() + 50s; parrots.dropped() == 0 && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  CHECK(parrots.dropped() > 0);  // all places are taken
  leaveAll(joinAll(hub.id, 4, 0, 60000));
}

TEST_CASE("who repeats a greeting displaces nobody of another address", "[bootstrap]") {
  const Files files(4000);
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  const Socket slow = knock(contents);
  push(slow, encode(helloFor(contents)));
  std::string answer;
  CHECK_FALSE(closedWithin(slow, 300ms, &answer));  // until it is no newcomer any more
  const Parrots parrots(600, Address{.bytes = {127, 0, 0, 2}}, contents);
  // It is let go after 5 s, as all are.
  for (const auto deadline = Clock::now() + 4s; parrots.dropped() < 300 && Clock::now() < deadline;)
    CHECK_FALSE(closedWithin(slow, 5ms, &answer));
  CHECK(parrots.dropped() > 0);
  CHECK(answer.size() == sizeof(ServerHello));
  leaveAll(joinAll(id, 2));
}

TEST_CASE("who names a job without its secret is mentioned to the ranks that wait", "[bootstrap]") {
  const koloUniqueId id = newId();
  IdContents wrong = contentsOf(id);
  wrong.secret.back() ^= 1;
  REQUIRE(join(encodeId(wrong), 1, 2, kPatienceMs).status().code() == koloUnreachable);
  const Status waited = join(id, 0, 2, 2000).status();
  CHECK(waited.code() == koloTimeout);
  CHECK(contains(waited.message(), "somebody at"));
  CHECK(contains(waited.message(), "a rank whose KOLO_SECRET is not set or is another one"));
}

TEST_CASE("a rank that has named its job keeps its place while strangers come", "[bootstrap]") {
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  const Socket slow = knock(contents);
  push(slow, encode(helloFor(contents)));
  std::string answer;
  for (const auto deadline = Clock::now() + 4s; answer.size() < sizeof(ServerHello) && Clock::now() < deadline;) {
    CHECK_FALSE(closedWithin(slow, 5ms, &answer));
  }
  CHECK_FALSE(closedWithin(slow, 100ms, &answer));
  CHECK(answer.size() == sizeof(ServerHello));
  const std::vector<Socket> strangers = strangersOf(400);
  connectIdly(strangers, contents);
  CHECK(isOneClosed(strangers));
  CHECK_FALSE(closedWithin(slow, 100ms));
  leaveAll(joinAll(id, 2, 0, 5000));
}

TEST_CASE("strangers leave descriptors to ranks where there are few", "[bootstrap]") {
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  // The strangers' own ends are of this process too and are made first: what is left is for the hub's ends and the
  // ranks. It is less than 64, so the hub must turn strangers away, and an eighth of the limit, which they may hold,
  // leaves enough for four ranks.
  const std::vector<Socket> strangers = strangersOf(64);
  const Files files(limitThatLeaves(50));
  connectIdly(strangers, contents);
  CHECK(isOneClosed(strangers));
  leaveAll(joinAll(id, 4, 0, 5000));
}

// The limit by which a process can open nothing more.
rlim_t firstFree(int pid) {
  rlim_t number = 0;
  while (::access(fmt::format("/proc/{}/fd/{}", pid, number).c_str(), F_OK) == 0) ++number;
  return number;
}

TEST_CASE("a rank for which the hub's process has no descriptor is told so, and joins when there are some again",
          "[bootstrap]") {
  FarHub hub;
  rlimit before{};
  REQUIRE(::prlimit(hub.process.pid(), RLIMIT_NOFILE, nullptr, &before) == 0);
  const rlimit none{firstFree(hub.process.pid()), before.rlim_max};
  REQUIRE(::prlimit(hub.process.pid(), RLIMIT_NOFILE, &none, nullptr) == 0);
  const Status told = join(hub.id, 0, 1, 2000).status();  // in which the hub has answered
  INFO(told.message());
  CHECK(told.code() == koloUnreachable);
  CHECK(contains(told.message(), "has run out of file descriptors (RLIMIT_NOFILE)"));
  CHECK(contains(told.message(), "ulimit -n"));
  std::future<Result<ControlPtr>> joining =
      std::async(std::launch::async, [&] { return join(hub.id, 0, 1, kPatienceMs); });
  CHECK(joining.wait_for(300ms) == std::future_status::timeout);
  REQUIRE(::prlimit(hub.process.pid(), RLIMIT_NOFILE, &before, nullptr) == 0);
  const Result<ControlPtr> joined = joining.get();
  CHECK(joined.status().message() == "");
  if (joined.ok()) leaveAll({joined.value()});
}

TEST_CASE("a rank in the hub's process that gets no descriptor says so at once", "[bootstrap]") {
  leaveAll(joinAll(newId(), 1));  // what is opened once is there
  const koloUniqueId id = newId();
  const Files files(limitThatLeaves(1));
  const auto since = Clock::now();
  const Status status = join(id, 0, 1, kPatienceMs).status();
  CHECK(status.code() == koloSystemError);
  CHECK(contains(status.message(), "making a control socket"));
  CHECK_WITHIN(5s, since);
}
