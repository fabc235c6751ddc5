// What a hub tells many ranks of its host lies in memory that they read. Most ranks here are connections of the test's
// own, which say what ranks of other processes say.
#include "bootstrap/billboard.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>

#include "bootstrap/process_info.h"
#include "bootstrap/standby.h"
#include "bootstrap/text_list.h"
#include "bootstrap_fixture.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

namespace {

constexpr int kReaders = 10;
constexpr std::size_t kBlobBytes = 1024;
using Readers = std::vector<Billboard::ReaderPtr>;

SharedFrame frameOf(char letter, std::size_t bytes) { return std::make_shared<const std::string>(bytes, letter); }

// The frame at the place of which the hub tells, if it is there.
std::optional<std::string> readFrom(const BillboardView& view, std::string_view told) {
  Decoder decoder(told);
  std::uint64_t number = 0;
  std::string text;
  return view.read(decoder, number, text) ? std::optional(text) : std::nullopt;
}

// What the readers are told. Null: it has to be sent.
SharedFrame put(Billboard& billboard, const SharedFrame& frame, const Readers& readers) {
  Sheet sheet(frame);
  const LaterFrame told = billboard.put(sheet, readers);
  return told != nullptr ? *told : nullptr;
}

bool opens(BillboardView& view, std::string_view invitation) {
  Decoder decoder(invitation);
  return view.open(decoder);
}

std::string_view withoutKind(const std::string& frame) { return std::string_view(frame).substr(1); }

// A rank of another process, of this host or of another one, as the hub sees it.
class Housemate {
 public:
  Housemate(const IdContents& id, int rank, std::uint64_t place = placeIdentity())
      : dialled_(dial(id, Clock::now() + 20s)), rank_(rank) {
    REQUIRE(dialled_.ok());
    tell(rawJoin(rank, kReaders, KOLO_VERSION_CODE, place));
  }
  // Opens the billboard to which the hub invites it.
  void reads() {
    const std::optional<std::string> invitation = hear(Frame::kBillboard);
    REQUIRE(invitation.has_value());
    REQUIRE(opens(view, withoutKind(*invitation)));
    tell(frame(Frame::kReadsBillboard).raw(view.nonce()).take());
  }
  // Keeps a billboard for its host, as the hub asks it to.
  void keeps() {
    const std::optional<std::string> asked = hear(Frame::kKeepBillboard);
    REQUIRE(asked.has_value());
    file = BillboardFile::make(Decoder(withoutKind(*asked)).number<std::uint64_t>());
    REQUIRE(file != nullptr);
    tell(frame(Frame::kKeepsBillboard).raw(file->invitation()).take());
  }
  // The number of the next frame that it is to write there, which it does.
  std::uint64_t writes() {
    const std::optional<std::string> post = hear(Frame::kPost);
    REQUIRE(post.has_value());
    std::uint64_t number = 0;
    CHECK(file->add(withoutKind(*post), number));
    return number;
  }
  void saysItLiesThere(std::uint64_t number, bool isTrue = true) {
    tell(frame(Frame::kPosted, number, std::uint8_t{isTrue}).take());
  }
  // An answer comes at once, for it asks nobody.
  void asksNobody() { tell(frame(Frame::kAsk, std::uint64_t{5}, std::uint64_t{1}, std::int32_t{-1}, "").take()); }
  void tell(std::string_view plain) {
    std::string bytes;
    dialled_.value().session.seal(plain, bytes);
    push(dialled_.value().socket, bytes);
  }
  // The next frame of one of the kinds. Nothing: the connection has ended.
  std::optional<std::string> hear(Frame kind, Frame orKind) {
    for (;;) {
      const std::optional<std::string> plain = next();
      if (!plain.has_value()) return plain;
      if (plain->front() == static_cast<char>(kind) || plain->front() == static_cast<char>(orKind)) return plain;
    }
  }
  std::optional<std::string> hear(Frame kind) { return hear(kind, kind); }
  void asks(std::uint64_t sequence) {
    std::string blob(kBlobBytes, '\0');
    randombytes_buf(blob.data(), blob.size());
    blobs[static_cast<std::size_t>(rank_)] = blob;
    tell(frame(Frame::kGather)
             .number(std::uint64_t{5})
             .number(sequence)
             .number(UINT64_MAX)
             .number(static_cast<std::uint32_t>(rank_))
             .number(std::uint32_t{20000})
             .ranks(upTo(kReaders))
             .text(blob)
             .take());
  }
  // The result, and whether it lay on the billboard.
  std::pair<std::string, bool> hearsResult() {
    const std::optional<std::string> told = hear(Frame::kGathered, Frame::kOnBillboard);
    REQUIRE(told.has_value());
    const bool isOnBillboard = told->front() == static_cast<char>(Frame::kOnBillboard);
    const std::optional<std::string> result = isOnBillboard ? readFrom(view, withoutKind(*told)) : told;
    REQUIRE(result.has_value());
    if (isOnBillboard) CHECK(told->size() < 64);
    Decoder decoder(*result);
    CHECK(static_cast<Frame>(decoder.number<std::uint8_t>()) == Frame::kGathered);
    for (int i = 0; i < 4; ++i) (void)decoder.number<std::uint64_t>();
    (void)decoder.number<std::uint32_t>();
    std::vector<std::string> all(decoder.number<std::uint32_t>());
    CHECK((readTexts(decoder, all) && decoder.done()));
    CHECK(all == std::vector<std::string>(blobs.begin(), blobs.end()));
    return {*result, isOnBillboard};
  }
  bool isClosed() {
    while (next().has_value()) {
    }
    return true;
  }

