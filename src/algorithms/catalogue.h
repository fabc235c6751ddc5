// Each algorithm has one row of facts. The planner, the names, the public queries, the tests and the documentation read
// this table. A new algorithm is a file of its own, its number in device/work.h, its row here, its case in execute.h,
// and tests. One of several steps has rows of steps.h instead of a file and a case. Device code does not include this
// table: constants of the host have no address there.
//
// Thread safety: constants and pure functions.
#pragma once

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "algorithms/bounds.h"
#include "device/link.h"
#include "device/work.h"

namespace kolo::algorithms {

// The cost of an operation of `size` bytes (of a block, if buffers are divided) on one host.
struct Cost {
  double steps;       // one after the other
  double bytes;       // that the busiest rank reads and writes
  double ofAll = -1;  // that all ranks together read and write; -1: `bytes` for each
  double fences = 2;  // of a block of a GPU in a small operation: behind headers, and behind what comes later
};

// The ranks of an operation, by host.
struct Shape {
  double n, hosts, perHost;
  double others() const { return n - perHost; }  // ranks on other hosts
};

// What an operation sends between hosts.
struct Wire {
  double steps;      // messages that follow each other
  double messages;   // that one rank sends
  double bytes;      // that cross the busiest host's border, one way
  double rankBytes;  // the busiest rank's part of them
};

// How ranks meet in an operation.
enum class Meeting {
  kByLines,  // a header line to each peer is all that is sent
  kAll,      // each rank exchanges headers with all others, or with the root, and then data
  kPartners  // each rank posts headers to those that it exchanges data with, and awaits theirs with their first data
};

// The grid over which an algorithm of several steps goes (steps.h).
enum class GridOf {
  kNone,   // the algorithm has one step
  kHosts,  // hosts with equally many ranks, at least 2: hosts, and the places on them
  kMesh,   // a communicator along several axes of a mesh
  kCount
};

// The order of the fields is for readers, and costs some padding.
struct Row {
  device::Algorithm algorithm;
  const char* name;
  // Sets of collectives: those
  std::uint32_t collectives;       // for which the algorithm exists
  std::uint32_t vectors = 0;       // whose v-forms it serves where all ranks know all counts
  std::uint32_t pairVectors = 0;   // whose v-forms it serves where only the two ranks of a pair know a count
  std::uint32_t readsOutput = 0;   // in which a rank reads what it has written to its output
  std::uint32_t hostsInRows = 0;   // that need the ranks of a host to follow each other
  std::uint32_t boundedRanks = 0;  // that have at most mostRanks ranks
  std::uint32_t onlyMapped = 0;    // not chosen where links are posted, unless asked for
  std::uint32_t onlyPosted = 0;    // not chosen where all links are mapped, unless asked for
  std::uint32_t scratch = 0;       // that need scratch memory as large as the rank's input
  std::uint32_t undivided = 0;     // whose blocks cannot be divided among channels
  std::uint32_t cutsItems = 0;     // in which each item of a list is cut into a part for each rank
  std::uint32_t cutsLists = 0;     // in which a list is cut at other places than its items in calls of their own: the
                                   // order of folding differs, and so may the last bits of floats
  std::uint32_t renumbers = 0;     // that may number the ranks host by host, so that neighbours share a host
  std::uint32_t steps = 0;         // that may be a step of an algorithm of several steps
  std::uint32_t asOneShot = 0;     // whose zero-copy form is that of one_shot
  std::uint32_t asTwoShot = 0;     // whose zero-copy form is that of two_shot
  // Limits.
  int mostRanks = INT_MAX;
  std::uint64_t mostBytes = UINT64_MAX;
  std::uint64_t chosenFromBytes = 0;  // not chosen for fewer, unless asked for
  // Behaviour.
  Meeting meeting = Meeting::kPartners;
  bool keepsOrder = false;  // folds all inputs at once, in the order of the ranks
  bool inSlices = false;    // a message has a rank's slice of the data
  // Of an algorithm of several steps.
  GridOf grid = GridOf::kNone;
  device::Algorithm along = device::Algorithm::kCount;  // of each step; kCount: for each axis the best
  // Costs; null where there is no such form, or where an algorithm consists of steps. Which collectives go in packets
  // says hasPacketForm() of device/work.h.
  Cost (*staged)(device::Collective collective, double n, double size) = nullptr;
  Cost (*direct)(device::Collective collective, double n, double size) = nullptr;
  Cost (*packets)(device::Collective collective, double n, double size) = nullptr;
  Wire (*wire)(device::Collective collective, const Shape& at, double size) = nullptr;

