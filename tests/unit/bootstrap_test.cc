// The control plane: ids, sessions, joining, gathering. Ranks are threads of this process.
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "bootstrap_fixture.h"
#include "support/deadline.h"

using namespace kolo;
using namespace kolo::bootstrap;
using namespace std::chrono_literals;

TEST_CASE("a unique id survives being copied and nothing else", "[bootstrap]") {
  const koloUniqueId id = newId();
  const IdContents contents = contentsOf(id);
  CHECK(contents.port != 0);
  CHECK(contents.makerPid == static_cast<std::uint32_t>(::getpid()));
  CHECK(std::memcmp(encodeId(contents).internal, id.internal, sizeof id.internal) == 0);

  for (std::size_t i = 0; i < sizeof id.internal; i += 5) {
    koloUniqueId damaged = id;
    damaged.internal[i] ^= 0x10;
    CHECK(decodeId(damaged).status().code() == koloInvalidArgument);
  }
  const koloUniqueId zeros{};
  const Result<ControlPtr> joined = join(zeros, 0, 1, 100);
  CHECK(joined.status().code() == koloInvalidArgument);
  CHECK(contains(joined.status().message(), "not a unique id"));
}

TEST_CASE("an id in the format of another version of the library is refused with both versions", "[bootstrap]") {
  IdContents contents = contentsOf(newId());
  contents.version = 123456;
  contents.format = kIdFormat + 1;
  const Status status = join(encodeId(contents), 0, 1, 100).status();
  CHECK(status.code() == koloMismatch);
  CHECK(contains(status.message(), "12.34.56"));
  CHECK(contains(status.message(), describeVersion(KOLO_VERSION_CODE)));
}

TEST_CASE("a unique id has as many addresses as there is room for, the best first, and says so if there are more",
          "[bootstrap]") {
  IdContents contents = contentsOf(newId());
  const auto placesOf = [&](std::size_t count, const char* network) {
    contents.places.clear();
    for (std::size_t i = 1; i <= count; ++i)
      contents.places.push_back({*network::parseAddress(network + std::to_string(i))});
    return contentsOf(encodeId(contents));
  };
  for (const auto& [network, most] : {std::pair("10.0.0.", 8), std::pair("fd00::", 3)}) {
    const auto room = static_cast<std::size_t>(most);
    for (const std::size_t count : {room, room + 1}) {
      const IdContents read = placesOf(count, network);
      REQUIRE(read.places.size() == room);
      CHECK(read.places.front().text() == network + std::string("1"));
      CHECK(read.places.back().text() == network + std::to_string(room));
      CHECK(read.hasMore == (count > room));
    }
  }
}

TEST_CASE("a hub on another host is looked for at no address that this host has itself", "[bootstrap]") {
  std::vector<Place> own;
  REQUIRE(network::ownPlaces(&own) == 0);
  IdContents contents = contentsOf(newId());
  contents.secret[0] ^= 1;
  contents.stack ^= 1;
  contents.places = own;
  const Status status = dial(contents, Clock::now() + 20s).status();
  INFO(status.message());
  CHECK(status.code() == koloUnreachable);
  CHECK(contains(status.message(), "has no address"));
  CHECK(contains(status.message(), "KOLO_INTERFACE"));
  CHECK_FALSE(contains(status.message(), "refused"));
}

TEST_CASE("ranks and their number are checked before anything is sent", "[bootstrap]") {
  const koloUniqueId id = newId();
  CHECK(join(id, 0, 0, 100).status().code() == koloInvalidRankCount);
  CHECK(join(id, 0, 1 << 30, 100).status().code() == koloInvalidRankCount);
  CHECK(join(id, 2, 2, 100).status().code() == koloInvalidRank);
  CHECK(join(id, -1, 2, 100).status().code() == koloInvalidRank);
}

