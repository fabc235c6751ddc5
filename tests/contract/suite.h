// What the cases of the contract suite have in common: the transports to check, and short forms that check on the way.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "peer.h"
#include "support/text.h"

#define REQUIRE_OK(expression) REQUIRE((expression).message() == "")

namespace kolo::contract {

using test::contains;

// ThreadSanitizer takes a thread of a forked child for the parent's thread of the same id, and ends the child.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadsInChild = false;
#else
inline constexpr bool kThreadsInChild = true;
#endif

inline constexpr std::size_t kBytes = 64 << 10;
inline constexpr std::size_t kPage = 4096;

// Names of those compiled in and of KOLO_TRANSPORT_PLUGINS, all of which must work here.
std::vector<std::string> working();
std::vector<std::string> working(koloLinkKind_t kind);

std::size_t registered(Rank& rank, std::size_t bytes, std::size_t offset = 0, Backing backing = Backing::kFile);
std::size_t linked(Rank& rank, const koloTransportBlob& address, const koloTransportBlob& descriptor);
Reply accepted(Reply reply);

// Rank 0 here, rank 1 in the other process, both opened.
struct Pair {
  explicit Pair(const std::string& transport, const HostOptions& options = {});
  Rank rank;
  Peer peer;
};

}  // namespace kolo::contract
