// A peer that writes what it cannot have to write: the other rank says so and ends the communicator, and nothing is
// read, sent or written outside of what was given for that.
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "comm/factory.h"
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

}  // namespace kolo::comm
