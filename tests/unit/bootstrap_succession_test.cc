// What follows the end of a hub: ranks of its host return to another one, ask again, and give what only they have. Most
// ranks here are connections of the test's own, which say what a rank says, in an order that real ones have seldom.
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "bootstrap/listener.h"
#include "bootstrap/standby.h"
#include "bootstrap_child.h"
#include "bootstrap_fixture.h"
#include "network/talk.h"

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
  explicit NextHub(int ranks, bool isWhole = true) {
    randombytes_buf(secret.data(), secret.size());
    Succession succession{ranks, isWhole, {}};
    for (int rank = 0; rank < ranks; ++rank)
      succession.neighbours.push_back({rank, static_cast<std::uint32_t>(::getpid()), ""});
    set(succession);
  }
  explicit NextHub(const Succession& succession) {
    randombytes_buf(secret.data(), secret.size());
    set(succession);
  }

  Secret secret{};
  std::shared_ptr<Standby> standby;

 private:
  void set(const Succession& succession) {
    Reactor& reactor = *Reactor::get().value();
    Secret job;
    randombytes_buf(job.data(), job.size());
    REQUIRE(reactor.call([&] { standby = standbyOf(reactor, job); }));
    REQUIRE(standby != nullptr);
    Status made;
    REQUIRE(reactor.call([&] { made = standby->succeed(secret, succession); }));
    REQUIRE(made.ok());
  }
};

class RawRank {
 public:
  RawRank(const NextHub& hub, int rank) : rank_(rank) {
    int errnum = 0;
    network::Talk talk(kolo::bootstrap::knock(hub.standby->name(), errnum));
    REQUIRE(errnum == 0);
    const KeyExchange exchange(hub.secret);
    ClientHello hello;
    hello.tag = tagOf(hub.secret);
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
  // That it is back, and which rank has left in good order, as far as it knows.
  RawRank& returns(int left = -1) {
    Encoder words = frame(Frame::kReturn);
    words.number(std::int32_t{rank_}).raw(std::string(16, 'p')).text("").number(std::uint32_t{left >= 0 ? 1u : 0u});
    if (left >= 0) words.number(std::int32_t{left}).number(std::uint8_t{1}).text("it said goodbye").text("");
    return tell(words.take());
  }
  RawRank& asks(std::uint64_t sequence, const std::vector<int>& members, const std::string& blob, bool isRepeated) {
    const auto at = std::find(members.begin(), members.end(), rank_) - members.begin();
    return tell(frame(Frame::kGather)
                    .number(std::uint64_t{5})
                    .number(sequence)
                    .number(static_cast<std::uint8_t>(isRepeated ? 1 : 0))
                    .number(static_cast<std::uint32_t>(at))
                    .number(std::uint32_t{20000})
                    .ranks(members)
                    .text(blob)
                    .take());
  }
  RawRank& has(const std::vector<std::uint64_t>& sequences) {
    Encoder words = frame(Frame::kFinished);
    words.number(static_cast<std::uint32_t>(sequences.size()));
    for (const std::uint64_t each : sequences) words.number(std::uint64_t{5}).number(each);
    return tell(words.take());
  }
  RawRank& gives(std::uint64_t sequence, const std::vector<std::string>& blobs) {
    Encoder words = frame(Frame::kResult);
    words.number(std::uint64_t{5}).number(sequence).number(std::int32_t{koloSuccess}).text("");
    const auto count = static_cast<std::uint32_t>(blobs.size());
    words.number(count).number(std::uint32_t{0}).number(count);
    for (const std::string& each : blobs) words.text(each);
    return tell(words.take());
  }
  RawRank& tell(std::string_view plain) {
    std::string bytes;
    session_->seal(plain, bytes);
    push(socket_, bytes);
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
      for (int i = 0; i < 4; ++i) (void)decoder.number<std::uint64_t>();
      if (kind == Frame::kGatherFailed) {
        (void)decoder.number<std::int32_t>();
        return std::string(decoder.text());
      }
      (void)decoder.number<std::uint32_t>();
      std::string all;
      for (auto count = decoder.number<std::uint32_t>(); count > 0; --count) all += decoder.text();
      CHECK(decoder.done());
      return all;
    }
  }
  void ends() { socket_.close(); }

 private:
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
  Socket socket_;
  std::unique_ptr<Session> session_;
  std::string in_;
};

}  // namespace

TEST_CASE("requests that were under way when the hub ended are repeated, and new ones join them", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().asks(1, upTo(3), "a", true).has({});
  one.returns().asks(1, upTo(3), "b", true).has({});
  two.returns().has({}).asks(1, upTo(3), "c", false);
  CHECK(zero.hearsResult() == "abc");
  CHECK(one.hearsResult() == "abc");
  CHECK(two.hearsResult() == "abc");
}

