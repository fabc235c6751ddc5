// What every transport promises, run against each one there is: those compiled in, and those in KOLO_TRANSPORT_PLUGINS.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "suite.h"
#include "support/deadline.h"

namespace kolo::contract {

TEST_CASE("two ranks of one process share a range by its own pointer", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    for (const Backing backing : {Backing::kFile, Backing::kOrdinary}) {
      DYNAMIC_SECTION(name << (backing == Backing::kFile ? " file" : " ordinary memory")) {
        Rank one, other;
        REQUIRE_OK(one.open(name, {}));
        REQUIRE_OK(other.open(name, {}));
        const std::size_t memory = registered(one, kBytes, kPage, backing);
        const std::size_t link = linked(other, one.address(), one.descriptor(memory));
        CHECK(other.mapped(link) == one.data(memory));
        const std::size_t second = linked(other, one.address(), one.descriptor(memory));
        other.closeLink(link);
        other.mapped(second)[kBytes - 1] = 7;
        CHECK(one.data(memory)[kBytes - 1] == 7);
      }
    }
  }
}

TEST_CASE("counters and payloads pass in order between threads", "[transport][threads]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Rank one, other;
      REQUIRE_OK(one.open(name, {}));
      REQUIRE_OK(other.open(name, {}));
      const std::size_t mine = registered(one, kBytes);
      const std::size_t theirs = registered(other, kBytes);
      unsigned char* const toOther = one.mapped(linked(one, other.address(), other.descriptor(theirs)));
      unsigned char* const toOne = other.mapped(linked(other, one.address(), one.descriptor(mine)));
      bool answered = false;
      std::thread thread([&] { answered = answerPings(other.data(theirs), toOne, 10000); });
      const bool sent = sendPings(one.data(mine), toOther, 10000);
      thread.join();
      CHECK(sent);
      CHECK(answered);
    }
  }
}

TEST_CASE("loads and stores through a link are seen in both processes", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      unsigned char* const mapped = pair.rank.mapped(linked(pair.rank, pair.peer.address(), theirs.blob));
      pair.peer.value(Op::kStoreOwn, theirs.value, 17, 42);
      CHECK(mapped[17] == 42);
      mapped[kBytes - 1] = 43;
      CHECK(pair.peer.value(Op::kLoadOwn, theirs.value, kBytes - 1) == 43);

      const std::size_t mine = registered(pair.rank, kBytes);
      const std::uint64_t link = accepted(pair.peer.link(pair.rank.address(), pair.rank.descriptor(mine))).value;
      pair.peer.value(Op::kStoreLink, link, 0, 44);
      CHECK(pair.rank.data(mine)[0] == 44);
    }
  }
}

TEST_CASE("counters and payloads pass in order between processes", "[transport][optimised]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      const std::size_t mine = registered(pair.rank, kBytes);
      unsigned char* const mapped = pair.rank.mapped(linked(pair.rank, pair.peer.address(), theirs.blob));
      const std::uint64_t link = accepted(pair.peer.link(pair.rank.address(), pair.rank.descriptor(mine))).value;
      pair.peer.send({Op::kAnswerPings, theirs.value, link, 10000});
      CHECK(sendPings(pair.rank.data(mine), mapped, 10000));
      CHECK(accepted(pair.peer.receive()).value == 1);
    }
  }
}

TEST_CASE("a range may be large and start at any offset of its file", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    for (const std::size_t offset : {std::size_t{0}, kPage, 5 * kPage, std::size_t{64}, kPage + 1}) {
      DYNAMIC_SECTION(name << " offset " << offset) {
        constexpr std::size_t kLarge = std::size_t{256} << 20;  // sparse: three pages are touched
        Pair pair(name);
        const Reply theirs = accepted(pair.peer.registerMemory(kLarge, offset));
        unsigned char* const mapped = pair.rank.mapped(linked(pair.rank, pair.peer.address(), theirs.blob));
        for (const std::size_t at : {std::size_t{0}, kLarge / 2, kLarge - 1}) {
          mapped[at] = 9;
          CHECK(pair.peer.value(Op::kLoadOwn, theirs.value, at) == 9);
        }
      }
    }
  }
}