TEST_CASE("lists of ranks are printed compactly and travel in order", "[bootstrap]") {
  CHECK(describeRanks({2, 5, 6, 7}) == "2, 5-7");
  CHECK(describeRanks({}).empty());
  CHECK(describeRanks(upTo(512)) == "0-511");
  const std::vector<int> order = {4, 5, 6, 2, 9, 0, 1};
  const std::string bytes = Encoder().ranks(order).take();
  Decoder decoder(bytes);
  CHECK(decoder.ranks(7) == order);
  CHECK(decoder.done());
  CHECK(Encoder().ranks(upTo(512)).size() == 12);
  Decoder tooMany(bytes);
  (void)tooMany.ranks(6);
  CHECK_FALSE(tooMany.ok());
}

TEST_CASE("a session opens only what its peer sealed, once and in order", "[bootstrap]") {
  REQUIRE(initialiseCrypto().ok());
  Secret secret{};
  secret[3] = 7;
  const KeyExchange ofClient(secret), ofHub(secret);
  Session client(Session::Side::kClient, ofClient, ofHub.share(), "client hello", "hub hello");
  Session hub(Session::Side::kHub, ofHub, ofClient.share(), "client hello", "hub hello");
  CHECK(hub.check(client.prove()) == Reply::kOk);
  CHECK(client.check(hub.prove()) == Reply::kOk);
  std::string sealed;
  client.seal("first", sealed);
  const std::string first = sealed;
  client.seal("second", sealed);
  const std::string second = sealed.substr(first.size());
  const auto open = [](Session session, const std::string& bytes, std::string& plain) {
    return session.open(bytes.substr(0, kLengthBytes), bytes.substr(kLengthBytes), plain);
  };
  std::string plain;
  CHECK_FALSE(open(hub, second, plain));
  CHECK(open(hub, first, plain));
  CHECK(plain == "first");
  std::string damaged = first;
  damaged.back() ^= 1;
  CHECK_FALSE(open(hub, damaged, plain));
  REQUIRE(hub.open(first.substr(0, kLengthBytes), first.substr(kLengthBytes), plain));
  CHECK_FALSE(open(hub, first, plain));  // again
  CHECK(open(hub, second, plain));
  CHECK(Session::cipherBytes(std::string("\xff\xff\xff\xff", 4)) == 0);

  secret[3] = 8;
  const KeyExchange ofOther(secret);
  Session other(Session::Side::kClient, ofOther, ofHub.share(), "client hello", "hub hello");
  CHECK(Session(Session::Side::kHub, ofHub, ofOther.share(), "client hello", "hub hello").check(other.prove()) ==
        Reply::kWrongSecret);
}

TEST_CASE("who has recorded a handshake and knows its secret cannot tell that it is the secret", "[bootstrap]") {
  REQUIRE(initialiseCrypto().ok());
  const Secret secret{};
  const KeyExchange ofClient(secret), ofHub(secret);
  Session client(Session::Side::kClient, ofClient, ofHub.share(), "client hello", "hub hello");
  const std::string proof = client.prove();
  const auto proves = [&](const KeyExchange& mine, const KeyExchange::Share& theirs) {
    return Session(Session::Side::kHub, mine, theirs, "client hello", "hub hello").check(proof) == Reply::kOk;
  };
  CHECK(proves(ofHub, ofClient.share()));
  const KeyExchange guess(secret);  // with a number of its own: those of the two ends are gone
  CHECK_FALSE(proves(guess, ofClient.share()));
  CHECK_FALSE(proves(guess, ofHub.share()));
  CHECK_FALSE(proves(ofHub, KeyExchange::Share{}));  // no point
}

TEST_CASE("one rank is a job", "[bootstrap]") {
  const std::vector<ControlPtr> controls = joinAll(newId(), 1);
  const Blobs blobs = controls[0]->allGather(1, 1, {0}, 0, "me", 100);
  REQUIRE(blobs.ok());
  CHECK(blobs.value() == std::vector<std::string>{"me"});
  leaveAll(controls);
}

