// Which way data takes (D15): pure functions of facts, the same for collectives and for messages. device/offers.h
// gathers the facts of collectives, comm/messages*.cc and algorithms/messages.h those of messages.
//
// All ranks that need a fact know it, or get it with a header or a message's line. So both ends of a block choose the
// same path.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

// ---- what ranks offer

// What a rank offers of a buffer, or of the part that concerns a peer. Later values let the peer do more.
enum class Offer : std::uint8_t {
  kInSlots,  // an input that goes into slots before the peers ask for it
  kNothing,
  kAddress,  // its address in this process; of a list, the address of the segments
  kWindow    // its place in a window
};
KOLO_DEVICE constexpr bool isOffered(Offer offer) { return offer > Offer::kNothing; }
KOLO_DEVICE constexpr Offer leastOf(Offer a, Offer b) { return a < b ? a : b; }

// How a rank's call starts. The rank decides it alone: its headers tell the peers what they need to know.
enum class Start : std::uint8_t {
  kChecks,        // the headers of the peers are checked before the call ends
  kDefersChecks,  // the call repeats an earlier one: headers that change nothing here may be checked in a later call
  kStagesEarly    // also puts what this rank gives into slots before the peers ask for it; offers no buffer
};
KOLO_DEVICE constexpr bool defersChecks(Start start) { return start != Start::kChecks; }

struct Sharing {
  // Whether ordinary memory (in no window) is read, or written, by its address. Equal on all ranks, unless pairs
  // decide.
  bool readsPeers = false, writesPeers = false;
  // What this rank offers.
  Offer input = Offer::kNothing, output = Offer::kNothing;
  Start start = Start::kChecks;
};

// What a rank offers in one call. most: the upper bound. isReachable: other processes may touch its memory.
KOLO_DEVICE constexpr Sharing sharingIn(const Sharing& most, Start start, bool isReachable) {
  const auto now = [&](Offer offer) { return offer == Offer::kAddress && !isReachable ? Offer::kNothing : offer; };
  const bool isEarly = start == Start::kStagesEarly;
  return {most.readsPeers, most.writesPeers, isEarly ? Offer::kInSlots : now(most.input),
          isEarly ? Offer::kNothing : now(most.output), start};
}

// ---- a block of a collective, or a message

enum class Path : std::uint8_t {
  kInline,     // with the header or the line
  kStaged,     // through slots: the giver fills them, the receiver empties them
  kPeerReads,  // the receiver reads it where it is, in a window or in ordinary memory
  kPeerWrites  // the giver writes it where it goes
};

// fitsLine: in a header, or in a message's line. input: what the giver offers of this block; output: what the receiver
// offers for it, nothing where givers never write.
//
//   fitsLine  input       output      path
//   yes       any         any         kInline
//   no        kInSlots    any         kStaged
//   no        any other   offered     kPeerWrites
//   no        offered     kNothing    kPeerReads
//   no        kNothing    kNothing    kStaged
KOLO_DEVICE constexpr Path pathOf(bool fitsLine, Offer input, Offer output) {
  if (fitsLine) return Path::kInline;
  if (input == Offer::kInSlots) return Path::kStaged;
  if (isOffered(output)) return Path::kPeerWrites;
  return isOffered(input) ? Path::kPeerReads : Path::kStaged;
}

// Whether the root of a broadcast writes a part of it into a peer's buffer, while the peer reads the rest. Only an
// in-place root has time for it. input: the root's offer; output: the peer's.
KOLO_DEVICE constexpr bool isPushed(Offer input, bool isInPlace, Offer output) {
  return isInPlace && isOffered(input) && isOffered(output);
}

// ---- an operation

// What a rank does before it knows how data goes.
enum class Opening : std::uint8_t {
  kByAlgorithm,  // nothing: the algorithm posts headers to those that it exchanges with
  kSends,        // posts headers that tell of what it has put into slots; awaits headers for what the others sent
  kMeets,        // posts headers and awaits those of the others (with a root: of the root)
  kOwes,         // posts such headers; those of the others are checked in a later call
  kInPackets     // posts no header: the first packets to a peer say what the header would
};

// Whether the algorithm posts the headers itself, together with the first chunks that it sends.
KOLO_DEVICE constexpr bool postsWithData(Opening opening) {
  return opening == Opening::kSends || opening == Opening::kOwes;
}

// The deciding facts, known without a header.
struct OpeningFacts {
  bool fitsPackets = false;  // all know that all that two ranks exchange fits into packets, and goes through memory
  bool meets = false;        // the algorithm, or the direct form, needs the headers of all others or of the root
  bool goesThroughSlots = false;  // what this rank gives does, in any case
  bool gets = false;              // this rank gets something
  bool defersChecks = false;      // the call may leave headers for later
};

// A rank that sends before it reads headers waits once only, which counts most where ranks share cores.
KOLO_DEVICE constexpr Opening openingOf(const OpeningFacts& facts) {
  if (facts.fitsPackets) return Opening::kInPackets;
  if (!facts.meets) return Opening::kByAlgorithm;
  if (!facts.goesThroughSlots) return Opening::kMeets;
  if (facts.gets) return Opening::kSends;
  return facts.defersChecks ? Opening::kOwes : Opening::kMeets;
}

// How an operation's data moves. All ranks choose the same course.
enum class Course : std::uint8_t {
  kStaged,     // through slots, by the operation's algorithm
  kByBlock,    // from or to a root, each block by its own path
  kInWindows,  // ranks read and write the peers' windows
  kByReading,  // ranks read the peers' inputs, in windows or not
  kByWriting   // and write the peers' outputs
};

struct CourseFacts {
  bool hasRoot = false;                                       // all data goes from or to a root; ranks meet only it
  bool readsPeers = false, writesPeers = false;               // by address, as agreed
  bool isTwoShot = false;                                     // the direct form must write, if ranks may write
  Offer inputs = Offer::kNothing, outputs = Offer::kNothing;  // least in all headers; with a root, in its header
};

KOLO_DEVICE constexpr Course courseOf(const CourseFacts& facts) {
  if (facts.hasRoot)
    return isOffered(facts.inputs) || facts.outputs == Offer::kWindow ? Course::kByBlock : Course::kStaged;
  if (leastOf(facts.inputs, facts.outputs) == Offer::kWindow) return Course::kInWindows;
  if (!facts.readsPeers || !isOffered(facts.inputs)) return Course::kStaged;
  if (!facts.writesPeers) return Course::kByReading;
  if (isOffered(facts.outputs)) return Course::kByWriting;
  return facts.isTwoShot ? Course::kStaged : Course::kByReading;
}

}  // namespace kolo::device