  constexpr bool serves(device::Collective collective) const { return device::isIn(collective, collectives); }
};

// ---- costs

namespace costs {

using device::Collective;

// Whether a root gives each rank a block, or takes one from it.
inline bool hasBlocksAtRoot(Collective collective) {
  return device::isIn(collective, device::kRooted & device::kDivided);
}
inline bool isDivided(Collective collective) { return device::isIn(collective, device::kDivided); }
inline double levels(double n) { return std::ceil(std::log2(n)); }
// Steps in which ranks beyond a power of two give others data, and get results.
inline double extraSteps(double n) { return std::exp2(std::floor(std::log2(n))) < n ? 2 : 0; }

// Every rank of a host sends as much as the others, or one rank sends all.
inline Wire ofEach(const Shape& at, double steps, double messages, double bytes) {
  return {steps, messages, bytes, bytes / at.perHost};
}
inline Wire ofOne(double steps, double messages, double bytes) { return {steps, messages, bytes, bytes}; }

// All ranks to all, `size` bytes each. A header goes with its chunk.
inline Wire everybody(const Shape& at, double size) { return ofEach(at, 1, at.n - 1, at.perHost * at.others() * size); }

inline Cost line(Collective, double n, double) { return {.steps = 1, .bytes = 64 * (n - 1), .fences = 0}; }
inline Wire lineWire(Collective, const Shape& at, double) {
  return ofEach(at, 1, at.n - 1, at.perHost * at.others() * 64);
}

// A fence is behind the headers, which tell of the data.
inline Cost exchangeAll(Collective collective, double n, double size, double steps) {
  if (collective == Collective::kAllReduce || collective == Collective::kReduceScatter) {
    return {1, size * (3 * (n - 1) + 2), -1, 1};
  }
  // The root has most of the work, and the others need not wait for each other.
  if (hasBlocksAtRoot(collective)) return {1, size * 2 * n, size * (4 * (n - 1) + 2), 1};
  // The root has most of the work here, too. Reading n - 1 streams at a time is a little dearer than reading one:
  // perf/results/2026-11-23-mpi-with-barrier-openmpi-8ranks.txt, with this cost and before it.
  if (collective == Collective::kBroadcast) return {1, size * (2 * n - 1), size * 4 * (n - 1), 1};
  if (collective == Collective::kReduce) return {1, size * (n + 1), size * (3 * n - 1) * 1.15, 1};
  return {steps, size * (4 * (n - 1) + 2), -1, 1};
}
inline Cost oneShot(Collective collective, double n, double size) { return exchangeAll(collective, n, size, 1); }
inline Cost pairwise(Collective collective, double n, double size) { return exchangeAll(collective, n, size, n - 1); }
// In packets, which are twice as long as their data. A byte that is folded is read, written and read on its way through
// a slot; in packets the last two take twice as much, and it is unpacked before it is folded. cost: through slots.
inline Cost inPackets(Collective collective, const Cost& cost) {
  const double more = device::isIn(collective, device::kReducing) ? 7.0 / 3 : 3.0 / 2;
  return {cost.steps, more * cost.bytes, more * cost.ofAll, 0};
}
inline Cost oneShotInPackets(Collective collective, double n, double size) {
  return inPackets(collective, oneShot(collective, n, size));
}
inline Wire oneShotWire(Collective collective, const Shape& at, double size) {
  const bool isRooted = device::isIn(collective, device::kRooted);
  return isRooted ? ofOne(1, at.n - 1, at.others() * size) : everybody(at, size);
}

inline Cost twoShot(Collective collective, double n, double size) {
  if (collective == Collective::kBroadcast) return {2, size * 6};
  if (collective == Collective::kReduce) return {2, size * 4};
  return {2, size * (2 + 4 * (n - 1) / n)};
}
inline Cost twoShotInPackets(Collective collective, double n, double size) {
  return inPackets(collective, twoShot(collective, n, size));
}
inline Wire twoShotWire(Collective collective, const Shape& at, double size) {
  if (collective == Collective::kBarrier) return ofOne(2, at.others(), 64 * at.others());
  const Wire all = everybody(at, size / at.n);
  if (collective == Collective::kAllReduce) return {2, 2 * all.messages, 2 * all.bytes, 2 * all.rankBytes};
  const double ofRoot = at.others() * size / at.n;
  return {2, 2 * all.messages, all.bytes + ofRoot, all.rankBytes + ofRoot};
}

// Zero-copy: each rank takes what it needs out of the peers' windows.
inline Cost oneShotDirect(Collective collective, double n, double size) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kReduceScatter: return {2, size * (n + 1)};
    case Collective::kBroadcast: return {2, 2 * size};
    case Collective::kGather:
    case Collective::kScatter:
      return {2, size * n, size * n * 2};  // copies in one piece take half of what those through slots do
    default: return {2, 2 * size * n};
  }
}
inline Cost twoShotDirect(Collective collective, double n, double size) {
  return collective == Collective::kAllReduce ? Cost{2, 2 * size} : Cost{2, size * (1 + 1 / n)};
}

