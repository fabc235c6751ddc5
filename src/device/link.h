// What two ranks share: the header line that opens each operation (D4), the counters (D3), the staging slots, and the
// link, a small POD through which a team reaches one peer.
//
// Invariants
//  - A mailbox lies in the memory of the rank that reads it and is written by exactly one peer.
//  - A pair of ranks numbers the headers it exchanges 1, 2, 3, ... on both sides alike; header k stands in line k % 2.
//    Two lines are enough: a rank writes header k + 1 to a peer only after it has read the peer's header k, and the peer
//    wrote that one after it had finished the operation to which header k - 1 belonged. So when line (k + 1) % 2 is
//    written again nobody reads the header k - 1 in it any more, and header k stays readable for the whole operation.
//  - Chunks on a directed pair are numbered 1, 2, 3, ...; chunk k stands in slot k % slots. tail counts chunks put,
//    head counts chunks taken; a sender keeps tail - head <= slots.
#pragma once

#include <cstdint>

#include "device/atomics.h"

namespace kolo::device {

inline constexpr int kHeaderPayloadBytes = 40;

// Where a buffer lies: window `index` - 1, bytes from its begin; index 0: in no window.
struct WindowRef {
  std::uint64_t offset = 0;
  std::uint32_t index = 0;
};

struct alignas(64) Header {
  Counter number;            // written last, released [header]
  std::uint64_t signature;   // Signature::pack()
  std::uint64_t count;
  union {
    struct {
      std::uint64_t sendOffset, recvOffset;
      std::uint32_t sendWindow, recvWindow;
    } refs;
    unsigned char payload[kHeaderPayloadBytes];
  };
};
static_assert(sizeof(Header) == 64, "one cache line");

struct alignas(64) Signals {
  Counter tail;   // chunks that the peer has put into my slots [chunk]
  Counter head;   // chunks that the peer has taken out of its slots, which I filled [credit]
  Counter done;   // operations after which the peer touches my buffers no more [done]
};

struct Mailbox {
  Header header[2];
  Signals signals;
};

// Point-to-point messages are described in device/message.h; they have lines and slots of their own.

struct Link {
  int peer = -1;
  Mailbox* inbox = nullptr;                       // in my memory, written by the peer
  const unsigned char* inSlots = nullptr;         // likewise
  Mailbox* outbox = nullptr;                      // in the peer's memory, written by me
  unsigned char* outSlots = nullptr;              // likewise
  unsigned char* const* windows = nullptr;        // begin of the peer's part of each window

  // How far we are; known to this rank alone. In a team of several threads only the leader writes them, after the last
  // barrier of a primitive; the others read them after the first barrier of the next.
  std::uint64_t announced = 0;   // headers written to the peer
  std::uint64_t met = 0;         // headers read from it
  std::uint64_t sent = 0;        // chunks put
  std::uint64_t credited = 0;    // head, when it was last read: reading it costs a miss
  std::uint64_t received = 0;    // chunks taken
  std::uint64_t finished = 0;    // direct operations ended with it
};

}  // namespace kolo::device
