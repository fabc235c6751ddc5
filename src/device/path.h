// Which path data takes (D15), as functions of facts:
//  - Of a call: what the rank offers its peers (sharingOf). A Work has the answer, Work::sharing.
//  - Of an operation: how a rank opens it, before it has read a header (openingOf), and how its data goes (courseOf).
//    All ranks must come to the same course. So what decides is known to all alike, or comes to all with the headers.
//  - Of a block between two ranks, where each block has a path of its own: with a root, and where only the two ranks of
//    a pair know how long the block is (pathOf). Both ranks must come to the same path, each from its own side of the
//    block and from the peer's header.
// collectives/prepare.cc, comm/host_backend.cc, algorithms/course.h and device/transfers.h gather the facts.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

// ---- what ranks share

// What a rank's headers say of one of its buffers. A block that is too short for a direct transfer is never offered
// (Work::pairsFromBytes).
enum class Offer : std::uint8_t {
  kNothing,
  kWindow,  // its place in a window
  kAddress  // its address in this process; of a list, the address of the segments
};

// How a rank's call starts. The rank decides it alone: its headers tell the peers what they need to know.
enum class Start : std::uint8_t {
  kChecks,        // the headers of the peers are checked before the call ends
  kDefersChecks,  // the call repeats an earlier one: headers that change nothing here may be checked in a later call
  kStagesEarly    // besides, what this rank gives goes into slots before the peers ask for it; it offers no buffer
};
KOLO_DEVICE constexpr bool defersChecks(Start start) { return start != Start::kChecks; }

// One of this rank's buffers.
struct BufferFacts {
  bool isForPeers = false;  // it exists, and peers may touch it in this operation: nothing changes what they read
  bool isInWindow = false;
};

struct SharingFacts {
  // Ordinary memory, which lies in no window: whether inputs are read, and outputs written, by their address. All ranks
  // that decide alike agree on it.
  bool readsPeers = false, writesPeers = false;
  BufferFacts input, output;
  bool isReachable = true;  // other processes may touch the memory of this one
};

struct Sharing {
  bool readsPeers = false, writesPeers = false;  // as agreed
  // What this rank offers in this call.
  Offer input = Offer::kNothing, output = Offer::kNothing;
  Start start = Start::kChecks;
};

KOLO_DEVICE constexpr Offer offerOf(const BufferFacts& buffer, bool byAddress) {
  if (!buffer.isForPeers) return Offer::kNothing;
  if (buffer.isInWindow) return Offer::kWindow;
  return byAddress ? Offer::kAddress : Offer::kNothing;
}
KOLO_DEVICE constexpr Sharing sharingOf(const SharingFacts& facts, Start start) {
  Sharing sharing{.readsPeers = facts.readsPeers, .writesPeers = facts.writesPeers, .start = start};
  if (start == Start::kStagesEarly) return sharing;
  sharing.input = offerOf(facts.input, facts.readsPeers && facts.isReachable);
  sharing.output = offerOf(facts.output, facts.writesPeers && facts.isReachable);
  return sharing;
}

// ---- a block

enum class Path : std::uint8_t {
  kInline,     // with the header
  kStaged,     // through slots: the giver fills them, the receiver empties them
  kPeerReads,  // the receiver reads it where it is, in a window or in ordinary memory
  kPeerWrites  // the giver writes it where it goes: to the root of a gather
};

// What decides. Each fact is known to both ranks, or comes to the other one with the header.
struct BlockFacts {
  bool fitsHeader = false;       // it is so short that it goes with its pair's header
  bool hasOwnPath = false;       // else the algorithm moves all blocks alike, through slots
  bool isStagedEarly = false;    // the giver has filled slots without waiting for the receiver's header
  bool mayBeWritten = false;     // it goes to the root of a gather, and is long enough
  bool outputIsOffered = false;  // the receiver's header says where it goes; read only if mayBeWritten
  bool inputIsOffered = false;   // the giver's header says where it is
};

