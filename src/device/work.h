// The description of one operation, as every executor gets it. Plain data.
#pragma once

#include <cstdint>

#include "common/collectives.h"
#include "device/link.h"
#include "device/partition.h"
#include "device/path.h"
#include "device/post_ring.h"
#include "device/reduce_args.h"
#include "device/segments.h"
#include "device/views.h"

namespace kolo::device {

// The numbers are those of koloCollective_t.
enum class Collective : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSendRecv,
  kCount
};

enum class Algorithm : std::uint8_t {
  kLine,
  kOneShot,
  kTwoShot,
  kRing,
  kBiring,
  kRecursive,
  kBruck,
  kTree,
  kPairwise,
  kHierarchical,
  kDoubleTree,
  kMeshRing,
  kCount
};

// Sets of collectives, a bit for each.
template <class... Members>
constexpr std::uint32_t setOf(Members... members) {
  return ((1u << static_cast<unsigned>(members)) | ...);
}
constexpr const CollectiveRow& rowOf(Collective collective) {
  return kolo::rowOf(static_cast<koloCollective_t>(collective));
}
constexpr bool isIn(Collective collective, std::uint32_t set) {
  return (set >> static_cast<unsigned>(collective) & 1) != 0;
}

static_assert(static_cast<int>(Collective::kCount) == koloNumCollectives);

namespace sets {
constexpr std::uint32_t where(bool (*holds)(const CollectiveRow& row)) {
  std::uint32_t set = 0;
  for (const CollectiveRow& row : kCollectives) {
    if (holds(row)) set |= setOf(row.collective);
  }
  return set;
}
using enum CollectiveRow::Blocks;
using enum CollectiveRow::Flow;
}  // namespace sets

inline constexpr std::uint32_t kFromRoot = sets::where([](const auto& row) { return row.flow == sets::kFromRoot; });
inline constexpr std::uint32_t kToRoot = sets::where([](const auto& row) { return row.flow == sets::kToRoot; });
inline constexpr std::uint32_t kRooted = kFromRoot | kToRoot;
inline constexpr std::uint32_t kReducing = sets::where([](const auto& row) { return row.folds; });
// What algorithms carry out, and those that move data.
inline constexpr std::uint32_t kPlanned = sets::where([](const auto& row) { return row.flow != sets::kPair; });
inline constexpr std::uint32_t kMoving =
    sets::where([](const auto& row) { return row.flow != sets::kPair && row.moves(); });
// The send buffer, or the receive buffer, holds a block for each rank.
inline constexpr std::uint32_t kSendsBlocks = sets::where([](const auto& row) { return row.sends == sets::kEach; });
inline constexpr std::uint32_t kReceivesBlocks =
    sets::where([](const auto& row) { return row.receives == sets::kEach; });
inline constexpr std::uint32_t kDivided = kSendsBlocks | kReceivesBlocks;
// In the form with counts, only the two ranks of a pair know the length of a block; else all ranks know all lengths.
inline constexpr std::uint32_t kCountsOfPairs = kRooted | (kSendsBlocks & kReceivesBlocks);
// Every rank gives something to every other, and takes something.
inline constexpr std::uint32_t kGivesAndTakes = sets::where([](const auto& row) { return row.isExchange(); });
// All data goes from or to the root, so other ranks need not meet. An algorithm that relays picks its own neighbours.
inline constexpr std::uint32_t kMeetsRootOnly = kRooted & ~kReducing;

// Whether an algorithm can carry out a collective in packets (device/packets.h).
KOLO_DEVICE constexpr bool hasPacketForm(Algorithm algorithm, Collective collective) {
  constexpr std::uint32_t kWhole = setOf(Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast);
  if (algorithm == Algorithm::kOneShot) return isIn(collective, kMoving);
  return (algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kTree) && isIn(collective, kWhole);
}

// What must be the same on all ranks, in one word of the header.
struct Signature {
  Collective collective = Collective::kBarrier;
  std::uint8_t datatype = 0;
  std::uint8_t op = 0;  // a ReduceOp, or one of the kinds below
  Algorithm algorithm = Algorithm::kLine;
  bool vector = false;         // a v-variant
  std::uint32_t root = 0;      // 20 bits
  std::uint16_t sequence = 0;  // low bits of the communicator's operation number; the top bits of the word

  static constexpr std::uint8_t kAvg = 13, kPreMulSum = 14, kNoOp = 15;
  static constexpr int kSequenceAt = 39;  // behind kWithChunk

  KOLO_DEVICE std::uint64_t pack() const {
    return static_cast<std::uint64_t>(collective) | std::uint64_t{datatype} << 4 | std::uint64_t{op} << 9 |
           static_cast<std::uint64_t>(algorithm) << 13 | std::uint64_t{vector} << 17 | std::uint64_t{root} << 18 |
           std::uint64_t{sequence} << kSequenceAt;
  }
  KOLO_DEVICE static Signature unpack(std::uint64_t word) {
    return {.collective = static_cast<Collective>(word & 15),
            .datatype = static_cast<std::uint8_t>(word >> 4 & 31),
            .op = static_cast<std::uint8_t>(word >> 9 & 15),
            .algorithm = static_cast<Algorithm>(word >> 13 & 15),
            .vector = (word >> 17 & 1) != 0,
            .root = static_cast<std::uint32_t>(word >> 18 & 0xfffff),
            .sequence = static_cast<std::uint16_t>(word >> kSequenceAt & 0xffff)};
  }
};

