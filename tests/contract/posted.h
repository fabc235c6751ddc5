// Both ends of what the posted part of the suite sends: used by the tests directly, and by the other process that a
// test commands.
#pragma once

#include "rank.h"

namespace kolo::contract {

// The inbox of each side: signals, then room for payloads.
inline constexpr std::size_t kSignals = 4096;
inline constexpr std::size_t kMostPayload = std::size_t{4} << 20;
inline constexpr std::size_t kInbox = kSignals + kMostPayload + 4096;

struct PostedEnd {
  const Rank* rank;
  int peer;          // its number
  std::size_t link;  // to its inbox
  std::size_t inbox;
  std::size_t outbox;  // where payloads are made; as large as an inbox
};

// Puts, making progress while the link is busy; until a minute has passed.
Status putAll(const PostedEnd& end, const PutOptions& options);
// Until the signal at the offset of the inbox is at least `value`; koloTimeout after `ms`.
Status awaitSignal(const PostedEnd& end, std::size_t at, std::uint64_t value, int ms = 60000);
// Until nothing of the link's is unfinished.
Status settle(const PostedEnd& end, int ms = 60000);
// Progress for so long, whatever happens.
void progressFor(const Rank& rank, int peer, int ms);

// What surrounds the payloads; an inbox is filled with it before anything is put there.
inline constexpr unsigned char kUntouched = 0xee;

// Put n of rail r writes n to kSignals + 64 * (n % 1024) + 8 * r, and then to the signal at 128 + 8 * r: whoever sees
// the signal must find the number, until all rails have reached `puts`.
std::string watchRails(const PostedEnd& end, std::uint64_t rails, std::uint64_t puts);

void prepareInbox(const Rank& rank, std::size_t inbox);

// A ping-pong in which each ping carries a payload of up to `most` bytes, at offsets that follow from the round: sizes,
// offsets and contents are checked by the receiver. Empty: all was right; else what was not.
std::string sendPostedPings(const PostedEnd& end, std::uint64_t rounds, std::size_t most);
std::string answerPostedPings(const PostedEnd& end, std::uint64_t rounds, std::size_t most);

}  // namespace kolo::contract