KOLO_DEVICE constexpr Path pathOf(const BlockFacts& block) {
  if (block.fitsHeader) return Path::kInline;
  if (!block.hasOwnPath || block.isStagedEarly) return Path::kStaged;
  if (block.mayBeWritten && block.outputIsOffered) return Path::kPeerWrites;
  return block.inputIsOffered ? Path::kPeerReads : Path::kStaged;
}

// ---- an operation

// What a rank does before it knows how data goes.
enum class Opening : std::uint8_t {
  kByAlgorithm,  // nothing: the algorithm posts headers to those that it exchanges with
  kSends,        // posts headers and sends through slots at once; awaits headers when it needs what the others sent
  kMeets,        // posts headers and awaits those of the others (with a root: of the root)
  kOwes          // posts headers; those of the others are checked in a later call
};

// What decides, all of it known without a header. This rank's own buffers, and how its call starts, are its own
// affair: they change when it waits, and not how data goes.
struct OpeningFacts {
  bool algorithmMeetsAll = false;  // Meeting::kAll in the catalogue
  bool hasDirectForm = false;      // data may go without slots
  bool isBarrier = false;
  bool endsAtRoot = false;           // all data has one end at the root
  bool givesAndTakes = false;        // every rank gives something to every other, and takes something
  bool pairsDecide = false;          // every rank exchanges with every other, and each pair sees to its blocks
  bool readsPeers = false;           // inputs may be read by their address
  bool isScaled = false;             // inputs cannot be used as they are
  bool ownBuffersAreShared = false;  // offered in windows
  bool givesThroughSlots = false;    // it only gives, and through slots whatever the headers say
  bool defersChecks = false;         // the call may leave headers for later
};

// Whether this rank's data goes through slots whatever the headers say: its own buffers rule out the other ways, which
// need those of all. Then one wait is enough, which counts most where ranks share cores.
KOLO_DEVICE constexpr bool sendsFirst(const OpeningFacts& facts) {
  if (facts.endsAtRoot) return false;
  if (facts.pairsDecide) return true;
  if (!facts.algorithmMeetsAll || !facts.givesAndTakes || facts.readsPeers) return false;
  return !facts.hasDirectForm || facts.isScaled || !facts.ownBuffersAreShared;
}
KOLO_DEVICE constexpr Opening openingOf(const OpeningFacts& facts) {
  if (sendsFirst(facts)) return Opening::kSends;
  if (facts.isBarrier || !(facts.hasDirectForm || facts.algorithmMeetsAll)) return Opening::kByAlgorithm;
  return facts.defersChecks && facts.givesThroughSlots ? Opening::kOwes : Opening::kMeets;
}

// How the data of an operation goes.
enum class Course : std::uint8_t {
  kNothing,    // it went with the header
  kStaged,     // through slots, by the operation's algorithm
  kByBlock,    // each block by its own path
  kInWindows,  // ranks read and write the peers' windows
  kByReading   // ranks read the peers' inputs, in windows or not
};

struct CourseFacts {
  bool wentWithHeader = false;
  bool hasDirectForm = false;
  bool owes = false;               // the headers have not been read
  bool endsAtRoot = false;         // all data has one end at the root
  bool blocksMayDiffer = false;    // only pairs know how long a block is
  bool rootOffers = false;         // in its header: where a gather goes, where the data of others is
  bool buffersAreShared = false;   // those of all ranks
  bool inputsAreReadable = false;  // those of all ranks
};

KOLO_DEVICE constexpr Course courseOf(const CourseFacts& facts) {
  if (facts.wentWithHeader) return Course::kNothing;
  if (!facts.hasDirectForm || facts.owes) return Course::kStaged;
  if (facts.endsAtRoot) return facts.blocksMayDiffer || facts.rootOffers ? Course::kByBlock : Course::kStaged;
  if (facts.buffersAreShared) return Course::kInWindows;
  return facts.inputsAreReadable ? Course::kByReading : Course::kStaged;
}

}  // namespace kolo::device