// Why a team gave up. The leader writes the first one; the host reads it afterwards and puts it into words.
struct Fault {
  enum Kind : std::uint32_t {
    kNone,
    kMismatch,
    kTimeout,
    kLeft,
    kAborted,
    kUnreadable,
    kUnwritable,
    kLost,
    kCorrupt
  } kind = kNone;
  int peer = -1;  // whose header or signal it was
  std::uint64_t signature =
      0;  // kMismatch: what the peer called. kCorrupt: the index, and the offset, of memory that it has not registered
  std::uint64_t count = 0;
  std::uint64_t mine = 0;  // kMismatch, and on a GPU always: what this rank called then
  std::uint64_t mineCount = 0;
  std::uint64_t number = 0;  // on a GPU: HeaderTerms::number
  Counter claimed{0};        // 1: a thread of a block has written, or is writing, the rest
};

// n blocks of a buffer, one for each rank: uniform (stride == count), by counts and displacements, or the parts of a
// whole. Algorithms only ever ask for block(i). A list's blocks are ranges of its logical buffer (segments.h).
struct Layout {
  std::uint64_t count = 0;  // elements of each block, if counts is null
  const std::uint64_t* counts = nullptr;
  const std::uint64_t* displs = nullptr;  // with counts only
  int parts = 0;                          // > 0: `count` elements in so many parts, cut at multiples of `grain`
  const int* order =
      nullptr;  // of the ranks of a work that are a part of the communicator's: block i is block order[i]
  // The part of each block that is this channel's: part `channel` of `channels`, cut at multiples of `grain` elements.
  int channel = 0;
  int channels = 1;
  std::uint64_t grain = 1;

  KOLO_DEVICE Range block(int i) const {
    if (order != nullptr) i = order[i];
    const Range whole = counts != nullptr ? Range{displs[i], counts[i]}
                        : parts != 0      ? partOfWhole(i)
                                          : Range{count * static_cast<std::uint64_t>(i), count};
    return channels == 1 ? whole : ofChannel(whole);
  }

 private:
  // Separate, to keep block() short: it is called often.
  KOLO_DEVICE Range partOfWhole(int i) const { return alignedPart(count, parts, i, grain); }
  KOLO_DEVICE Range ofChannel(const Range& whole) const {
    const Range part = alignedPart(whole.count, channels, channel, grain);
    return {whole.begin + part.begin, part.count};
  }
};

// A subset of the communicator's ranks, as a Work numbers them.
struct RankGroup {
  const int* members = nullptr;  // [ranks]
  int ranks = 1;
  int rank = 0;  // this one's number among them
};

// All ranks as a grid, for algorithms of several steps: hosts and the places on them, or a mesh.
struct Grid {
  int axes = 0;
  const RankGroup* lines = nullptr;  // [axes] the line of ranks with this one
  const int* ranks = nullptr;        // all, in row-major order: the last coordinate varies fastest
};

// How elements are combined, and what an average does at the end.
struct FoldTerms {
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t divisor = 1;  // avg: the number of ranks
  // For an average with partial results stored as shares (device/shares.h): the number of ranks in each input, 1 for a
  // rank's own. 0: partial results are stored as they are.
  std::uint32_t inputRanks = 0;
  bool yieldsTruth = false;  // one rank only: some results are always 0 or 1; if all are, `op` is kLogicalOr
  bool scaled = false;       // a pre-multiplied sum;
  alignas(16) unsigned char scalar[16] = {};  // this rank's scalar
};

// Which ranks take part, and how a collective of several steps is made of smaller ones.
struct Steps {
  const int* members = nullptr;  // [ranks] the subset that `rank`, `root` and peers index; null: all ranks
  const Grid* grid = nullptr;    // of an algorithm of several steps: steps along the first axis, and along the others
  Algorithm alongFirst = Algorithm::kCount;
  Algorithm alongOthers = Algorithm::kCount;
};

// What the headers of an operation say, and what ranks decide by them.
struct HeaderTerms {
  std::uint64_t word = 0;                    // signature.pack()
  std::uint64_t count = 0;                   // where it is the same for all peers
  const std::uint64_t* countTo = nullptr;    // else: by peer, what I say
  const std::uint64_t* countFrom = nullptr;  //       and what I expect
  // A value of the policy (CopyPolicy::pairsFromBytes). Not 0: each pair of ranks chooses the path of its block, as
  // only the pair may know its length. Shorter blocks than this do not go directly. It exceeds a header's payload, and
  // ranks that need it have the same value. 0: one path for all blocks.
  std::uint64_t pairsFromBytes = 0;
  // On a GPU, for error texts: the operation's number; a message has that of the next collective. On the host: 0.
  std::uint64_t number = 0;
};