  BillboardView view;
  std::unique_ptr<BillboardFile> file;
  static inline std::array<std::string, kReaders> blobs;

 private:
  std::optional<std::string> next() {
    const Socket& socket = dialled_.value().socket;
    for (;;) {
      const std::size_t bytes = input_.size() < kLengthBytes ? 0 : Session::cipherBytes(input_.substr(0, kLengthBytes));
      if (bytes != 0 && input_.size() >= kLengthBytes + bytes) {
        std::string plain;
        REQUIRE(dialled_.value().session.open(std::string_view(input_).substr(0, kLengthBytes),
                                              std::string_view(input_).substr(kLengthBytes, bytes), plain));
        input_.erase(0, kLengthBytes + bytes);
        return plain;
      }
      REQUIRE(network::await(socket.fd(), POLLIN, Clock::now() + 20s));
      std::array<char, 65536> room{};
      const ssize_t got = ::recv(socket.fd(), room.data(), room.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return std::nullopt;
      if (got > 0) input_.append(room.data(), static_cast<std::size_t>(got));
    }
  }

  Result<Dialled> dialled_;
  const int rank_;
  std::string input_;
};

}  // namespace

TEST_CASE("a billboard's room is used again when all that live have read what lay there", "[bootstrap]") {
  REQUIRE(initialiseCrypto().ok());
  CHECK(Billboard::make(2) == nullptr);
  const std::shared_ptr<Billboard> billboard = Billboard::make(8);
  REQUIRE(billboard != nullptr);
  BillboardView view;
  REQUIRE(opens(view, withoutKind(*billboard->invitation())));
  Readers readers{billboard->addReader(nullptr), nullptr, billboard->addReader(nullptr)};
  CHECK(put(*billboard, frameOf('s', 100), readers) == nullptr);                 // as much is said of a place
  CHECK(put(*billboard, frameOf('l', 1 << 20), readers) == nullptr);             // more than there is room for
  CHECK(put(*billboard, frameOf('a', 2000), {readers[0], nullptr}) == nullptr);  // one can be sent it as well
  std::vector<SharedFrame> told;
  for (char letter = 'a'; told.empty() || told.back() != nullptr; ++letter)
    told.push_back(put(*billboard, frameOf(letter, 5000), readers));
  REQUIRE(told.size() > 4);
  for (std::size_t i = 0; i + 1 < told.size(); ++i)
    CHECK(readFrom(view, withoutKind(*told[i])) == std::string(5000, static_cast<char>('a' + i)));
  readers[0]->read = readers[0]->told;
  CHECK(put(*billboard, frameOf('x', 5000), readers) == nullptr);
  readers[2] = nullptr;  // it is gone
  readers.push_back(billboard->addReader(nullptr));
  const SharedFrame again = put(*billboard, frameOf('x', 5000), readers);
  REQUIRE(again != nullptr);
  CHECK(readFrom(view, withoutKind(*again)) == std::string(5000, 'x'));
  CHECK_FALSE(readFrom(view, withoutKind(*told.front())).has_value());  // it has been written over
}

TEST_CASE("a rank takes nothing from a billboard but what the hub has written there", "[bootstrap][lies]") {
  REQUIRE(initialiseCrypto().ok());
  const std::shared_ptr<Billboard> billboard = Billboard::make(8);
  REQUIRE(billboard != nullptr);
  const std::string invitation(withoutKind(*billboard->invitation()));
  Decoder fields(invitation);
  (void)fields.number<std::int32_t>();
  const auto fd = fields.number<std::int32_t>();
  BillboardView view;
  std::string otherNonce = invitation;
  otherNonce.back() = static_cast<char>(otherNonce.back() ^ 1);
  CHECK_FALSE(opens(view, otherNonce));
  CHECK_FALSE(opens(view, invitation + "more"));
  const auto inviteTo = [](std::int32_t number) {
    return Encoder()
        .number(std::int32_t{::getpid()})
        .number(number)
        .raw(std::string(BillboardFile::kNonceBytes, 'n'))
        .take();
  };
  CHECK_FALSE(opens(view, inviteTo(0)));
  CHECK_FALSE(opens(view, inviteTo(-1)));
  CHECK_FALSE(opens(view, inviteTo(fd)));
  REQUIRE(opens(view, invitation));
  const Readers readers{billboard->addReader(nullptr), billboard->addReader(nullptr)};
  const SharedFrame told = put(*billboard, frameOf('a', 2000), readers);
  REQUIRE(told != nullptr);
  std::string place(withoutKind(*told));
  CHECK(readFrom(view, place) == std::string(2000, 'a'));
  std::string there(2000, '\0');  // sealed
  REQUIRE(::pread(fd, there.data(), there.size(), BillboardFile::kNonceBytes) == 2000);
  CHECK(there.find("aaaa") == std::string::npos);
  CHECK_FALSE(readFrom(view, place + "more").has_value());
  CHECK_FALSE(readFrom(view, place.substr(0, place.size() - 1)).has_value());
  std::string beyond = place;
  beyond[10] = '\x7f';  // of the place
  CHECK_FALSE(readFrom(view, beyond).has_value());
  // Another rank that may open the file.
  REQUIRE(::pwrite(fd, "b", 1, BillboardFile::kNonceBytes + 7) == 1);
  CHECK_FALSE(readFrom(view, place).has_value());
  REQUIRE(::ftruncate(fd, 100) == 0);
  CHECK_FALSE(readFrom(view, place).has_value());
}

TEST_CASE("a result lies once in memory for the ranks of the hub's host", "[bootstrap]") {
  const koloUniqueId id = newId();
  std::vector<std::unique_ptr<Housemate>> ranks;
  for (int rank = 0; rank < kReaders; ++rank) {
    ranks.push_back(std::make_unique<Housemate>(contentsOf(id), rank));
    if (rank + 1 < kReaders) ranks.back()->reads();  // the last one cannot
  }
  for (const auto& rank : ranks) REQUIRE(rank->hear(Frame::kWelcome).has_value());
  std::uint64_t sequence = 0, onBillboard = 0;
  const auto exchange = [&] {
    ++sequence;
    for (const auto& rank : ranks) rank->asks(sequence);
    const auto [text, isOnBillboard] = ranks.front()->hearsResult();
    for (int rank = 1; rank < kReaders; ++rank)
      CHECK(ranks[static_cast<std::size_t>(rank)]->hearsResult() ==
            std::pair(text, isOnBillboard && rank + 1 < kReaders));
    onBillboard += isOnBillboard ? 1 : 0;
    return isOnBillboard;
  };
  CHECK(exchange());
  // Nobody says that it has read, so the room is used up, and results go over the connections.
  while (exchange()) REQUIRE(sequence < 100);
  for (int rank = 0; rank + 1 < kReaders; ++rank)
    ranks[static_cast<std::size_t>(rank)]->tell(frame(Frame::kRead, onBillboard).take());
  CHECK(exchange());
  SECTION("a rank that says that it has read what is not there is given up") {
    ranks[3]->tell(frame(Frame::kRead, onBillboard + 1).take());
    CHECK(ranks[3]->isClosed());
    CHECK(ranks[4]->hear(Frame::kDeaths).has_value());
  }
  SECTION("so is one that says that it reads a billboard to which it was not invited, or says so again") {
    ranks[3]->tell(frame(Frame::kReadsBillboard).raw(ranks[3]->view.nonce()).take());
    CHECK(ranks[3]->isClosed());
  }
}

namespace {

constexpr std::uint64_t kElsewhere = 4711;

// All ranks are on one host, which is not the hub's, and read the billboard that rank 0 keeps there.
class OtherHost {
 public:
  OtherHost() {
    const auto joins = [this](int rank) { ranks_.push_back(std::make_unique<Housemate>(id_, rank, kElsewhere)); };
    for (int rank = 0; rank + 1 < kReaders; ++rank) joins(rank);
    of(0).keeps();
    for (const auto& rank : ranks_) rank->reads();
    joins(kReaders - 1);
    of(kReaders - 1).reads();
    for (const auto& rank : ranks_) REQUIRE(rank->hear(Frame::kWelcome).has_value());
  }
  Housemate& of(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  void end(int rank) { ranks_[static_cast<std::size_t>(rank)].reset(); }
  void ask() {
    ++sequence_;
    for (const auto& rank : ranks_) rank->asks(sequence_);
  }
  // All hear the same, and whether it lies on the billboard.
  bool hearResult(int first = 0) {
    const auto result = of(first).hearsResult();
    for (int rank = first + 1; rank < kReaders; ++rank) CHECK(of(rank).hearsResult() == result);
    return result.second;
  }
  // Written by the keeper.
  bool exchange() {
    ask();
    of(0).saysItLiesThere(of(0).writes());
    return hearResult();
  }

 private:
  const IdContents id_ = contentsOf(newId());
  std::vector<std::unique_ptr<Housemate>> ranks_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

TEST_CASE("the hub sends a result once to another host, where one rank writes it for the others", "[bootstrap]") {
  OtherHost host;
  CHECK(host.exchange());
  for (int rank = 0; rank < kReaders; ++rank) host.of(rank).tell(frame(Frame::kRead, std::uint64_t{1}).take());
  CHECK(host.exchange());
  // What is sent meanwhile comes behind the result.
  host.ask();
  const std::uint64_t number = host.of(0).writes();
  host.of(4).asksNobody();
  host.of(0).saysItLiesThere(number);
  CHECK(host.of(4).hear(Frame::kOnBillboard, Frame::kAnswered)->front() == static_cast<char>(Frame::kOnBillboard));
  CHECK(host.of(4).hear(Frame::kAnswered).has_value());
}

TEST_CASE("ranks do not wait for long for the one that keeps their billboard", "[bootstrap]") {
  OtherHost host;
  host.ask();
  const std::uint64_t first = host.of(0).writes();  // and does not say so yet
  CHECK_FALSE(host.hearResult());
  host.ask();
  CHECK_FALSE(host.hearResult());
  host.of(0).saysItLiesThere(first);
  CHECK(host.exchange());
  SECTION("one that cannot write is asked no more") {
    host.ask();
    host.of(0).saysItLiesThere(host.of(0).writes(), false);
    CHECK_FALSE(host.hearResult());
    host.ask();
    CHECK_FALSE(host.hearResult());
  }
  SECTION("one that ends is followed by another one") {
    host.ask();
    (void)host.of(0).writes();
    host.end(0);
    CHECK_FALSE(host.hearResult(1));
    std::vector<int> others = upTo(kReaders);
    others.erase(others.begin());
    const auto exchange = [&](std::uint64_t sequence) {
      for (const int rank : others)
        host.of(rank).tell(frame(Frame::kGather, std::uint64_t{6}, sequence, kNeverAsked,
                                 static_cast<std::uint32_t>(rank - 1), std::uint32_t{kPatienceMs})
                               .ranks(others)
                               .text(std::string(200, static_cast<char>('a' + rank)) + std::string(1000, 'x'))
                               .take());
    };
    exchange(1);
    for (const int rank : others) REQUIRE(host.of(rank).hear(Frame::kGathered).has_value());
    host.of(1).keeps();
    for (const int rank : others) host.of(rank).reads();
    for (const int rank : others) {  // the hub has read that they do
      host.of(rank).asksNobody();
      REQUIRE(host.of(rank).hear(Frame::kAnswered).has_value());
    }
    exchange(2);
    host.of(1).saysItLiesThere(host.of(1).writes());
    for (const int rank : others) {
      const std::optional<std::string> told = host.of(rank).hear(Frame::kOnBillboard);
      REQUIRE(told.has_value());
      CHECK(readFrom(host.of(rank).view, withoutKind(*told)).has_value());
    }
  }
}

TEST_CASE("a rank speaks for no billboard but the one that it was asked to keep", "[bootstrap][lies]") {
  OtherHost host;
  const int liar = GENERATE(0, 3);
  SECTION("that it has written what it was not asked to") { host.of(liar).saysItLiesThere(1); }
  SECTION("that it keeps one") { host.of(liar).tell(frame(Frame::kKeepsBillboard).raw(std::string(40, 'x')).take()); }
  CHECK(host.of(liar).isClosed());
  CHECK(host.of(4).hear(Frame::kDeaths).has_value());
}
