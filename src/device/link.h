// What two ranks share: the header line that opens each operation (D4), the counters (D3), the staging slots, and the
// link, a small POD through which a team reaches one peer.
//
// Invariants
//  - A mailbox lies in the memory of the rank that reads it and is written by exactly one peer.
//  - A pair of ranks numbers the headers it exchanges 1, 2, 3, ... on both sides alike; header k stands in line
//    k % kHeaderLines.
//  - A rank that only gives to a peer may leave the peer's header unread ("owed") and go on; it writes header k only
//    after it has read the peer's header k - kMaxOwed. kHeaderLines = 2 kMaxOwed lines are enough: when the peer wrote
//    its header k - kMaxOwed, it had finished the operations before that one, and had read all headers up to
//    k - 2 kMaxOwed. So nobody reads the header k - kHeaderLines any more when its line is written again, and header k
//    stays readable for the whole operation to which it belongs.
//    tests/unit/header_model_test.cc tries all interleavings.
//  - Chunks on a directed pair are numbered 1, 2, 3, ...; chunk k stands in slot k % slots. tail counts chunks put,
//    head counts chunks taken; a sender keeps tail - head <= slots. A header tells of both, too. The sender's may say
//    that the first chunk of the operation has been put. The receiver's header k shows that it has taken all that was
//    put before the sender's header k. So an operation in which chunks for half of the slots come from a peer needs no
//    head: whoever waits for one of them has announced the next operation's header, or has a slot for its first chunk.
//  - A step in packets (device/packets.h) has a number among the headers of the pair, and no header line: its front
//    says what the line would. Such a header shows nothing of chunks, for it orders nothing; the slots are used as if
//    there had been no such step.
//  - A mirror is the state that the peer's memory is to have: nothing of it is written again before the peer has shown,
//    by a credit or a header, that it has seen it. So a request may be carried out late, or twice.
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/host_device.h"
#include "device/path.h"
#include "device/views.h"

