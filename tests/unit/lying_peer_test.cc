// A peer that writes what it cannot have to write: the other rank says so and ends the communicator, and nothing is
// read, sent or written outside of what was given for that.
#include <array>
#include <catch2/catch.hpp>
#include <climits>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "algorithms/names.h"
#include "base/caller.h"
#include "base/settings.h"
#include "base/terms.h"
#include "bootstrap/wire.h"
#include "comm/agreement.h"
#include "comm/factory.h"
#include "comm/sent_arrays.h"
#include "comm/subgroups.h"
#include "failure/cause.h"
#include "links/blob.h"
#include "support/seed.h"
#include "support/settings_scope.h"
#include "support/text.h"

namespace kolo::comm {
namespace {

using device::MessageKind;
using device::MessageLine;
using test::contains;

constexpr int kHonest = 0, kLiar = 1;
constexpr std::uint64_t kBytes = 100000;  // of a message that is too long for a slot

// Two ranks that are threads, or one after the other in the test's.
class Couple {
 public:
  explicit Couple(const std::string& transport) {
    Options options;
    options.name = "world";
    options.transports = transport;
    options.timeoutMs = 10000;
    // By default the processor decides whether a long message is read out of its sender's memory: that has other lines.
    const test::SettingsScope staged({{"KOLO_SINGLE_COPY_BYTES", std::to_string(2 * kBytes)}});
    Result<std::vector<Owned>> created = createAll(2, options);
    REQUIRE(created.status().message() == "");
    ranks_ = created.take();
  }
  Communicator& honest() { return *ranks_[kHonest]; }
  Communicator& liar() { return *ranks_[kLiar]; }

  // On each rank, at the same time.
  template <class Function>
  void onBoth(const Function& function) {
    std::thread other([&] { function(liar()); });
    function(honest());
    other.join();
  }

  static Status exchange(Communicator& rank, const Message& message) {
    Request request(1);
    rank.messages().start(message, request, true);
    Status failure = rank.messages().attend(request, nullptr, Requests::kNever);
    return failure.ok() ? request.status() : failure;
  }

  // What the liar has written there before it lies: one message, so that both ends are open.
  void exchangeOne() {
    const unsigned char sent = 7;
    unsigned char received = 0;
    REQUIRE(exchange(liar(), {.isSend = true, .send = &sent, .count = 1, .peer = kHonest}).message() == "");
    CHECK(receive(&received, 1).message() == "");
    CHECK(received == 7);
  }
  Status receive(void* to, std::uint64_t bytes) {
    return exchange(honest(), {.recv = to, .count = bytes, .peer = kLiar, .tag = KOLO_ANY_TAG});
  }
  Status send(const void* from, std::uint64_t bytes) {
    return exchange(honest(), {.isSend = true, .send = from, .count = bytes, .peer = kLiar});
  }

  // The liar's next line.
  template <class Change>
  void lie(const Change& change) {
    const std::uint64_t number = ++lines_;
    MessageLine& line = layout().part(liar().peers().partAt(kHonest)).lane->lines[number % device::kMessageLines];
    line.bytes = 8;
    line.tag = 0;
    line.id = 1;
    line.datatype = koloInt8;
    line.window = 0;
    std::memset(line.payload, 0, sizeof line.payload);
    change(line);
    device::storeRelease(line.number, number);
    if (!liar().peers()[kHonest].isPosted()) return;
    const device::Post post{.data = &line.bytes,
                            .bytes = sizeof line - sizeof line.number,
                            .counter = &line.number,
                            .value = number,
                            .more = device::More::kNothing};
    REQUIRE(liar().traffic().post(kHonest, post).kind == device::Fault::kNone);
  }

  // On each rank, at the same time: memory that is a window, until the communicator ends.
  void registerWindows(std::uint64_t bytes) {
    for (auto& window : windows_) {
      void* memory = nullptr;
      REQUIRE(koloMemAlloc(&memory, bytes) == koloSuccess);
      window.reset(static_cast<unsigned char*>(memory));
    }
    std::array<std::string, 2> problems;  // checked here: Catch's assertions are for one thread at a time
    onBoth([&](Communicator& rank) {
      problems[static_cast<std::size_t>(rank.rank())] =
          rank.backend().addWindow(window(rank.rank()), bytes).status().message();
    });
    CHECK(problems == std::array<std::string, 2>{});
  }
  unsigned char* window(int rank) const { return windows_[static_cast<std::size_t>(rank)].get(); }