// kSendRecv, one end of a message between GPUs.
struct MessageEnd {
  int peer = -1;
  bool isSend = false;
  std::uint32_t next = 0;  // index + 1 of the next with the same peer and way
};

// What a team needs to execute one channel of the operation: links to its peers, and memory.
struct Channel {
  Link* links = nullptr;  // [ranks]; that of the rank itself is unused
  int count = 1;          // channels, and so blocks, that share the operation
  std::uint32_t slots = 0;
  std::uint32_t slotBytes = 0;   // a multiple of 64
  std::uint32_t chunkBytes = 0;  // used of a slot: the same on all ranks, a multiple of 64
  std::uint32_t chunksAtOnce =
      1;  // that a rank sends before it waits for the first to come: the same on all ranks, below `slots`
  std::uint64_t packetBytes = 0;  // that fit into a buffer of packets; 0: the operation is not to go in packets. The
                                  // same on all ranks
  unsigned char* scratch = nullptr;
  std::uint64_t scratchBytes = 0;  // of each channel
  Fault* fault = nullptr;
  PostBox* posts = nullptr;  // on a GPU, of this channel; null: no link is posted
};

struct Work {
  Signature signature;
  // The algorithm to use if all buffers lie in windows: kOneShot or kTwoShot, or kCount for the one in `signature`.
  Algorithm direct = Algorithm::kCount;
  std::uint32_t elementBytes = 1;
  int rank = 0;
  int ranks = 1;
  FoldTerms fold;
  int root = 0;
  MessageEnd messageEnd;
  Steps steps;

  const unsigned char* send = nullptr;
  unsigned char* recv = nullptr;
  const Segments* segments =
      nullptr;        // `send` and `recv` are logical addresses, and elements are bytes; null: of memory
  Layout sendLayout;  // one block where the operation's buffer is not divided
  Layout recvLayout;
  WindowRef sendRef, recvRef;
  bool streaming = false;  // results are too large for the caches
  Sharing sharing;         // whether ordinary memory is read and written; what this rank offers; how this call starts

  HeaderTerms header;
  Channel channel;

  // The part of `send` for a peer, and of `recv` from a peer.
  KOLO_DEVICE Range partTo(int peer) const {
    return sendLayout.block(isIn(signature.collective, kSendsBlocks) ? peer : 0);
  }
  KOLO_DEVICE Range partFrom(int peer) const {
    return recvLayout.block(isIn(signature.collective, kReceivesBlocks) ? peer : 0);
  }

  KOLO_DEVICE std::uint64_t bytesOf(std::uint64_t elements) const { return elements * elementBytes; }

  // Where elements of this rank's buffers lie: in memory, or as a logical address.
  KOLO_DEVICE ConstPiece input(const Range& range) const { return {send + bytesOf(range.begin), bytesOf(range.count)}; }
  KOLO_DEVICE Piece output(const Range& range) const { return {recv + bytesOf(range.begin), bytesOf(range.count)}; }
  // The output, and scratch memory, indexed by elements.
  KOLO_DEVICE Elements outputElements() const { return {recv, elementBytes}; }
  KOLO_DEVICE Elements scratchElements() const { return {channel.scratch, elementBytes}; }
  // Bytes [begin, begin + bytes) of scratch memory.
  KOLO_DEVICE Piece scratchAt(std::uint64_t begin, std::uint64_t bytes) const {
    return {channel.scratch + begin, bytes};
  }

  // Elements of an undivided output. `recvLayout` of a list may hold parts of it.
  KOLO_DEVICE std::uint64_t outputCount() const {
    return segments != nullptr ? segments->recvBytes : recvLayout.block(0).count;
  }
  // Whether some of the output lies where the input does.
  KOLO_DEVICE bool isInPlace() const { return segments != nullptr ? segments->isInPlace != 0 : send == recv; }

  // Whether each block may go directly, whatever the others do.
  KOLO_DEVICE bool blocksMayBeDirect() const {
    return direct != Algorithm::kCount && (header.pairsFromBytes != 0 || isIn(signature.collective, kMeetsRootOnly));
  }
  // Whether a block of a pair's own goes with its header.
  KOLO_DEVICE bool fitsHeader(std::uint64_t bytes) const {
    return header.pairsFromBytes != 0 && bytes <= kHeaderPayloadBytes;
  }

  // Data is cut at multiples of this: elements in 64 bytes.
  KOLO_DEVICE std::uint64_t grain() const { return elementBytes < 64 ? 64 / elementBytes : 1; }
};

// Whether `from` gives `to` data. A root, if there is one, has to be source or target.
KOLO_DEVICE bool gives(const Work& work, int from, int to) {
  if (isIn(work.signature.collective, kFromRoot)) return from == work.root;
  return !isIn(work.signature.collective, kToRoot) || to == work.root;
}

// Whether this rank gets nothing from the others in the operation, or gives them nothing.
KOLO_DEVICE bool onlyGives(const Work& work) {
  return isIn(work.signature.collective, work.rank == work.root ? kFromRoot : kToRoot);
}
KOLO_DEVICE bool onlyGets(const Work& work) {
  return isIn(work.signature.collective, work.rank == work.root ? kToRoot : kFromRoot);
}

}  // namespace kolo::device
