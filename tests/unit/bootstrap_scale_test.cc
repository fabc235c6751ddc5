// What many ranks cost the hub. The hub is the real one; its ranks exist in this file alone, many of them to a thread.
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "bootstrap/billboard.h"
#include "bootstrap/hub.h"
#include "bootstrap/reactor.h"
#include "bootstrap/text_list.h"
#include "bootstrap_fixture.h"

using namespace kolo;
using namespace kolo::bootstrap;

namespace {

// Where the ranks of a crowd are: on the hub's host, or so many to each of other hosts.
constexpr int kHubsHost = 0, kRanksOfHost = 128;

class Crowd {
 public:
  Crowd(int ranks, int ranksOfHost) : ranksOfHost_(ranksOfHost) {
    REQUIRE(initialiseCrypto().ok());
    Secret secret;
    randombytes_buf(secret.data(), secret.size());
    const KeyExchange ofRank(secret), ofHub(secret);
    Session mine(Session::Side::kClient, ofRank, ofHub.share(), "rank", "hub");
    Session theirs(Session::Side::kHub, ofHub, ofRank.share(), "rank", "hub");
    REQUIRE(theirs.check(mine.prove()) == Reply::kOk);
    REQUIRE(mine.check(theirs.prove()) == Reply::kOk);
    hub_ = std::make_shared<Hub>(reactor(), secret, [](const Hub*) {});
    for (int i = 0; i < ranks; ++i) {
      int ends[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      ranks_.push_back({Socket(ends[0]), mine, {}});  // each has the session of one handshake, which counts for itself
      (void)reactor().call([&] {
        Socket hubs(ends[1]);
        REQUIRE(::fcntl(hubs.fd(), F_SETFL, O_NONBLOCK) == 0);
        hub_->admit(std::move(hubs), theirs, false);
      });
    }
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  ~Crowd() {
    ranks_.clear();
    (void)reactor().call([this] { hub_.reset(); });
  }

  int size() const { return static_cast<int>(ranks_.size()); }

  void say(int rank, const std::string& words) {
    std::string sealed;
    of(rank).session.seal(words, sealed);
    push(of(rank).socket, sealed);
  }

  // The next frame for the rank, by the billboard, too. "": its connection has ended.
  std::string hear(int rank) {
    Rank& self = of(rank);
    std::string plain;
    for (;;) {
      const std::string_view input = self.input;
      const std::size_t bytes = input.size() < kLengthBytes ? 0 : Session::cipherBytes(input.substr(0, kLengthBytes));
      if (bytes != 0 && input.size() >= kLengthBytes + bytes) {
        REQUIRE(self.session.open(input.substr(0, kLengthBytes), input.substr(kLengthBytes, bytes), plain));
        self.input.erase(0, kLengthBytes + bytes);
        break;
      }
      const ssize_t got = ::recv(self.socket.fd(), room_.data(), room_.size(), 0);
      if (got <= 0) return {};
      self.input.append(room_.data(), static_cast<std::size_t>(got));
    }
    const Frame kind = kindOf(plain);
    Decoder words(std::string_view(plain).substr(1));
    if (kind == Frame::kKeepBillboard || kind == Frame::kPost) {
      keep(rank, kind, words);
      return hear(rank);
    }
    if (kind != Frame::kOnBillboard) return plain;
    std::uint64_t number = 0;
    std::string there;
    REQUIRE(hostOf(rank).view.read(words, number, there));
    answer(rank, frame(Frame::kRead, number).take());
    return there;
  }

  std::string hear(int rank, Frame kind) {
    for (;;) {
      std::string words = hear(rank);
      REQUIRE_FALSE(words.empty());
      if (kindOf(words) == kind) return words;
    }
  }

  // Each rank has a standby, as ranks have.
  void join() {
    for (int rank = 0; rank < size(); ++rank) {
      const std::uint64_t place = ranksOfHost_ == kHubsHost ? placeIdentity() : 1 + rank / ranksOfHost_;
      say(rank, rawJoin(rank, size(), KOLO_VERSION_CODE, place, fmt::format("standby of {:06}", rank), "",
                        ranksOfHost_ == kHubsHost ? 0 : 17000));
      // On another host the hub asks for a billboard when the fourth rank has come.
      const int ofHost = ranksOfHost_ == kHubsHost ? rank : rank % ranksOfHost_;
      const int fewest = ranksOfHost_ == kHubsHost ? 0 : 3;
      for (int each = ofHost == fewest ? rank - ofHost : rank; ofHost >= fewest && each <= rank; ++each)
        readBillboard(each, each == rank - ofHost);
    }
    for (const int rank : keepersFirst()) (void)hear(rank, Frame::kWelcome);
  }

  // All ranks gather; the first and the last look at what they have got.
  template <class BlobOf>
  void gather(std::uint64_t sequence, const BlobOf& blobOf) {
    const std::string members = Encoder().ranks(upTo(size())).take();
    for (int rank = 0; rank < size(); ++rank) {
      say(rank, frame(Frame::kGather, std::uint64_t{1}, sequence, kNeverAsked, static_cast<std::uint32_t>(rank),
                      std::uint32_t{kPatienceMs})
                    .raw(members)
                    .text(blobOf(rank))
                    .take());
    }
    std::vector<std::string> blobs(ranks_.size());
    for (const int rank : keepersFirst()) {
      const bool looks = rank == 0 || rank == size() - 1;
      for (std::uint32_t have = 0; have < blobs.size();) {
        const std::string result = hear(rank, Frame::kGathered);
        Decoder words(std::string_view(result).substr(1 + 4 * sizeof(std::uint64_t)));
        const auto first = words.number<std::uint32_t>(), count = words.number<std::uint32_t>();
        REQUIRE(first == have);
        if (looks) REQUIRE((readTexts(words, std::span(blobs).subspan(first, count)) && words.done()));
        have += count;
      }
      for (int other = 0; looks && other < size(); ++other)
        REQUIRE(blobs[static_cast<std::size_t>(other)] == blobOf(other));
    }
  }

  void leave(int rank) { say(rank, frame(Frame::kLeave).take()); }

  // The hub has read all that was said before.
  void settle(int rank) {
    say(rank, frame(Frame::kAsk, std::uint64_t{1}, std::uint64_t{1}, std::int32_t{-1}, "").take());
    (void)hear(rank, Frame::kAnswered);
  }

  static Frame kindOf(std::string_view frame) { return static_cast<Frame>(frame.front()); }

  // What the hub has sent.
  static std::uint64_t sentBytes() {
    std::uint64_t bytes = 0;
    (void)reactor().call(
        [&] { bytes = std::accumulate(Channel::sent().begin(), Channel::sent().end(), std::uint64_t{0}); });
    return bytes;
  }

 private:
  struct Rank {
    Socket socket;
    Session session;
    std::string input;
  };
  static Reactor& reactor() {
    Result<Reactor*> one = Reactor::get();
    REQUIRE(one.ok());
    return *one.value();
  }
  struct Host {
    std::unique_ptr<BillboardFile> kept;
    BillboardView view;  // one for all ranks
  };
  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Host& hostOf(int rank) { return hosts_[ranksOfHost_ == kHubsHost ? 0 : rank / ranksOfHost_]; }

  // The hub does not wait for long for those that keep billboards.
  std::vector<int> keepersFirst() const {
    std::vector<int> all = upTo(size());
    if (ranksOfHost_ != kHubsHost)
      std::stable_partition(all.begin(), all.end(), [this](int rank) { return rank % ranksOfHost_ == 0; });
    return all;
  }

  // The hub may have let the rank go meanwhile.
  void answer(int rank, const std::string& words) {
    std::string sealed;
    of(rank).session.seal(words, sealed);
    (void)::send(of(rank).socket.fd(), sealed.data(), sealed.size(), MSG_NOSIGNAL);
  }

  // What the rank does that keeps the billboard of its host.
  void keep(int rank, Frame kind, Decoder words) {
    std::unique_ptr<BillboardFile>& kept = hostOf(rank).kept;
    if (kind == Frame::kKeepBillboard) {
      kept = BillboardFile::make(words.number<std::uint64_t>());
      REQUIRE(kept != nullptr);
      return say(rank, frame(Frame::kKeepsBillboard).raw(kept->invitation()).take());
    }
    std::uint64_t number = 0;
    REQUIRE(kept->add(words.rest(), number));
    answer(rank, frame(Frame::kPosted, number, std::uint8_t{1}).take());
  }

  void readBillboard(int rank, bool opens) {
    const std::string invitation = hear(rank, Frame::kBillboard);
    Decoder words(std::string_view(invitation).substr(1));
    BillboardView& view = hostOf(rank).view;
    if (opens) REQUIRE(view.open(words));
    say(rank, frame(Frame::kReadsBillboard).raw(view.nonce()).take());
  }

  int ranksOfHost_;
  std::shared_ptr<Hub> hub_;
  std::vector<Rank> ranks_;
  std::map<int, Host> hosts_;
  std::vector<char> room_ = std::vector<char>(64u << 10);
};

}  // namespace

TEST_CASE("ranks that leave one by one are told of together, for the hub has more to do than to tell all of each",
          "[bootstrap]") {
  constexpr int kRanks = 256, kLeaving = 128;
  Crowd crowd(kRanks, kRanksOfHost);
  crowd.join();
  const auto begin = Clock::now();
  for (int rank = 1; rank <= kLeaving; ++rank) {
    crowd.leave(rank);
    crowd.settle(kRanks - 1);  // the hub does not find two at once
  }
  const auto elapsed = Clock::now() - begin;
  std::set<int> told;
  int frames = 0;
  for (; told.size() < kLeaving; ++frames) {
    const std::string news = crowd.hear(0, Frame::kLeft);
    Decoder words(std::string_view(news).substr(1));
    const std::vector<int> ranks = words.ranks(kRanks);
    told.insert(ranks.begin(), ranks.end());
  }
  CHECK(*told.begin() == 1);
  CHECK(*told.rbegin() == kLeaving);
  for (int rank = 1; rank <= kLeaving; ++rank) (void)crowd.hear(rank, Frame::kFarewell);
  // A rank that is told costs 20 us, and half of the time is for that: Hub::flushLeavers.
  const auto most = 2 + elapsed / (2 * (kRanks - kLeaving) * std::chrono::microseconds(20));
  INFO(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count() << " ms");
  CHECK(frames <= most);
}

namespace {

std::uint64_t residentBytes() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) << 10;
}

// A row of the table: a step, what the hub has sent for it, and how long the hub and all its ranks have taken.
template <class Step>
void measure(const Crowd& crowd, const char* where, const char* what, const Step& step) {
  const std::uint64_t before = Crowd::sentBytes();
  const auto begin = Clock::now();
  step();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const auto bytes = static_cast<double>(Crowd::sentBytes() - before);
  std::printf("%7d  %-11s  %-22s  %14.0f  %10.0f  %8.2f\n", crowd.size(), where, what, bytes, bytes / crowd.size(),
              seconds);
  (void)std::fflush(stdout);
}

// What a rank says of itself in its first exchange, by and large.
std::string offerOf(int rank) { return fmt::format("{:0>200}{:06}, {:0>16x}", "", rank, rank * 0x9e3779b97f4a7c15); }

void simulate(int ranks, int ranksOfHost) {
  const char* const where = ranksOfHost == kHubsHost ? "hub's host" : "other hosts";
  Crowd crowd(ranks, ranksOfHost);
  measure(crowd, where, "join", [&] { crowd.join(); });
  measure(crowd, where, "gather, equal", [&] { crowd.gather(1, [](int) { return std::string("4x131072 shm,tcp"); }); });
  measure(crowd, where, "gather, each its own", [&] { crowd.gather(2, offerOf); });
  measure(crowd, where, "leave", [&] {
    for (int rank = 0; rank < crowd.size(); ++rank) crowd.leave(rank);
    for (int rank = 0; rank < crowd.size(); ++rank) (void)crowd.hear(rank, Frame::kFarewell);
  });
}

}  // namespace

// perf/results has its table. KOLO_TEST_RANKS: numbers of ranks, by commas.
TEST_CASE("many ranks of one hub join, gather and leave", "[.][bootstrap][scale]") {
  const char* const given = std::getenv("KOLO_TEST_RANKS");
  std::printf("  ranks  where        step                     bytes, hub  each rank   seconds\n");
  std::istringstream numbers(given != nullptr ? given : "64,128,256,512");
  for (std::string ranks; std::getline(numbers, ranks, ',');) {
    const std::uint64_t before = residentBytes();
    for (const int ranksOfHost : {kHubsHost, kRanksOfHost}) simulate(std::stoi(ranks), ranksOfHost);
    std::printf("%7s  both         memory, at most         %14llu\n", ranks.c_str(),
                static_cast<unsigned long long>(residentBytes() - before));
  }
}