TEST_CASE("several memories and several links to one are told apart", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      std::vector<unsigned char*> mapped;
      for (unsigned char i = 0; i < 5; ++i) {
        const Reply memory = accepted(pair.peer.registerMemory(kPage));
        pair.peer.value(Op::kStoreOwn, memory.value, 0, 100u + i);
        const std::size_t twice[] = {linked(pair.rank, pair.peer.address(), memory.blob),
                                     linked(pair.rank, pair.peer.address(), memory.blob)};
        mapped.push_back(pair.rank.mapped(twice[0]));
        pair.rank.closeLink(twice[1]);
      }
      for (unsigned char i = 0; i < 5; ++i) CHECK(mapped[i][0] == 100 + i);
    }
  }
}

TEST_CASE("a link outlives the registration, the memory, the device and the process it leads to", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      unsigned char* const mapped = pair.rank.mapped(linked(pair.rank, pair.peer.address(), theirs.blob));
      pair.peer.value(Op::kStoreOwn, theirs.value, 1, 1);
      pair.peer.value(Op::kDeregister, theirs.value);
      CHECK(mapped[1] == 1);
      pair.peer.value(Op::kStoreOwn, theirs.value, 1, 2);
      CHECK(mapped[1] == 2);
      pair.peer.value(Op::kFree, theirs.value);
      CHECK(mapped[1] == 2);
      pair.peer.value(Op::kClose);
      CHECK(mapped[1] == 2);
      pair.peer.kill();
      mapped[2] = 3;
      CHECK(mapped[1] + mapped[2] == 5);
    }
  }
}

TEST_CASE("a link to memory that is gone is an error at once", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply freed = accepted(pair.peer.registerMemory(kBytes));
      const Reply kept = accepted(pair.peer.registerMemory(kBytes));
      pair.peer.value(Op::kFree, freed.value);
      const auto before = std::chrono::steady_clock::now();
      const auto refused = pair.rank.openLink(pair.peer.address(), freed.blob);
      CHECK(refused.status().code() == koloSystemError);
      CHECK(refused.status().message().find("transport " + name) == 0);
      pair.peer.kill();
      CHECK_FALSE(pair.rank.openLink(pair.peer.address(), kept.blob).ok());
      CHECK_WITHIN(std::chrono::seconds(10), before);
    }
  }
}

TEST_CASE("ordinary memory of another process is unsupported, and says so", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes, 0, Backing::kOrdinary));
      const auto link = pair.rank.openLink(pair.peer.address(), theirs.blob);
      CHECK(link.status().code() == koloUnsupported);
      CHECK(link.status().message().find("memory") != std::string::npos);
    }
  }
}

// Which of the transports do is theirs to say; those that do, read what stands there, and fail without harm.
TEST_CASE("ordinary memory of a peer is read by its address, or the transport says why not", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply file = accepted(pair.peer.registerMemory(kBytes));
      const std::size_t link = linked(pair.rank, pair.peer.address(), file.blob);
      if (!pair.rank.reads(link).ok()) {
        CHECK(name != "shm");  // it does, wherever these tests can run
        CHECK(pair.rank.reads(link).message() != "");
        continue;
      }
      const Reply ordinary = accepted(pair.peer.registerMemory(kBytes, 0, Backing::kOrdinary));
      pair.peer.value(Op::kStoreOwn, ordinary.value, 0, 5);
      pair.peer.value(Op::kStoreOwn, ordinary.value, kBytes - 1, 6);
      const std::uint64_t from = pair.peer.value(Op::kAddressOfOwn, ordinary.value);
      std::vector<unsigned char> to(kBytes, 1);
      REQUIRE_OK(pair.rank.read(link, to.data(), from, kBytes));
      CHECK(to[0] == 5);
      CHECK(to[kBytes - 1] == 6);
      REQUIRE_OK(pair.rank.read(link, to.data(), from + kBytes - 1, 1));  // odd
      CHECK(to[0] == 6);
      CHECK(pair.rank.read(link, to.data(), 8, kBytes).message() != "");  // nothing is mapped there
      pair.peer.kill();
      CHECK(pair.rank.read(link, to.data(), from, kBytes).message() != "");
    }
  }
}

