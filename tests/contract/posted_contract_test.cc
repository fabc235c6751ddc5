// What every transport with posted links promises, run against each one there is.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "posted.h"
#include "suite.h"

namespace kolo::contract {
namespace {

// Both ends with an inbox and an outbox, and links both ways.
struct PostedPair : Pair {
  explicit PostedPair(const std::string& transport, const HostOptions& options = {}) : Pair(transport, options) {
    inbox = registered(rank, kInbox);
    outbox = registered(rank, kInbox);
    std::memset(rank.data(inbox) + kSignals - 64, kUntouched, kInbox - kSignals + 64);
    const Reply theirs = accepted(peer.registerMemory(kInbox));
    theirInbox = theirs.value;
    theirOutbox = accepted(peer.registerMemory(kInbox)).value;
    peer.value(Op::kFill, theirInbox, kUntouched, kSignals - 64);
    link = linked(rank, peer.address(), theirs.blob);
    theirLink = accepted(peer.link(rank.address(), rank.descriptor(inbox))).value;
  }
  PostedEnd end() { return {&rank, 1, link, inbox, outbox}; }
  void startAnswering(std::uint64_t rounds, std::size_t most) {
    Request request{Op::kAnswerPosted, theirLink, theirInbox, theirOutbox};
    request.put.signal = rounds;
    request.put.bytes = most;
    peer.send(request);
  }

  std::size_t inbox, outbox, link;
  std::uint64_t theirInbox, theirOutbox, theirLink;
};

}  // namespace

TEST_CASE("payloads and signals pass in order between processes", "[posted]") {
  for (const std::string& name : working(koloLinkPosted)) {
    for (const auto& [rounds, most] : {std::pair<std::uint64_t, std::size_t>{10000, 2048}, {200, kMostPayload}}) {
      DYNAMIC_SECTION(name << " up to " << most << " bytes") {
        PostedPair pair(name);
        pair.startAnswering(rounds, most);
        CHECK(sendPostedPings(pair.end(), rounds, most) == "");
        accepted(pair.peer.receive());
      }
    }
  }
}

}  // namespace kolo::contract
