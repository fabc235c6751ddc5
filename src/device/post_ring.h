// How the blocks of a GPU hand the requests of posted links to the host: a ring for each channel, in pinned memory,
// which the threads of the channel's block fill and the communicator's proxy thread (gpu/proxy.h) empties.
//
// The requests of a channel are numbered 1, 2, 3, ... by a counter on the device; request k stands in place k %
// kPostPlaces.
//
//   a thread of the block (BlockTeam::post)              the proxy
//     k = ++issued                                         the number in k's place, acquired: is it k? [post]
//     waits until taken >= k - kPostPlaces [taken]           reads the request, hands it to the transport
//     writes the request                                     taken = k, released [taken]
//     its number = k, released [post]
//
// [post]: the release has system scope and is cumulative. What the other threads of the block wrote into the mirror
// before the barrier that precedes the request is visible, like the request itself, to a thread that acquires its
// number. The transport, which reads the mirror on behalf of the proxy, comes after that. [taken]: the proxy's loads of
// the place are over before the place is written again.
//
// Threads of a block may write requests side by side (Team::spread), each to a peer of its own; those to one peer are
// ordered by the barriers between them, and so are their numbers.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/link.h"

namespace kolo::device {

inline constexpr std::uint64_t kPostPlaces = 64;

struct alignas(64) PostRequest {
  Counter number;       // written last, released [post]
  std::uint64_t value;  // for the counter
  std::uint32_t peer, rail;
  std::uint32_t dataAt, bytes, counterAt;  // offsets in the mirror
  std::uint32_t unused;
  std::uint64_t word, count, operation;  // whose it is, should the link be lost: word, count and number of HeaderTerms
};
static_assert(sizeof(PostRequest) == 64, "one cache line");

// In pinned memory of the host.
struct PostRing {
  PostRequest places[kPostPlaces];
  alignas(64) Counter taken;  // by the proxy: requests whose places may be written again [taken]
  alignas(64) Counter ended;  // by the block: launches that it has executed, after all their requests [ended]
};

// What the block keeps about its ring; in its device's memory.
struct alignas(64) PostBox {
  PostRing* ring;
  Counter issued;  // requests numbered
  Counter
      seen;  // `taken`, as some thread of the block read it last: to read it in the host's memory takes long [taken]
  Counter launches;  // ended
};

}  // namespace kolo::device