TEST_CASE("ordinary memory of a peer is written by its address, where a transport writes at all", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply file = accepted(pair.peer.registerMemory(kBytes));
      const std::size_t link = linked(pair.rank, pair.peer.address(), file.blob);
      if (!pair.rank.writes(link)) {
        CHECK(name != "shm");
        continue;
      }
      CHECK(pair.rank.reads(link).ok());  // never the one without the other
      const Reply ordinary = accepted(pair.peer.registerMemory(kBytes, 0, Backing::kOrdinary));
      const std::uint64_t to = pair.peer.value(Op::kAddressOfOwn, ordinary.value);
      std::vector<unsigned char> from(kBytes, 7);
      from.back() = 8;
      pair.peer.value(Op::kStoreOwn, ordinary.value, 0, 5);
      REQUIRE_OK(pair.rank.write(link, to + 1, from.data() + 1, kBytes - 1));  // odd
      const auto at = [&](std::uint64_t place) { return pair.peer.value(Op::kLoadOwn, ordinary.value, place); };
      CHECK(at(0) == 5);
      CHECK(at(1) == 7);
      CHECK(at(kBytes - 1) == 8);
      CHECK(pair.rank.write(link, 8, from.data(), kBytes).message() != "");  // nothing is mapped there
      pair.peer.kill();
      CHECK(pair.rank.write(link, to, from.data(), kBytes).message() != "");
    }
  }
}

TEST_CASE("ordinary memory of this process is read too, where a transport reads at all", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Rank one, other;
      REQUIRE_OK(one.open(name, {}));
      REQUIRE_OK(other.open(name, {}));
      const std::size_t link = linked(other, one.address(), one.descriptor(registered(one, kBytes)));
      if (!other.reads(link).ok()) continue;
      const int value = 7;
      int read = 0;
      REQUIRE_OK(other.read(link, &read, reinterpret_cast<std::uint64_t>(&value), sizeof read));
      CHECK(read == 7);
    }
  }
}

TEST_CASE("a peer on another machine is unreachable", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Rank rank;
      Peer peer;
      REQUIRE_OK(rank.open(name, {}));
      accepted(peer.open(name, {.otherMachine = true}));
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      const auto link = rank.openLink(peer.address(), theirs.blob);
      CHECK(link.status().code() == koloUnreachable);
      CHECK(link.status().message().find("another machine") != std::string::npos);
    }
  }
}

TEST_CASE("a member of another communicator is refused", "[transport]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Rank rank, stranger;
      Peer peer;
      REQUIRE_OK(rank.open(name, {.secret = 1}));
      REQUIRE_OK(stranger.open(name, {.secret = 2}));
      accepted(peer.open(name, {.secret = 1}));
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      CHECK(stranger.openLink(peer.address(), theirs.blob).status().code() == koloSystemError);
      CHECK(stranger.openLink(stranger.address(), theirs.blob).status().code() == koloSystemError);
      const std::size_t mine = registered(rank, kBytes);
      CHECK(stranger.openLink(rank.address(), rank.descriptor(mine)).status().code() == koloSystemError);
      CHECK(rank.openLink(peer.address(), theirs.blob).ok());
    }
  }
}

TEST_CASE("a blob with any byte altered is refused", "[transport]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      const std::size_t mine = registered(pair.rank, kBytes);
      const koloTransportBlob own = pair.rank.descriptor(mine);
      for (std::uint32_t at = 0; at < theirs.blob.bytes; ++at) {
        koloTransportBlob forged = theirs.blob;
        forged.data[at] ^= 0x10;
        CHECK_FALSE(pair.rank.openLink(pair.peer.address(), forged).ok());
        forged = own;
        forged.data[at] ^= 0x10;
        CHECK_FALSE(pair.rank.openLink(pair.rank.address(), forged).ok());
      }
      for (std::uint32_t at = 0; at < pair.peer.address().bytes; ++at) {
        koloTransportBlob forged = pair.peer.address();
        forged.data[at] ^= 0x10;
        CHECK_FALSE(pair.rank.openLink(forged, theirs.blob).ok());
      }
    }
  }
}

TEST_CASE("garbage, empty, short and overlong blobs are errors", "[transport]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Pair pair(name);
      const Reply theirs = accepted(pair.peer.registerMemory(kBytes));
      for (const std::uint32_t bytes : {0u, 1u, theirs.blob.bytes - 1, 256u, 257u, 0xffffffffu}) {
        koloTransportBlob garbage = theirs.blob;
        garbage.bytes = bytes;
        CHECK_FALSE(pair.rank.openLink(pair.peer.address(), garbage).ok());
        CHECK_FALSE(pair.rank.openLink(garbage, theirs.blob).ok());
      }
      koloTransportBlob noise = theirs.blob;
      for (std::uint32_t at = 0; at < noise.bytes; ++at) noise.data[at] = static_cast<unsigned char>(at * 151 + 7);
      CHECK_FALSE(pair.rank.openLink(pair.peer.address(), noise).ok());
      CHECK(pair.rank.openLink(pair.peer.address(), theirs.blob).ok());
    }
  }
}

