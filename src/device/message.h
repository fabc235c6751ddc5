// Point-to-point messages on a pair of ranks: a ring of 64-byte lines for each direction, and slots for their data. The
// engine that speaks this protocol is src/comm/messages.cc.
//
// Invariants
//  - A lane lies in the memory of its reader and is written by one peer; lines are numbered 1, 2, 3, ...; line k stands
//    in place k % kLines. The reader counts lines it has read in linesTaken, which lies in the writer's memory; a
//    writer keeps written - linesTaken <= kLines.
//  - Slots of eager messages and of streams are numbered and credited as lines are (eagerTaken; chunks, chunksTaken).
//    Chunk k of a stream goes by rail k % rails, and is counted there: rails keep no order among each other.
#pragma once

#include <cstdint>

#include "device/link.h"

namespace kolo::device {

inline constexpr int kMessageLines = 16;
inline constexpr int kInlineBytes = 32;

enum class MessageKind : std::uint8_t {
  kInline,   // the data is in the line
  kEager,    // the data is in the next eager slot
  kRequest,  // too long for a chunk: waits to be matched; in a window if `window` is set, at `offset`; without a
             // window, `offset` is 0 or the address from which it may be read. By a posted link: `window` is 1 if the
             // transport knows the memory
  kClear,  // answer to request `id`: send the chunks; or, with a key, put `bytes` bytes into the memory that it names.
           // If the transport has been replaced since (`tag`), to no avail: another answer follows
  kDone    // answer to request `id`: I have taken the data where it was, or it has arrived
};

struct alignas(64) MessageLine {
  Counter number;  // written last, released [line]
  std::uint64_t bytes;
  std::int32_t tag;  // of an answer with a key: how often the link had been replaced when it was given
  std::uint32_t id;  // of a request; counted by the sender of the request
  MessageKind kind;
  std::uint8_t datatype;
  std::uint8_t window;  // index + 1
  union {
    std::uint64_t offset;
    unsigned char payload[kInlineBytes];
    struct {
      unsigned char key[24];
      std::uint64_t number;  // of the messages put straight; 0: there is no key
    } clearance;
  };
};
static_assert(sizeof(MessageLine) == 64, "one cache line");

struct MessageLane {
  MessageLine lines[kMessageLines];
  alignas(64) Counter chunks[kMaxRails];  // chunks of streams that the peer has put into my slots, by rails [data]
  Counter linesTaken;                     // lines of mine that the peer has read [line credit]
  Counter eagerTaken;                     // eager slots of mine that the peer has emptied [data credit]
  Counter chunksTaken;                    // stream slots of mine that the peer has emptied [data credit]
  // By a posted link: the last message, by the number of its clearance, of which the peer has put all that goes by this
  // rail straight into the receiver's buffer [landed]
  Counter landed[kMaxRails];
};

}  // namespace kolo::device