// burden: a step's relative cost, which is a little higher if bytes go both ways at once.
inline Cost aroundRing(Collective collective, double n, double size, double burden) {
  if (collective == Collective::kAllReduce) return {2 * (n - 1) * burden, size * (8 + 6 * (n - 2)) / n};
  if (isDivided(collective)) return {(n - 1) * burden, size * (6 + 3 * (n - 2))};
  return {n - 1, size * 3};
}
inline Cost ring(Collective collective, double n, double size) { return aroundRing(collective, n, size, 1); }
inline Cost biring(Collective collective, double n, double size) { return aroundRing(collective, n, size, 1.02); }
// Host by host: one pair of ranks exchanges data across each border.
inline Wire ringWire(Collective collective, const Shape& at, double size) {
  if (collective == Collective::kAllReduce) return ofOne(2 * (at.n - 1), 2 * (at.n - 1), 2 * size * (at.n - 1) / at.n);
  if (isDivided(collective)) return ofOne(at.n - 1, at.n - 1, size * (at.n - 1));
  return ofOne(at.hosts, 1, size);
}

// A step with a partner of its own has a header, and a chunk behind it.
inline constexpr double kFencesWithPartner = 2;

inline bool isShort(double size) { return size <= static_cast<double>(kDoublingBytes); }
inline Cost recursive(Collective collective, double n, double size) {
  const double log = levels(n), extra = extraSteps(n);
  const auto cost = [](double steps, double bytes) { return Cost{steps, bytes, -1, kFencesWithPartner * steps}; };
  if (collective == Collective::kAllReduce && isShort(size)) return cost(log + extra, size * (log + extra) * 5);
  if (collective == Collective::kAllReduce) return cost(2 * log + extra, size * (10 + extra * 4));
  return cost(log + extra, (isDivided(collective) ? size * n : size) * (5 + extra));
}
inline Wire recursiveWire(Collective collective, const Shape& at, double size) {
  const double log = levels(at.n), extra = extraSteps(at.n);
  if (collective == Collective::kBarrier) return ofEach(at, log + extra, log + extra, 64 * log);
  if (collective != Collective::kAllReduce)
    return ofEach(at, log + extra, log + extra, at.perHost * at.others() * size * (1 + extra / 2));
  if (isShort(size)) return ofEach(at, log + extra, log + extra, at.perHost * size * (log + extra));
  return ofEach(at, 2 * log + extra, 2 * log + extra, at.perHost * size * (2 * (1 - 1 / at.hosts) + extra));
}