TEST_CASE("64 ranks join at once, gather, and derive equal secrets", "[bootstrap][threads]") {
  constexpr int kRanks = 64;
  const std::vector<ControlPtr> controls = joinAll(newId(), kRanks);
  std::atomic<int> right{0};
  onThreads(kRanks, [&](int rank) {
    const Blobs blobs = controls[static_cast<std::size_t>(rank)]->allGather(9, 1, upTo(kRanks), rank,
                                                                            std::to_string(rank * 3), kPatienceMs);
    bool good = blobs.ok() && blobs.value().size() == kRanks;
    for (int i = 0; good && i < kRanks; ++i) good = blobs.value()[static_cast<std::size_t>(i)] == std::to_string(i * 3);
    right += good ? 1 : 0;
  });
  CHECK(right == kRanks);
  CHECK(controls[0]->derivedSecret("shm") == controls[63]->derivedSecret("shm"));
  CHECK(controls[0]->derivedSecret("shm") != controls[0]->derivedSecret("tcp"));
  CHECK(controls[0]->derivedSecret("shm").size() == 32);
  leaveAll(controls);
}

TEST_CASE("blobs of the largest size are gathered, larger ones refused", "[bootstrap]") {
  constexpr int kRanks = 4;
  const std::vector<ControlPtr> controls = joinAll(newId(), kRanks);
  std::atomic<int> right{0};
  onThreads(kRanks, [&](int rank) {
    const std::string mine(kMaxBlobBytes, static_cast<char>('a' + rank));
    const Blobs blobs =
        controls[static_cast<std::size_t>(rank)]->allGather(1, 1, upTo(kRanks), rank, mine, kPatienceMs);
    bool good = blobs.ok();
    for (int i = 0; good && i < kRanks; ++i) {
      good = blobs.value()[static_cast<std::size_t>(i)] == std::string(kMaxBlobBytes, static_cast<char>('a' + i));
    }
    right += good ? 1 : 0;
  });
  CHECK(right == kRanks);
  const std::string tooLarge(kMaxBlobBytes + 1, 'x');
  CHECK(controls[0]->allGather(1, 2, upTo(kRanks), 0, tooLarge, 100).status().code() == koloInvalidArgument);
  CHECK(controls[0]->allGather(1, 2, {1, 2}, 0, "not mine", 100).status().code() == koloInvalidArgument);
  leaveAll(controls);
}

TEST_CASE("several gathers of several jobs are in flight at once", "[bootstrap][threads]") {
  const std::vector<ControlPtr> first = joinAll(newId(), 3);
  const std::vector<ControlPtr> second = joinAll(newId(), 3);
  std::atomic<int> right{0};
  onThreads(24, [&](int i) {
    const int rank = i % 3;
    const int sequence = i / 3 % 4;  // 4 exchanges each, begun in any order
    const std::vector<ControlPtr>& job = i < 12 ? first : second;
    const std::string mine = fmt::format("{}/{}/{}", i < 12, sequence, rank);
    // Members in an order of their own.
    const std::vector<int> members = {2, 0, 1};
    const int index = (rank + 1) % 3;
    const Blobs blobs = job[static_cast<std::size_t>(rank)]->allGather(5, static_cast<std::uint64_t>(sequence), members,
                                                                       index, mine, kPatienceMs);
    if (blobs.ok() && blobs.value()[0] == fmt::format("{}/{}/2", i < 12, sequence) &&
        blobs.value()[1] == fmt::format("{}/{}/0", i < 12, sequence)) {
      ++right;
    }
  });
  CHECK(right == 24);
  leaveAll(first);
  leaveAll(second);
}

