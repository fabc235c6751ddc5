// Two ranks with all that posted links between them need.
#pragma once

#include <cstring>

#include "posted.h"
#include "suite.h"

namespace kolo::contract {

// Here and in another process: an inbox and an outbox each, and links both ways.
struct PostedPair : Pair {
  explicit PostedPair(const std::string& transport, const HostOptions& options = {}) : Pair(transport, options) {
    inbox = registered(rank, kInbox);
    outbox = registered(rank, kInbox);
    prepareInbox(rank, inbox);
    theirs = accepted(peer.registerMemory(kInbox)).blob;
    theirInbox = 0;
    theirOutbox = accepted(peer.registerMemory(kInbox)).value;
    peer.value(Op::kFill, theirInbox, kUntouched, kSignals - 64);
    link = linked(rank, peer.address(), theirs);
    theirLink = accepted(peer.link(rank.address(), rank.descriptor(inbox))).value;
  }
  PostedEnd end() const { return {&rank, 1, link, inbox, outbox}; }
  void startAnswering(std::uint64_t rounds, std::size_t most) {
    Request request{Op::kAnswerPosted, theirLink, theirInbox, theirOutbox};
    request.put.signal = rounds;
    request.put.bytes = most;
    peer.send(request);
  }
  Reply awaitThere(std::size_t at, std::uint64_t value) {
    return peer.call({Op::kAwaitSignal, theirInbox, at, value, theirLink});
  }
  std::uint64_t untouchedThere() {
    return kInbox - kSignals + 64 - peer.value(Op::kCount, theirInbox, kUntouched, kSignals - 64);
  }

  std::size_t inbox, outbox, link;
  koloTransportBlob theirs;
  std::uint64_t theirInbox, theirOutbox, theirLink;
};

}  // namespace kolo::contract