inline Cost bruck(Collective collective, double n, double size) {
  const double log = levels(n), whole = size * n;
  return {log, collective == Collective::kAllToAll ? whole * (2 * log + 4) : whole * 4, -1, kFencesWithPartner * log};
}
inline Wire bruckWire(Collective collective, const Shape& at, double size) {
  const double log = levels(at.n);
  const double moved = collective == Collective::kAllToAll ? at.n * log / 2 : at.others();
  return ofEach(at, log, log, at.perHost * moved * size);
}

inline Cost tree(Collective collective, double n, double size) {
  const double log = levels(n), whole = size * n;
  if (collective == Collective::kAllReduce) return {2 * log, size * (3 * log + 6)};
  // On average a block is relayed at every other level.
  if (hasBlocksAtRoot(collective)) return {log, whole * 4, whole * (2 * log + 2)};
  return {log, size * (2 * log + 2)};
}
inline Cost treeInPackets(Collective collective, double n, double size) {
  return inPackets(collective, tree(collective, n, size));
}
inline Wire treeWire(Collective collective, const Shape& at, double size) {
  const double log = levels(at.n), hostLog = levels(at.hosts);
  switch (collective) {
    case Collective::kBarrier: return ofOne(2 * log, log, 64 * log);
    case Collective::kAllReduce: return ofOne(2 * log, 2 * log, size * hostLog);
    case Collective::kBroadcast:
    case Collective::kReduce: return ofOne(log, log, size * hostLog);
    default: return ofOne(log, log, at.others() * size);
  }
}

// In each tree a byte is read and written as in a ring. A rank waits for both trees in turn, so each level counts
// twice.
inline Cost doubleTree(Collective, double n, double size) { return {2 * levels(n), size * 3}; }
// An inner rank sends two messages for one that it gets, of half the data. On hosts of several ranks, edges of several
// levels of both trees cross a host's border.
inline Wire doubleTreeWire(Collective, const Shape& at, double size) {
  const double crossings = at.perHost > 1 ? levels(at.perHost) + 1 : 1;
  return {levels(at.hosts) + levels(at.perHost), 2 * levels(at.hosts), crossings * size, size};
}

}  // namespace costs

// ---- the table