namespace kolo::device {

struct Segments;

inline constexpr int kHeaderPayloadBytes = 40;
inline constexpr std::uint32_t kMaxOwed = 32;
inline constexpr std::uint32_t kHeaderLines = 2 * kMaxOwed;

// Where a buffer lies: window `index` - 1, bytes from its begin; index 0: in no window.
struct WindowRef {
  std::uint64_t offset = 0;
  std::uint32_t index = 0;
};
// In the place of a window's index: what a header says of an input that comes through the slots, whatever the peer
// offers.
inline constexpr std::uint32_t kInSlots = 0xffffffffu;
KOLO_DEVICE Offer offerOf(const WindowRef& ref) {
  if (ref.index != 0) return ref.index != kInSlots ? Offer::kWindow : Offer::kInSlots;
  return ref.offset != 0 ? Offer::kAddress : Offer::kNothing;
}

// A rank's part of a window, as this process sees it.
struct WindowPart {
  unsigned char* begin = nullptr;
  std::uint64_t bytes = 0;
};
inline constexpr std::uint32_t kMostWindows = 4096;  // of a communicator

struct alignas(64) Header {
  // First, so that a vector load of the payload does not reach into the next line. The peer writes there next. To fetch
  // that line meanwhile costs a second hop between the cores, although the lanes beyond the payload are masked.
  union {
    struct {
      std::uint64_t sendOffset, recvOffset;  // without a window: the address in its process, or 0
      std::uint32_t sendWindow, recvWindow;
    } refs;
    unsigned char payload[kHeaderPayloadBytes];
  };
  std::uint64_t signature;  // Signature::pack(), and perhaps kWithChunk
  std::uint64_t count;
  Counter number;  // written last, released [header]
};
static_assert(sizeof(Header) == 64, "one cache line");
// In a header's signature, where Signature::pack() has no field: the first chunk of the operation lies in its slot, and
// no other signal tells of it.
inline constexpr std::uint64_t kWithChunk = std::uint64_t{1} << 38;
inline constexpr std::uint64_t kHeaderBytesBeforeNumber = 56;

// Ways of a posted link that are ordered each for itself: sockets, or ports. A mapped link has one.
inline constexpr std::uint32_t kMaxRails = 4;

struct alignas(64) Signals {
  // Chunks that the peer has put into my slots [chunk]; chunk k is counted by tail[k % rails], whose rail carried it.
  Counter tail[kMaxRails];
  Counter head;  // chunks that the peer has taken out of its slots, which I filled [credit]
  Counter done;  // operations after which the peer touches my buffers no more [done]
};

struct Mailbox {
  Header header[kHeaderLines];
  Signals signals;
};

// Point-to-point messages are described in device/message.h; they have lines and slots of their own.

// What may come before a request goes, to go together with it; as koloTransportPut.more has it. kLater is for a credit:
// the peer needs it, if at all, in an operation that this rank is in too. There this rank puts something else to it, or
// waits (release() of slots.h).
enum class More : std::uint32_t { kNothing, kSoon, kLater };

// A request of a posted link, by addresses in its mirror.
struct Post {
  std::uint32_t rail = 0;
  const void* data = nullptr;
  std::uint64_t bytes = 0;
  const Counter* counter = nullptr;
  std::uint64_t value = 0;
  More more = More::kSoon;
};

// What a rank on a GPU has instead of a board's word that a peer is no longer there. Written by the peer, when it goes,
// after all that it did; or by this rank's proxy, when the posted link to it is lost for good.
inline constexpr std::uint64_t kPeerLeft = 1, kLinkLost = 2;

// What a header is to say.
struct Expectation {
  std::uint64_t signature = 0;
  std::uint64_t count = 0;
};

// One end of a message between a pair of ranks on GPUs, while a group's messages are under way (algorithms/messages.h).
struct MessageFlow {
  const unsigned char* from = nullptr;  // of a send; `to` of a receive
  unsigned char* to = nullptr;
  std::uint64_t bytes = 0;            // this channel's part
  std::uint64_t done = 0;             // of them
  std::uint64_t word = 0, count = 0;  // what the header says
  WindowRef ref;                      // of a send: where the receiver may take it from
  std::uint32_t current = 0;          // place in the group's list + 1; 0: nothing is left
  bool isOpen = false;                // its header has been written, or read
  bool isDirect = false;              // the receiver takes it out of the sender's window

  // The next chunk of at most so many bytes: where it is, or where it goes.
  KOLO_DEVICE ConstPiece nextOut(std::uint64_t most) const { return {from + done, left(most)}; }
  KOLO_DEVICE Piece nextIn(std::uint64_t most) const { return {to + done, left(most)}; }