  static ArenaLayout layout() {
    return ArenaLayout::make(2, static_cast<std::uint64_t>(settings::integer("KOLO_STAGING_BYTES")));
  }

 private:
  struct Free {
    void operator()(unsigned char* memory) const { CHECK(koloMemFree(memory) == koloSuccess); }
  };
  std::array<std::unique_ptr<unsigned char, Free>, 2> windows_;  // outlive the ranks
  std::vector<Owned> ranks_;
  std::uint64_t lines_ = 1;  // behind exchangeOne()
};

void expectDistrust(const Status& status, const std::string& words) {
  INFO(status.message());
  CHECK(status.code() == koloRemoteError);
  CHECK(contains(status.message(), "rank 1 wrote to rank 0 "));
  CHECK(contains(status.message(), words));
}

struct Lie {
  const char* words;
  std::function<void(MessageLine&)> change;
};

}  // namespace

TEST_CASE("a message's line that cannot be is not believed", "[lies]") {
  const std::vector<Lie> lies = {
      {"more bytes than the line holds",
       [](MessageLine& line) { line.kind = MessageKind::kInline, line.bytes = 1000; }},
      {"more bytes than a slot holds",
       [](MessageLine& line) { line.kind = MessageKind::kEager, line.bytes = 1 << 20; }},
      {"an unknown kind", [](MessageLine& line) { line.kind = static_cast<MessageKind>(200); }},
      {"an unknown datatype", [](MessageLine& line) { line.kind = MessageKind::kInline, line.datatype = 99; }},
      {"an unknown datatype",
       [](MessageLine& line) { line.kind = MessageKind::kRequest, line.datatype = koloNumDatatypes; }},
      {"a negative tag", [](MessageLine& line) { line.kind = MessageKind::kInline, line.tag = KOLO_ANY_TAG; }},
      {"a request's number that is not the next",
       [](MessageLine& line) { line.kind = MessageKind::kRequest, line.id = 7; }},
      {"the number of a request that waits for no answer", [](MessageLine& line) { line.kind = MessageKind::kClear; }},
      {"the number of a request that waits for no answer", [](MessageLine& line) { line.kind = MessageKind::kDone; }}};
  for (const char* const transport : {"shm", "tcp"}) {
    for (const Lie& lie : lies) {
      INFO(transport << ": " << lie.words);
      Couple couple(transport);
      couple.exchangeOne();
      couple.lie(lie.change);
      std::vector<unsigned char> data(kBytes, 1);
      expectDistrust(couple.receive(data.data(), data.size()), lie.words);
      CHECK(data == std::vector<unsigned char>(kBytes, 1));
      CHECK(couple.honest().failed());
    }
  }
}

TEST_CASE("an answer that no request has asked for is not believed", "[lies]") {
  const std::vector<Lie> lies = {
      {"more bytes than the request that it clears",
       [](MessageLine& line) { line.kind = MessageKind::kClear, line.bytes = 2 * kBytes; }},
      {"the number of a request that waits for no answer",
       [](MessageLine& line) { line.kind = MessageKind::kClear, line.id = 2; }},
      {"whose data the receiver has not had", [](MessageLine& line) { line.kind = MessageKind::kDone; }}};
  for (const char* const transport : {"shm", "tcp"}) {
    for (const Lie& lie : lies) {
      INFO(transport << ": " << lie.words);
      Couple couple(transport);
      couple.exchangeOne();
      couple.lie(lie.change);
      const std::vector<unsigned char> data(kBytes, 1);
      expectDistrust(couple.send(data.data(), data.size()), lie.words);
    }
  }
}

TEST_CASE("a request is cleared once, and by no key where memory is mapped", "[lies]") {
  const auto clear = [](MessageLine& line) { line.kind = MessageKind::kClear, line.bytes = kBytes; };
  const std::vector<unsigned char> data(kBytes, 1);
  {
    Couple couple("shm");
    couple.exchangeOne();
    couple.lie(clear);
    couple.lie(clear);
    expectDistrust(couple.send(data.data(), data.size()), "the number of a request that has been cleared before");
  }
  Couple couple("shm");
  couple.exchangeOne();
  couple.lie([&](MessageLine& line) { clear(line), line.clearance.number = 1; });
  expectDistrust(couple.send(data.data(), data.size()), "a key for memory that is mapped");
}

TEST_CASE("an altered clearance does not make a rank send what lies behind its buffer", "[lies]") {
  Couple couple("tcp");
  couple.exchangeOne();
  std::vector<unsigned char> inbox(4 * kBytes, 9), outbox(4 * kBytes, 1);  // of which the message is the begin
  auto registered = couple.liar().peers()[kHonest].device->registerMemory(
      {sizeof(koloTransportMemory), inbox.data(), inbox.size(), -1, 0, koloMemoryHost});
  REQUIRE(registered.status().message() == "");
  const auto key = registered.value()->key();
  REQUIRE(key.status().message() == "");
  couple.lie([&](MessageLine& line) {
    line.kind = MessageKind::kClear;
    line.bytes = inbox.size();
    line.clearance.number = 1;
    std::memcpy(line.clearance.key, key.value().data, sizeof line.clearance.key);
  });
  expectDistrust(couple.send(outbox.data(), kBytes), "more bytes than the request that it clears");
  for (int i = 0; i < 20; ++i) (void)couple.liar().traffic().progress(kHonest);
  CHECK(inbox == std::vector<unsigned char>(4 * kBytes, 9));
}

TEST_CASE("a message in a window lies inside of what its sender has registered", "[lies]") {
  struct Where {
    std::uint8_t window;  // + 1
    std::uint64_t offset;
  };
  constexpr std::uint64_t kWindow = 4096, kMessage = 1000;
  for (const Where& where :
       {Where{1, kWindow - kMessage + 1}, {1, kWindow + 1}, {1, UINT64_MAX - 10}, {2, 0}, {255, 0}}) {
    INFO("window " << int{where.window} << ", offset " << where.offset);
    Couple couple("shm");
    std::vector<unsigned char> received(kMessage, 3);
    couple.registerWindows(kWindow);
    couple.exchangeOne();
    couple.lie([&](MessageLine& line) {
      line.kind = MessageKind::kRequest;
      line.bytes = kMessage;
      line.window = where.window;
      line.offset = where.offset;
    });
    expectDistrust(couple.receive(received.data(), received.size()), "where it has registered no such memory");
    CHECK(received == std::vector<unsigned char>(kMessage, 3));
  }
}

TEST_CASE("the buffers that a header offers lie inside of what its writer has registered", "[lies]") {
  using device::Collective;
  constexpr std::uint64_t kBlock = 65536, kWindow = 3 * kBlock;
  const std::vector<std::function<void(device::Header&)>> lies = {
      [](device::Header& line) { line.refs.sendOffset = kWindow - kBlock + 8; },
      [](device::Header& line) { line.refs.sendOffset = UINT64_MAX - 8; },
      [](device::Header& line) { line.refs.sendWindow = 2; },
      [](device::Header& line) { line.refs.sendWindow = 0x7fffffff; }};
  for (const auto& change : lies) {
    Couple couple("shm");
    couple.registerWindows(kWindow);
    const auto run = [&](Communicator& rank) {
      auto* const mine = couple.window(rank.rank());
      Operation operation;
      operation.collective = Collective::kAllGather;
      operation.send = mine;
      operation.recv = mine + kBlock;
      operation.count = kBlock;
      operation.datatype = koloInt8;
      return rank.backend().run(operation, nullptr);
    };
    std::thread liar([&] { (void)run(couple.liar()); });
    const ArenaLayout layout = Couple::layout();
    device::Header& line = layout.part(couple.honest().peers().arena() + layout.partAt(kLiar)).mailbox->header[1];
    while (device::loadAcquire(line.number) != 1) std::this_thread::yield();
    change(line);
    const Status status = run(couple.honest());
    liar.join();
    expectDistrust(status, "a header that offers memory at offset");
    CHECK(contains(status.message(), "all_gather"));
  }
}

// ---- windows

// What a rank says of its part of a window: `claimed` bytes, by the links of memory with `bytes` of them. Before it the
// windows that the rank has abandoned.
std::string partOf(Communicator& rank, unsigned char* memory, std::uint64_t bytes, std::uint64_t claimed,
                   const std::vector<std::uint32_t>& abandoned, std::vector<std::unique_ptr<transport::Memory>>& keep) {
  links::BlobWriter blob;
  blob.put(static_cast<std::uint32_t>(abandoned.size()));
  for (const std::uint32_t index : abandoned) blob.put(index);
  const auto& devices = rank.peers().devices();
  blob.put(claimed).put(reinterpret_cast<std::uint64_t>(memory)).put(static_cast<std::uint32_t>(devices.size()));
  for (const auto& device : devices) {
    auto registered = device->registerMemory({sizeof(koloTransportMemory), memory, bytes, -1, 0, koloMemoryHost});
    blob.putText(device->name()).putBlob(device->address());
    blob.putBlob(registered.ok() ? registered.value()->descriptor() : koloTransportBlob{});
    if (registered.ok()) keep.push_back(registered.take());
  }
  return blob.text();
}

// The honest rank registers `memory`, while the liar says what it says.
Result<Window*> windowBeside(Couple& couple, std::vector<unsigned char>& memory, const std::string& said) {
  Result<Window*> window = error(koloInternalError, "unset");
  couple.onBoth([&](Communicator& rank) {
    if (rank.rank() == kHonest) {
      window = rank.backend().addWindow(memory.data(), memory.size());
    } else {
      (void)rank.membership().allGather(said);
      (void)rank.membership().allGather(links::BlobWriter().put(std::uint8_t{1}).text());
    }
  });
  return window;
}

TEST_CASE("a part of a window that is longer than what can be reached of it is not used", "[lies]") {
  constexpr std::uint64_t kPart = 4096;
  for (const std::uint64_t claimed : {kPart, kPart + 1, std::uint64_t{1} << 40, UINT64_MAX}) {
    INFO(claimed << " bytes");
    Couple couple("shm");
    std::vector<unsigned char> mine(kPart), theirs(kPart);
    std::vector<std::unique_ptr<transport::Memory>> keep;
    const Result<Window*> window =
        windowBeside(couple, mine, partOf(couple.liar(), theirs.data(), kPart, claimed, {}, keep));
    REQUIRE(window.status().message() == "");
    CHECK(window.value()->zeroCopy == (claimed == kPart));
  }
}

TEST_CASE("a link to less memory than a rank is going to use is refused", "[lies]") {
  Couple couple("shm");
  std::vector<unsigned char> memory(4096);
  transport::Device& theirs = *couple.liar().peers()[kHonest].device;
  transport::Device& mine = *couple.honest().peers()[kLiar].device;
  const auto registered =
      theirs.registerMemory({sizeof(koloTransportMemory), memory.data(), memory.size(), -1, 0, koloMemoryHost});
  REQUIRE(registered.status().message() == "");
  const auto open = [&](std::uint64_t least) {
    return mine.openLink(theirs.address(), registered.value()->descriptor(), least).status();
  };
  CHECK(open(4096).message() == "");
  CHECK(open(4097).code() == koloRemoteError);
  CHECK(contains(open(4097).message(), "the peer's memory has 4096 bytes, expected 4097 or more"));
}

TEST_CASE("a window that one rank says twice to have abandoned is there for the others", "[lies]") {
  Couple couple("shm");
  couple.registerWindows(4096);
  std::vector<unsigned char> mine(4096), theirs(4096);
  std::vector<std::unique_ptr<transport::Memory>> keep;
  const Result<Window*> second =
      windowBeside(couple, mine, partOf(couple.liar(), theirs.data(), 4096, 4096, {0, 0, 77}, keep));
  REQUIRE(second.status().message() == "");
  CHECK(second.value()->index == 1);
  CHECK(couple.honest().windows().find(couple.window(kHonest), 16).index == 1);  // + 1
  CHECK(couple.honest().windows().at(0).begin == couple.window(kHonest));
}

// ---- groups and arrays

TEST_CASE("a number of the next group that would leave none is refused", "[lies]") {
  const std::vector<int> ranks{0, 1};
  for (const std::uint64_t next : {std::uint64_t{0}, (std::uint64_t{1} << 48) + 1, UINT64_MAX}) {
    Couple couple("shm");
    Status status;
    couple.onBoth([&](Communicator& rank) {
      if (rank.rank() == kHonest) {
        status = createGroup(rank, ranks, groupOptions(rank, ranks, {}, "group", nullptr), 0).status();
        return;
      }
      const links::Membership& whole = rank.membership();
      std::uint64_t list = mixKeys(whole.key, ~std::uint64_t{2});
      for (const int each : ranks) list = mixKeys(list, static_cast<std::uint64_t>(each));
      links::BlobWriter arrival;
      arrival.put(std::int32_t{koloSuccess}).putText("").putText("group").put(next).put(std::uint64_t{0});
      (void)whole.control->allGather(whole.key, bootstrap::kPartialSequence | list, whole.members, kLiar,
                                     arrival.text(), whole.initTimeoutMs);
    });
    CHECK(status.code() == koloRemoteError);
    CHECK(contains(status.message(), "rank 1 of world proposes"));
    CHECK_FALSE(couple.honest().failed());
  }
}

TEST_CASE("a rank that says nonsense in an agreement is named, and nothing comes of it", "[lies]") {
  const auto said = [](std::uint32_t purpose, std::uint64_t value) {
    Statement lie{.purpose = purpose, .verdict = {}, .value = value};
    lie.acknowledged = UINT32_MAX;
    return links::encode(lie);
  };
  const auto honestHears = [&](const std::string& lie, bool shrinks) {
    Couple couple("shm");
    Status status;
    couple.onBoth([&](Communicator& rank) {
      if (rank.rank() == kHonest) {
        std::uint64_t flags = 6;
        status = shrinks ? shrink(rank, {}, nullptr).status() : agreeOnFlags(rank, &flags);
        return;
      }
      const links::Membership& whole = rank.membership();
      const std::uint64_t key = mixKeys(whole.key, ~std::uint64_t{3});
      const std::uint64_t list = mixKeys(mixKeys(key, 0), 1);
      (void)whole.control->allGather(key, bootstrap::kPartialSequence | list, whole.members, kLiar, lie,
                                     whole.initTimeoutMs);
    });
    CHECK_FALSE(couple.honest().failed());
    return status;
  };
  for (const std::uint64_t number : {std::uint64_t{0}, (std::uint64_t{1} << 20) + 2, UINT64_MAX}) {
    const Status status = honestHears(said(Statement::kShrink, number), true);
    CHECK(status.code() == koloRemoteError);
    CHECK(contains(status.message(), "rank 1 of world proposes"));
  }
  CHECK(contains(honestHears(said(77, 1), true).message(), "rank 1 calls an unknown function"));
  CHECK(honestHears("", true).code() == koloMismatch);
  CHECK(honestHears(std::string(1000, '\xff'), false).code() == koloMismatch);
  CHECK(honestHears(said(Statement::kFlags, 2), false).message() == "");
}

TEST_CASE("a rank that says of another that it has given up a communicator is not believed", "[lies]") {
  Couple couple("shm");
  const links::Membership& liars = couple.liar().membership();
  liars.control->reportFailure(liars.keyOfGivingUp(), {error(koloAborted, "a lie"), liars.jobRank(kHonest)},
                               liars.hubsKey());
  couple.onBoth([&](Communicator& rank) {
    std::uint64_t flags = rank.rank() == kHonest ? 6 : 3;
    const Status agreed = agreeOnFlags(rank, &flags);
    if (rank.rank() != kHonest) return;
    CHECK(agreed.message() == "");
    CHECK(flags == 2);
  });
}

TEST_CASE("a rank that counts as dead for its lost connection takes part in no agreement, and says why") {
  Couple couple("shm");
  Communicator& lost = couple.honest();
  lost.failureState().hear({koloRemoteError, lost.membership().jobRank(kHonest), "it has lost its connection", true});
  std::uint64_t flags = 6;
  const Status status = agreeOnFlags(lost, &flags);
  CHECK(status.code() == koloUnreachable);
  CHECK(contains(status.message(), "it has lost its connection"));
  CHECK(flags == 6);
}

TEST_CASE("an id that is none, and that a rank gives to grow a communicator by, is refused", "[lies]") {
  for (const std::size_t bytes : {std::size_t{5}, std::size_t{KOLO_UNIQUE_ID_BYTES}, std::size_t{100000}}) {
    Couple couple("shm");
    Status status;
    couple.onBoth([&](Communicator& rank) {
      if (rank.rank() == kHonest) {
        status = grow(rank, 3, nullptr, nullptr).status();
        return;
      }
      links::BlobWriter call;
      call.put(std::int32_t{koloSuccess}).putText("").put(std::int32_t{3}).putText(std::string(bytes, 'K'));
      const links::Membership& its = rank.membership();
      (void)its.control->allGather(mixKeys(its.key, ~std::uint64_t{4}), 0, its.members, kLiar, call.text(),
                                   its.initTimeoutMs);
    });
    INFO(status.message());
    CHECK(status.code() == (bytes == KOLO_UNIQUE_ID_BYTES ? koloInvalidArgument : koloRemoteError));
    CHECK_FALSE(couple.honest().failed());
  }
}

TEST_CASE("a rank that asks in the name of another gets, and takes, none of its arrays", "[lies]") {
  SentArrays sent, ofOne;
  sent.add(1, "for rank 1");
  const std::string question = ofOne.question(1, 0);
  CHECK(SentArrays::descriptionIn(sent.answer(2, question).value_or("")) == "");
  ofOne.count(0);
  CHECK(SentArrays::descriptionIn(sent.answer(2, ofOne.question(1, 0)).value_or("")) == "");  // which drops the first
  CHECK(SentArrays::descriptionIn(sent.answer(1, question).value_or("")) == "for rank 1");
}

// ---- answers

TEST_CASE("an account of a rank that does not exist is none", "[lies]") {
  using failure::Account;
  Account account;
  account.waits = true;
  for (const int peer : {-1, 0, 3}) {
    account.peer = peer;
    CHECK(Account::decode(account.encode(), 4).has_value());
  }
  for (const int peer : {-2, 4, 0x20000000, INT_MIN, INT_MAX}) {
    account.peer = peer;
    CHECK_FALSE(Account::decode(account.encode(), 4).has_value());
  }
  account.peer = 1;
  account.waitedNs = -1;
  CHECK_FALSE(Account::decode(account.encode(), 4).has_value());
}

TEST_CASE("every word that a rank may say it has called has a name", "[lies]") {
  for (std::uint64_t word = 0; word < std::uint64_t{1} << 18; word += 7) {
    const auto signature = device::Signature::unpack(word);
    REQUIRE_FALSE(failure::labelOf(signature, 1, "world").empty());
    REQUIRE_FALSE(describe({signature, 1}).empty());
  }
}

TEST_CASE("accounts and terms altered at random are refused, or said in words", "[lies][fuzz]") {
  for (test::Rounds rounds(951); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    const auto noise = [&] {
      std::string text(random() % 100, '\0');
      for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 3);
      return text;
    };
    for (int i = 0; i < 100; ++i) {
      const std::optional<failure::Account> account = failure::Account::decode(noise(), 4);
      if (account) CHECK((account->peer >= -1 && account->peer < 4));
      struct OfTwo final : Terms {
        std::size_t parts() const override { return 2; }
        std::vector<Term> of(std::size_t part) const override { return {{part, "one"}, {part + 1, "two"}}; }
      };
      int asked = 0;
      (void)failure::firstDifference(OfTwo(), 0, 1, [&](failure::Asked, std::uint64_t) {
        return ++asked < 10 ? std::make_shared<const std::string>(noise()) : nullptr;
      });
      CHECK(asked <= 10);
    }
  }
}

// ---- lines

TEST_CASE("lines altered at random make a rank fail, or deliver a message, and write nowhere else", "[lies][fuzz]") {
  for (test::Rounds rounds(952); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    Couple couple(random() % 2 == 0 ? "shm" : "tcp");
    couple.exchangeOne();
    couple.lie([&](MessageLine& line) {
      line.kind = static_cast<MessageKind>(random() % 8);
      auto* const bytes = reinterpret_cast<unsigned char*>(&line.bytes);
      for (std::uint64_t changes = random() % 4; changes > 0; --changes)
        bytes[random() % (sizeof line - sizeof line.number)] = static_cast<unsigned char>(random());
    });
    std::vector<unsigned char> data(4096, 1);
    const WithTimeout brief(50);  // of what comes no more
    (void)couple.receive(data.data(), 64);
    CHECK(std::vector<unsigned char>(data.begin() + 64, data.end()) == std::vector<unsigned char>(4096 - 64, 1));
  }
}

}  // namespace kolo::comm