namespace rows {

using device::setOf;
using enum device::Collective;

using device::kDivided;
using device::kMoving;
using device::kPlanned;

inline constexpr Row kCatalogue[] = {
    {.algorithm = device::Algorithm::kLine,
     .name = "line",
     .collectives = kPlanned,
     .vectors = kDivided,
     .boundedRanks = kPlanned,
     .undivided = kPlanned,
     .mostRanks = kMaxLineRanks,
     .mostBytes = device::kHeaderPayloadBytes,
     .meeting = Meeting::kByLines,
     .keepsOrder = true,
     .staged = costs::line,
     .wire = costs::lineWire},
    {.algorithm = device::Algorithm::kOneShot,
     .name = "one_shot",
     .collectives = kMoving,
     .vectors = kDivided,
     .pairVectors = kDivided,
     .boundedRanks = device::kReducing,
     .steps = kMoving,
     .asOneShot = kMoving,
     .mostRanks = kMaxLineRanks,
     .meeting = Meeting::kAll,
     .keepsOrder = true,
     .staged = costs::oneShot,
     .direct = costs::oneShotDirect,
     .packets = costs::oneShotInPackets,
     .wire = costs::oneShotWire},
    {.algorithm = device::Algorithm::kTwoShot,
     .name = "two_shot",
     .collectives = setOf(kAllReduce, kReduce, kBroadcast, kBarrier),
     .readsOutput = setOf(kBroadcast),
     .boundedRanks = device::kReducing,
     .onlyMapped = setOf(kBarrier),  // through one rank: two messages in sequence
     .steps = setOf(kAllReduce, kReduce, kBroadcast),
     .asOneShot = setOf(kBroadcast),
     .asTwoShot = setOf(kAllReduce, kReduce),
     .mostRanks = kMaxLineRanks,
     .meeting = Meeting::kAll,
     .keepsOrder = true,
     .inSlices = true,
     .staged = costs::twoShot,
     .direct = costs::twoShotDirect,
     .packets = costs::twoShotInPackets,
     .wire = costs::twoShotWire},
    {.algorithm = device::Algorithm::kRing,
     .name = "ring",
     .collectives = setOf(kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter),
     .vectors = setOf(kAllGather, kReduceScatter),
     .cutsItems = setOf(kAllReduce),
     .renumbers = setOf(kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter),
     .steps = setOf(kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter),
     .staged = costs::ring,
     .wire = costs::ringWire},
    {.algorithm = device::Algorithm::kBiring,
     .name = "biring",
     .collectives = setOf(kAllReduce, kAllGather, kReduceScatter),
     .vectors = setOf(kAllGather, kReduceScatter),
     .cutsItems = setOf(kAllReduce),
     .cutsLists = setOf(kAllReduce, kReduceScatter),
     .renumbers = setOf(kAllReduce, kAllGather, kReduceScatter),
     .steps = setOf(kAllReduce, kAllGather, kReduceScatter),
     .staged = costs::biring,
     .wire = costs::ringWire},
    {.algorithm = device::Algorithm::kRecursive,
     .name = "recursive",
     .collectives = setOf(kAllReduce, kAllGather, kReduceScatter, kBarrier),
     .vectors = setOf(kAllGather),  // needs adjacent blocks
     .readsOutput = setOf(kAllReduce, kAllGather, kReduceScatter),
     .scratch = setOf(kReduceScatter),
     .undivided = setOf(kAllGather, kReduceScatter),  // moves runs of blocks at a time
     .renumbers = setOf(kAllReduce, kBarrier),
     .staged = costs::recursive,
     .wire = costs::recursiveWire},
    {.algorithm = device::Algorithm::kBruck,
     .name = "bruck",
     .collectives = setOf(kAllGather, kAllToAll),
     .vectors = setOf(kAllGather),  // an all-to-all needs equal blocks
     .readsOutput = setOf(kAllGather),
     .scratch = setOf(kAllToAll),
     .staged = costs::bruck,
     .wire = costs::bruckWire},
    {.algorithm = device::Algorithm::kTree,
     .name = "tree",
     .collectives = setOf(kAllReduce, kReduce, kBroadcast, kGather, kScatter, kBarrier),
     .readsOutput = setOf(kAllReduce, kReduce, kBroadcast, kGather, kScatter),
     .undivided = setOf(kGather, kScatter),  // relays blocks, whose lengths the relaying rank has to know
     .renumbers = setOf(kAllReduce, kReduce, kBroadcast, kBarrier),
     .steps = setOf(kAllReduce, kBroadcast),
     .staged = costs::tree,
     .packets = costs::treeInPackets,
     .wire = costs::treeWire},
    {.algorithm = device::Algorithm::kPairwise,
     .name = "pairwise",
     .collectives = setOf(kAllToAll),
     .vectors = setOf(kAllToAll),
     .pairVectors = setOf(kAllToAll),
     .steps = setOf(kAllToAll),
     .asOneShot = setOf(kAllToAll),
     .meeting = Meeting::kAll,
     .staged = costs::pairwise,
     .wire = costs::oneShotWire},
    {.algorithm = device::Algorithm::kHierarchical,
     .name = "hierarchical",
     .collectives = setOf(kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll),
     .vectors = setOf(kAllGather),
     .readsOutput = setOf(kAllReduce, kBroadcast, kAllGather, kReduceScatter, kAllToAll),
     .hostsInRows = setOf(kAllToAll),
     .scratch = setOf(kReduceScatter, kAllToAll),
     .undivided = setOf(kAllToAll),  // collects all blocks for a host
     .cutsLists = setOf(kAllReduce),
     .grid = GridOf::kHosts},
    {.algorithm = device::Algorithm::kDoubleTree,
     .name = "double_tree",
     .collectives = setOf(kReduce, kBroadcast),
     .readsOutput = setOf(kReduce, kBroadcast),
     // A rank waits for both trees in turn: perf/results/2026-11-26-double-tree.txt.
     .onlyMapped = setOf(kReduce),
     .onlyPosted = setOf(kReduce, kBroadcast),
     .cutsLists = setOf(kReduce),
     .renumbers = setOf(kReduce, kBroadcast),
     .chosenFromBytes = 1 << 20,
     .staged = costs::doubleTree,
     .wire = costs::doubleTreeWire},
    {.algorithm = device::Algorithm::kMeshRing,
     .name = "mesh_ring",
     .collectives = setOf(kAllReduce),
     .readsOutput = setOf(kAllReduce),
     .onlyPosted = setOf(kAllReduce),
     .cutsLists = setOf(kAllReduce),
     .grid = GridOf::kMesh,
     .along = device::Algorithm::kRing},
};

}  // namespace rows