 private:
  KOLO_DEVICE std::uint64_t left(std::uint64_t most) const { return bytes - done < most ? bytes - done : most; }
};

// What the two ranks leave for each other beside operations.
struct PeerMarks {
  const Counter* left = nullptr;  // on a GPU, in my memory: whether the peer is still there [gone]
  // Of a mapped link: not 0 once the peer has left an operation with an error [gave up]; and on a GPU, where this
  // rank's kernels say so to the peer.
  const Counter* gaveUp = nullptr;
  Counter* gaveUpThere = nullptr;
  Counter* asleep = nullptr;  // of a mapped link on the host: not 0 while the peer sleeps (executor/host/sleep.h)
};

// What a pair of ranks exchanges in packets: see device/packets.h.
inline constexpr int kPacketBuffers = 2;
struct PacketLink {
  const Packet* in[kPacketBuffers] = {};  // in my memory, written by the peer; null: there is none
  Packet* out[kPacketBuffers] = {};       // in the peer's memory, written by me
  unsigned char* unpacked = nullptr;      // room for the data of a buffer
  std::uint64_t exchanged = 0;            // buffers; each way as many
};

// How far this rank is with the headers of a pair.
struct HeaderState {
  std::uint64_t announced = 0;  // written to the peer
  std::uint64_t met = 0;        // read from it
  std::uint32_t owed = 0;       // of operations that are over, still to be read from it
  WindowRef theirSend,
      theirRecv;  // of the header met last: copied out of it once, and then checked and used (takeRefs() of headers.h)
  Expectation expected[kHeaderLines];  // of the headers owed, by line
  // Chunks put before each header that this rank announced, by line; the low bits. A header of the same number from the
  // peer shows that it has taken these.
  std::uint32_t sentBefore[kHeaderLines] = {};
  std::uint64_t chunk = 0;  // of which the header met last told; 0: of none
};

struct Link {
  int peer = -1;
  Mailbox* inbox = nullptr;                // in my memory, written by the peer
  const unsigned char* inSlots = nullptr;  // in my memory, written by the peer
  Mailbox* outbox = nullptr;               // in the peer's memory, written by me
  unsigned char* outSlots = nullptr;       // in the peer's memory, written by me
  const WindowPart* windows = nullptr;     // [kMostWindows] what the peer has registered
  // A posted link's outbox, outSlots and signals are this process's mirror of what it writes into the peer's memory;
  // requests bring over what has changed (Exchange::signal).
  bool isPosted = false;
  std::uint32_t railMask = 0;       // rails - 1
  unsigned char* mirror = nullptr;  // of a posted link on a GPU: where it begins
  PeerMarks marks;

  // How far we are; known to this rank alone. In a team of several threads only the leader writes them, after the last
  // barrier of a primitive; the others read them after the first barrier of the next.
  std::uint64_t sent = 0;  // chunks put
  std::uint64_t credited =
      0;  // chunks of which is known that they were taken: by head, when it was last read, or headers
  std::uint64_t received = 0;  // chunks taken
  std::uint64_t finished =
      0;  // direct operations that it has said to have ended with me; of messages, those that it has taken from me
  std::uint64_t taken = 0;         // direct operations that I have said to have ended with it; messages taken from it
  const Segments* list = nullptr;  // the peer's list of the current operation, where it can be loaded from
  HeaderState headers;
  MessageFlow sending, receiving;
  PacketLink packets;
};

KOLO_DEVICE const Header& lineOf(const Link& link, std::uint64_t number) {
  return link.inbox->header[number % kHeaderLines];
}
// Whether the peer had announce(), but no meet() or owe().
KOLO_DEVICE bool isUnmet(const Link& link) { return link.headers.met + link.headers.owed < link.headers.announced; }

// Where `bytes` bytes lie, from `begin` on behind what the peer refers to; nullptr: not inside of what it has
// registered.
KOLO_DEVICE unsigned char* placeIn(const Link& link, const WindowRef& ref, std::uint64_t begin, std::uint64_t bytes) {
  if (ref.index == 0 || ref.index > kMostWindows) return nullptr;
  const WindowPart& part = link.windows[ref.index - 1];
  const bool isInside =
      ref.offset <= part.bytes && begin <= part.bytes - ref.offset && bytes <= part.bytes - ref.offset - begin;
  return isInside ? part.begin + ref.offset + begin : nullptr;
}

// Whether the peer's buffers may have changed before they were read: the peer has left an operation with an error,
// because of a third rank, say, and its caller had the buffers back. Every reader of a peer's memory asks this behind
// its reads, whatever way it read by (loads, or a copy by the kernel), and before it counts on what it read.
//  - The peer sets the mark before its caller can write the buffers [gave up]: a reader that has seen such a write sees
//  the mark.
//  - A reader that sees the mark may have read the right bytes all the same. It cannot know; the communicator is about
//  to fail, and the reader waits
//    for the reason of that.
// REQUIRES: fenceStores() by this thread, after a barrier since the reads.
KOLO_DEVICE bool mayHaveChanged(const Link& link) {
  if (link.marks.gaveUp == nullptr) return false;
  fenceLoads();  // [gave up] after what was read
  return loadRelaxed(*link.marks.gaveUp) != 0;
}

}  // namespace kolo::device