TEST_CASE("an empty range is refused, with a reason", "[transport]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Rank rank;
      REQUIRE_OK(rank.open(name, {}));
      const auto memory = rank.registerMemory(0, kPage, Backing::kFile);
      CHECK(memory.status().message().find("at least one byte") != std::string::npos);
    }
  }
}

TEST_CASE("neither file descriptors nor mappings are left behind", "[transport]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Rank warm;  // what a transport opens once for the process is not a leak
      REQUIRE_OK(warm.open(name, {}));
      registered(warm, kPage);
      Peer peer;
      const auto round = [&] {
        Rank rank;
        REQUIRE_OK(rank.open(name, {}));
        accepted(peer.open(name));
        for (int i = 0; i < 4; ++i) {
          const Reply theirs = accepted(peer.registerMemory(kBytes));
          const std::size_t mine = registered(rank, kBytes);
          linked(rank, peer.address(), theirs.blob);
          accepted(peer.link(rank.address(), rank.descriptor(mine)));
          koloTransportBlob forged = theirs.blob;
          forged.data[forged.bytes - 1] ^= 1;
          CHECK_FALSE(rank.openLink(peer.address(), forged).ok());
        }
        rank.close();
        peer.value(Op::kClose);
      };
      round();
      const std::size_t mappings = sharedMappings();
      const std::uint64_t peerMappings = peer.value(Op::kSharedMappings);
      // The exporter closes a served connection in its own time, which may be just after the importer has its file: the
      // fewest files are those without one.
      std::size_t files = openFiles();
      std::uint64_t peerFiles = peer.value(Op::kOpenFiles);
      for (int i = 0; i < 8; ++i) {
        round();
        files = std::min(files, openFiles());
        peerFiles = std::min(peerFiles, peer.value(Op::kOpenFiles));
      }
      const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
      for (int i = 0; i < 2000 && openFiles() > files; ++i) pause();
      for (int i = 0; i < 2000 && peer.value(Op::kOpenFiles) > peerFiles; ++i) pause();
      CHECK(openFiles() == files);
      CHECK(sharedMappings() == mappings);
      CHECK(peer.value(Op::kOpenFiles) == peerFiles);
      CHECK(peer.value(Op::kSharedMappings) == peerMappings);
    }
  }
}

TEST_CASE("devices open and close in any order while others work", "[transport]") {
  for (const std::string& name : working(koloLinkMapped)) {
    DYNAMIC_SECTION(name) {
      Peer peer;
      accepted(peer.open(name));
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      auto first = std::make_unique<Rank>();
      auto second = std::make_unique<Rank>();
      REQUIRE_OK(first->open(name, {}));
      REQUIRE_OK(second->open(name, {}));
      registered(*first, kBytes);
      const std::size_t mine = registered(*second, kBytes);
      unsigned char* const mapped = second->mapped(linked(*second, peer.address(), theirs.blob));
      first.reset();
      accepted(peer.link(second->address(), second->descriptor(mine)));
      mapped[0] = 5;
      CHECK(peer.value(Op::kLoadOwn, theirs.value, 0) == 5);
      second.reset();
      Rank third;
      REQUIRE_OK(third.open(name, {}));
      const std::size_t again = registered(third, kBytes);
      const std::uint64_t link = accepted(peer.link(third.address(), third.descriptor(again))).value;
      peer.value(Op::kStoreLink, link, 0, 6);
      CHECK(third.data(again)[0] == 6);
    }
  }
}

TEST_CASE("many devices work concurrently", "[transport][threads]") {
  for (const std::string& name : working()) {
    DYNAMIC_SECTION(name) {
      Peer peer;
      accepted(peer.open(name));
      const Reply theirs = accepted(peer.registerMemory(kBytes));
      std::vector<std::string> problems(6);
      std::vector<std::thread> threads;
      for (std::string& problem : problems) {
        threads.emplace_back([&] {
          for (int i = 0; i < 20 && problem.empty(); ++i) {
            Rank rank;
            if (const Status status = rank.open(name, {}); !status.ok()) problem = status.message();
            if (const auto memory = rank.registerMemory(kPage, 0, Backing::kFile); !memory.ok()) {
              problem = memory.status().message();
            }
            const auto link = rank.openLink(peer.address(), theirs.blob);
            if (!link.ok()) problem = link.status().message();
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& problem : problems) CHECK(problem == "");
    }
  }
}

}  // namespace kolo::contract