TEST_CASE("a result that one rank has and another one lacks is handed on", "[bootstrap]") {
  const bool isHolderFirst = GENERATE(true, false);
  const NextHub hub(2);
  RawRank zero(hub, 0), one(hub, 1);
  if (isHolderFirst) {
    zero.returns().has({7});
    REQUIRE(zero.hear(Frame::kReturned).has_value());
  }
  one.returns().asks(7, upTo(2), "again", true).has({});
  REQUIRE(one.hear(Frame::kReturned).has_value());
  if (!isHolderFirst) zero.returns().has({7});
  REQUIRE(zero.hear(Frame::kResultWanted).has_value());
  zero.gives(7, {"first", "second"});
  CHECK(one.hearsResult() == "firstsecond");
  CHECK(zero.hear(Frame::kSettled).has_value());
  CHECK(one.hear(Frame::kSettled).has_value());
}

TEST_CASE("a result that is gone with the rank that had it fails the request, which is mixed with no other one",
          "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().has({7});
  two.returns().has({});
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  REQUIRE(two.hear(Frame::kReturned).has_value());
  two.asks(7, {1, 2}, "another attempt", false);
  one.returns().asks(7, {0, 1}, "x", true).has({});
  REQUIRE(zero.hear(Frame::kResultWanted).has_value());
  zero.ends();
  const std::string why = one.hearsResult();
  CHECK(contains(why, "rank 0 (pid "));
  CHECK(contains(why, "died"));
}

TEST_CASE("of two ranks that have a result the other one is asked when the first one dies", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().has({7});
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  two.returns().has({7});
  REQUIRE(two.hear(Frame::kReturned).has_value());
  one.returns().asks(7, upTo(3), "x", true).has({});
  REQUIRE(zero.hear(Frame::kResultWanted).has_value());
  zero.ends();
  REQUIRE(two.hear(Frame::kResultWanted).has_value());
  two.gives(7, {"a", "b", "c"});
  CHECK(one.hearsResult() == "abc");
}

TEST_CASE("a rank that has not returned is dead only if its standby is closed, and not if it has left", "[bootstrap]") {
  const auto own = static_cast<std::uint32_t>(::getpid());
  // Nobody listens by the names of ranks 1 and 2; rank 3 is silent.
  const NextHub hub(
      Succession{4, true, {{0, own, ""}, {1, own + 1, "kolo-nobody-1"}, {2, own + 1, "kolo-nobody-2"}, {3, own, ""}}});
  RawRank zero(hub, 0);
  zero.returns(1).has({});
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
  three.returns().has({}).asks(3, {0, 3}, "y", false);
  CHECK(zero.hearsResult() == "xy");
}

TEST_CASE("a farewell waits until all that have lost a hub know of it", "[bootstrap]") {
  const NextHub hub(3);
  RawRank zero(hub, 0), one(hub, 1), two(hub, 2);
  zero.returns().has({}).tell(frame(Frame::kLeave).take());
  one.returns().has({});
  REQUIRE(one.hear(Frame::kReturned).has_value());
  two.returns().has({});
  REQUIRE(two.hear(Frame::kLeft).has_value());  // and so it is with its kernel
  CHECK(zero.hear(Frame::kFarewell).has_value());
}

TEST_CASE("ranks of one host of several exchange nothing without the hub, and hear of failures", "[bootstrap]") {
  const NextHub hub(2, false);
  RawRank zero(hub, 0), one(hub, 1);
  zero.returns().tell(frame(Frame::kSubscribe).number(std::uint64_t{5}).take()).has({});
  zero.asks(1, upTo(2), "x", true);
  CHECK(contains(zero.hearsResult(), "relayed the messages between the hosts has ended"));
  one.returns().has({}).tell(frame(Frame::kReport)
                                 .number(std::uint64_t{1})
                                 .number(std::uint64_t{5})
                                 .number(std::uint64_t{5})
                                 .number(std::int32_t{koloAborted})
                                 .number(std::int32_t{1})
                                 .text("rank 1 gave up")
                                 .take());
  const std::optional<std::string> reported = zero.hear(Frame::kReported);
  REQUIRE(reported.has_value());
  CHECK(contains(*reported, "rank 1 gave up"));
}

TEST_CASE("nobody returns in the place of another process, or twice", "[bootstrap]") {
  const auto own = static_cast<std::uint32_t>(::getpid());
  const NextHub hub(Succession{3, true, {{0, own, ""}, {1, own + 1, ""}, {2, own, ""}}});
  RawRank zero(hub, 0), again(hub, 0), other(hub, 1), unknown(hub, 3);
  zero.returns().has({});
  REQUIRE(zero.hear(Frame::kReturned).has_value());
  for (RawRank* const each : {&again, &other, &unknown}) {
    each->returns();
    CHECK(!each->hear(Frame::kReturned).has_value());
  }
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
  controls[0]->reportFailure(5, {koloAborted, 0, "again"});
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