using rows::kCatalogue;
inline constexpr int kAlgorithms = static_cast<int>(device::Algorithm::kCount);

// REQUIRES: one of the algorithms, not kCount.
constexpr const Row& rowOf(device::Algorithm algorithm) { return kCatalogue[static_cast<int>(algorithm)]; }

// ---- what the rows must satisfy

namespace checks {

constexpr bool isSubset(std::uint32_t part, std::uint32_t whole) { return (part & ~whole) == 0; }

constexpr bool isSound(const Row& row, int place) {
  const std::uint32_t own = row.collectives;
  const bool isOrdered = static_cast<int>(row.algorithm) == place;
  const bool hasName = !std::string_view(row.name).empty() && std::string_view(row.name).size() < 24;  // koloPlan_t
  const bool areSubsets = isSubset(own, device::kPlanned) && isSubset(row.vectors, own & device::kDivided) &&
                          isSubset(row.pairVectors, row.vectors) && isSubset(row.hostsInRows, own) &&
                          isSubset(row.boundedRanks, device::kPlanned) && isSubset(row.onlyMapped, own) &&
                          isSubset(row.onlyPosted, own) && isSubset(row.scratch, own) && isSubset(row.undivided, own) &&
                          isSubset(row.cutsItems | row.cutsLists, own) && isSubset(row.renumbers, own) &&
                          isSubset(row.steps, own) && isSubset(row.asOneShot | row.asTwoShot, own) &&
                          (row.asOneShot & row.asTwoShot) == 0;
  const bool isBounded = (row.boundedRanks != 0) == (row.mostRanks != INT_MAX);
  // Steps of other collectives than the all-reduce are written for two axes (steps.h).
  const bool hasSteps = row.grid != GridOf::kMesh || own == setOf(device::Collective::kAllReduce);
  return own != 0 && isOrdered && hasName && areSubsets && isBounded && hasSteps;
}

constexpr bool areSound() {
  for (int i = 0; i < static_cast<int>(std::size(kCatalogue)); ++i) {
    if (!isSound(kCatalogue[i], i)) return false;
    for (int other = 0; other < i; ++other) {
      if (std::string_view(kCatalogue[i].name) == kCatalogue[other].name) return false;
    }
  }
  return true;
}

static_assert(std::size(kCatalogue) == kAlgorithms, "an algorithm has no row");
static_assert(kAlgorithms <= 15, "a signature has four bits for the algorithm, and the last value is nobody's");
static_assert(areSound());
static_assert(rowOf(device::Algorithm::kLine).collectives == device::kPlanned,
              "what moves nothing is left to the line");
static_assert(rowOf(device::Algorithm::kOneShot).collectives == (device::kMoving), "the planner falls back to it");

}  // namespace checks

}  // namespace kolo::algorithms