TEST_CASE("the second claimant of a rank is refused, the first goes on", "[bootstrap][threads]") {
  const koloUniqueId id = newId();
  std::vector<Status> statuses(2);
  std::vector<ControlPtr> controls(2);
  std::atomic<bool> refused{false};
  ControlPtr one;
  std::thread completes([&] {
    for (int i = 0; i < 10000 && !refused; ++i) std::this_thread::sleep_for(1ms);
    Result<ControlPtr> joined = join(id, 1, 2, kPatienceMs);
    if (joined.ok()) one = joined.take();
  });
  onThreads(2, [&](int i) {
    Result<ControlPtr> joined = join(id, 0, 2, kPatienceMs);
    statuses[static_cast<std::size_t>(i)] = joined.status();
    if (joined.ok()) controls[static_cast<std::size_t>(i)] = joined.take();
    if (!joined.ok()) refused = true;
  });
  completes.join();
  const std::size_t loser = statuses[0].ok() ? 1 : 0;
  CHECK(statuses[1 - loser].ok());
  CHECK(statuses[loser].code() == koloDuplicateRank);
  CHECK(contains(statuses[loser].message(), "rank 0 was claimed twice"));
  CHECK(contains(statuses[loser].message(), fmt::format("pid {}", ::getpid())));
  CHECK(one != nullptr);
  leaveAll({controls[1 - loser], one});
}

TEST_CASE("ranks that disagree on their number all learn both numbers", "[bootstrap]") {
  const koloUniqueId id = newId();
  std::vector<Status> statuses(2);
  onThreads(
      2, [&](int rank) { statuses[static_cast<std::size_t>(rank)] = join(id, rank, 2 + rank, kPatienceMs).status(); });
  statuses.push_back(join(id, 2, 3, kPatienceMs).status());
  for (const Status& status : statuses) {
    CHECK(status.code() == koloInvalidRankCount);
    CHECK(contains(status.message(), "says 2"));
    CHECK(contains(status.message(), "says 3"));
  }
}

TEST_CASE("a rank with another library version makes joining fail with both versions", "[bootstrap]") {
  const koloUniqueId id = newId();
  Status status;
  std::thread rank([&] { status = join(id, 0, 2, kPatienceMs).status(); });
  Result<Dialled> raw = dial(contentsOf(id), Clock::now() + 5s);
  REQUIRE(raw.ok());
  std::this_thread::sleep_for(50ms);
  std::string bytes;
  raw.value().session.seal(rawJoin(1, 2, 123456), bytes);
  push(raw.value().socket, bytes);
  rank.join();
  CHECK(status.code() == koloMismatch);
  CHECK(contains(status.message(), "rank 1 (pid 4711 on elsewhere) runs Kolo 12.34.56"));
  CHECK(contains(status.message(), "runs Kolo " + describeVersion(KOLO_VERSION_CODE)));
}

TEST_CASE("joining times out with the names of the missing ranks", "[bootstrap]") {
  const koloUniqueId id = newId();
  std::vector<Status> statuses(4);
  const auto start = Clock::now();
  const std::vector<int> present = {0, 1, 3, 4};
  onThreads(4, [&](int i) {
    statuses[static_cast<std::size_t>(i)] =
        join(id, present[static_cast<std::size_t>(i)], 8, i == 0 ? 3000 : 15000).status();
  });
  CHECK_WITHIN(5s, start);  // the first to give up spares the others the wait
  for (const Status& status : statuses) {
    CHECK(status.code() == koloTimeout);
    CHECK(contains(status.message(), "ranks 2, 5-7 of 8 have not joined within 3000 ms (KOLO_INIT_TIMEOUT_MS)"));
  }
  // A late rank is told, not left waiting.
  CHECK(join(id, 2, 8, kPatienceMs).status().code() == koloTimeout);
}

TEST_CASE("an address where nobody listens is named with the reason, soon", "[bootstrap]") {
  IdContents contents = contentsOf(newId());
  std::uint16_t port = 0;
  { Result<Socket> gone = listenOn({}, 0, port); }
  contents.port = port;
  contents.secret[0] ^= 1;  // of a hub that is not in this process
  contents.places = {{kLoopback}};
  const auto start = Clock::now();
  const Status status = join(encodeId(contents), 0, 1, kPatienceMs).status();
  CHECK(status.code() == koloUnreachable);
  CHECK(contains(status.message(), fmt::format("127.0.0.1:{}: Connection refused", port)));
  CHECK_WITHIN(4s, start);
}
