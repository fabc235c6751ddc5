#include "planner/planner.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "algorithms/direct.h"
#include "algorithms/line.h"
#include "algorithms/names.h"
#include "planner/network.h"

namespace kolo::planner {
namespace {

using device::Algorithm;
using device::Collective;

bool reduces(Collective collective) { return device::isIn(collective, device::kReducing); }

bool keepsOrder(Algorithm algorithm) {
  return algorithm == Algorithm::kLine || algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot;
}

// Steps that follow each other, and bytes that one rank reads and writes, for S bytes (a block where blocks are
// divided).
struct Cost {
  double steps;
  double bytes;       // of the rank with the most,
  double ofAll = -1;  // and of all together; -1: every rank has as many
};

Cost stagedCost(Algorithm algorithm, Collective collective, double n, double size) {
  const double log = std::ceil(std::log2(n));
  const bool isRooted = collective == Collective::kGather || collective == Collective::kScatter;  // with blocks
  const bool divided = device::isIn(collective, device::kSendsBlocks | device::kReceivesBlocks);
  const double whole = divided ? size * n : size;
  switch (algorithm) {
    case Algorithm::kLine: return {1, 64 * (n - 1)};
    case Algorithm::kOneShot:
    case Algorithm::kPairwise: {
      const double steps = algorithm == Algorithm::kPairwise ? n - 1 : 1;
      if (collective == Collective::kAllReduce || collective == Collective::kReduceScatter) {
        return {1, size * (3 * (n - 1) + 2)};
      }
      // The root has most of the work, and the others need not wait for each other.
      if (isRooted) return {1, size * 2 * n, size * (4 * (n - 1) + 2)};
      // The same. Reading n - 1 streams at a time is a little dearer than one
      // (perf/results/2026-11-23-mpi-with-barrier-openmpi-8ranks.txt, and -before.txt).
      if (collective == Collective::kBroadcast) return {1, size * (2 * n - 1), size * 4 * (n - 1)};
      if (collective == Collective::kReduce) return {1, size * (n + 1), size * (3 * n - 1) * 1.15};
      return {steps, size * (4 * (n - 1) + 2)};
    }
    case Algorithm::kTwoShot:
      if (collective == Collective::kBroadcast) return {2, size * 6};
      if (collective == Collective::kReduce) return {2, size * 4};
      return {2, size * (2 + 4 * (n - 1) / n)};
    case Algorithm::kRing:
    case Algorithm::kBiring: {
      const double lanes = algorithm == Algorithm::kBiring ? 1.02 : 1;  // the same bytes; a little more to do for each
      if (collective == Collective::kAllReduce) return {2 * (n - 1) * lanes, size * (8 + 6 * (n - 2)) / n};
      if (divided) return {(n - 1) * lanes, size * (6 + 3 * (n - 2))};
      return {n - 1, size * 3};
    }
    case Algorithm::kRecursive: {
      const double fold = std::exp2(std::floor(std::log2(n))) < n ? 2 : 0;
      if (collective == Collective::kAllReduce && size <= 2048) return {log + fold, size * (log + fold) * 5};
      if (collective == Collective::kAllReduce) return {2 * log + fold, size * (10 + fold * 4)};
      return {log + fold, whole * (5 + fold)};
    }
    case Algorithm::kBruck: return {log, collective == Collective::kAllToAll ? whole * (2 * log + 4) : whole * 4};
    case Algorithm::kTree:
      if (collective == Collective::kAllReduce) return {2 * log, size * (3 * log + 6)};
      if (isRooted)
        return {log, whole * 4, whole * (2 * log + 2)};  // each block goes on at every second level, in the mean
      if (divided) return {log, whole * 4};
      return {log, size * (2 * log + 2)};
    case Algorithm::kHierarchical:
    case Algorithm::kCount: break;
  }
  return {0, 0};
}

Cost directCost(Algorithm algorithm, Collective collective, double n, double size) {
  switch (collective) {
    case Collective::kAllReduce: return algorithm == Algorithm::kTwoShot ? Cost{2, 2 * size} : Cost{2, size * (n + 1)};
    case Collective::kReduce:
      return algorithm == Algorithm::kTwoShot ? Cost{2, size * (1 + 1 / n)} : Cost{2, size * (n + 1)};
    case Collective::kReduceScatter: return {2, size * (n + 1)};
    case Collective::kBroadcast: return {2, 2 * size};
    case Collective::kGather:
    case Collective::kScatter:
      return {2, size * n, size * n * 2};  // copies in one piece take half of what those through slots do
    default: return {2, 2 * size * n};
  }
}

// The zero-copy form of a forced algorithm: only the same one.
Algorithm directFormOf(Algorithm staged, Collective collective, const Machine& machine) {
  if (!machine.mapped || machine.ranks > algorithms::kMaxDirectRanks || collective == Collective::kBarrier)
    return Algorithm::kCount;
  if (staged != Algorithm::kOneShot && staged != Algorithm::kTwoShot && staged != Algorithm::kPairwise) {
    return Algorithm::kCount;
  }
  const bool folds = collective == Collective::kAllReduce || collective == Collective::kReduce;
  return staged == Algorithm::kTwoShot && folds ? Algorithm::kTwoShot : Algorithm::kOneShot;
}

const Wish* findForce(const Query& query, const std::vector<Wish>& wishes) {
  const Wish* found = nullptr;
  for (const Wish& wish : wishes) {
    if (!wish.forbid && wish.collective == query.collective && query.bytes >= wish.low && query.bytes <= wish.high) {
      found = &wish;
    }
  }
  return found;
}

bool isForbidden(Algorithm algorithm, const Query& query, const std::vector<Wish>& wishes) {
  return std::any_of(wishes.begin(), wishes.end(), [&](const Wish& wish) {
    return wish.forbid && wish.collective == query.collective && wish.algorithm == algorithm &&
           query.bytes >= wish.low && query.bytes <= wish.high;
  });
}

struct Candidate {
  Algorithm algorithm;
  double us;
};

std::vector<Candidate> candidates(const Query& query, const Machine& machine, const std::vector<Wish>& wishes) {
  std::vector<Candidate> result;
  for (int i = 0; i < static_cast<int>(Algorithm::kCount); ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    const bool isThroughRoot = query.collective == Collective::kBarrier &&
                               algorithm == Algorithm::kTwoShot;  // two messages one behind the other
    if (isThroughRoot && !machine.mapped) continue;
    if (fits(algorithm, query, machine) && !isForbidden(algorithm, query, wishes)) {
      result.push_back({algorithm, predictUs(algorithm, false, query, machine)});
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.us < b.us; });
  return result;
}

// The best zero-copy form, if it beats the best through staging: it costs a meeting, of all ranks or with the root.
// Where counts differ, each pair decides by the block in question.
Algorithm bestDirectForm(const Query& query, const Machine& machine, const std::vector<Wish>& wishes, double stagedUs) {
  Algorithm best = Algorithm::kCount;
  double bestUs = stagedUs;
  for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
    const Algorithm form = directFormOf(algorithm, query.collective, machine);
    if (form != algorithm || !fits(algorithm, query, machine) || isForbidden(algorithm, query, wishes)) continue;
    if (!query.countsKnown) return form;
    const double us = predictUs(form, true, query, machine);
    if (us <= bestUs) {
      best = form;
      bestUs = us;
    }
  }
  return best;
}

// Whether the others take a broadcast's data themselves. Then nobody relays, and a root that does not want to wait for
// them may give to all at once instead.
bool isTaken(const Choice& choice, const Query& query, const Machine& machine) {
  return query.collective == Collective::kBroadcast && choice.direct != Algorithm::kCount &&
         query.bytes >= machine.takenFromBytes;
}

}  // namespace

bool isWrittenFor(Algorithm algorithm, Collective collective) {
  switch (algorithm) {
    case Algorithm::kLine: return true;
    case Algorithm::kOneShot: return collective != Collective::kBarrier;
    case Algorithm::kTwoShot:
      return collective == Collective::kAllReduce || collective == Collective::kReduce ||
             collective == Collective::kBroadcast || collective == Collective::kBarrier;
    case Algorithm::kRing:
      return collective == Collective::kAllReduce || collective == Collective::kReduce ||
             collective == Collective::kBroadcast || collective == Collective::kAllGather ||
             collective == Collective::kReduceScatter;
    case Algorithm::kBiring:
      return collective == Collective::kAllReduce || collective == Collective::kAllGather ||
             collective == Collective::kReduceScatter;
    case Algorithm::kRecursive:
      return collective == Collective::kAllReduce || collective == Collective::kAllGather ||
             collective == Collective::kReduceScatter || collective == Collective::kBarrier;
    case Algorithm::kBruck: return collective == Collective::kAllGather || collective == Collective::kAllToAll;
    case Algorithm::kTree:
      return collective == Collective::kAllReduce || collective == Collective::kReduce ||
             collective == Collective::kBroadcast || collective == Collective::kGather ||
             collective == Collective::kScatter || collective == Collective::kBarrier;
    case Algorithm::kPairwise: return collective == Collective::kAllToAll;
    case Algorithm::kHierarchical:
      return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
             collective == Collective::kAllGather || collective == Collective::kReduceScatter ||
             collective == Collective::kAllToAll;
    case Algorithm::kCount: break;
  }
  return false;
}

bool fits(Algorithm algorithm, const Query& query, const Machine& machine) {
  if (!isWrittenFor(algorithm, query.collective)) return false;
  if (query.inOrder && reduces(query.collective) && !keepsOrder(algorithm)) return false;
  if ((keepsOrder(algorithm) || algorithm == Algorithm::kPairwise) && machine.ranks > algorithms::kMaxLineRanks) {
    // Arrays of one entry for each rank: the line and the shots stop here, gathers and all-to-alls do not fold.
    if (algorithm == Algorithm::kLine || reduces(query.collective)) return false;
  }
  if (algorithm == Algorithm::kHierarchical) return fitsHosts(query, machine);
  if (algorithm == Algorithm::kLine) return query.countsKnown && query.bytes <= device::kHeaderPayloadBytes;
  const bool movesNothing = query.bytes == 0 && query.countsKnown && query.collective != Collective::kBarrier;
  if (movesNothing && machine.ranks <= algorithms::kMaxLineRanks) return false;  // the line alone
  if (query.vector) {
    // Trees and Bruck relay blocks whose sizes a relaying rank does not know, or take for equal.
    if (algorithm == Algorithm::kTree || algorithm == Algorithm::kBruck)
      return query.collective == Collective::kAllGather;
    if (algorithm == Algorithm::kRecursive) return query.collective == Collective::kAllGather;  // needs blocks in a row
    if (!query.countsKnown) return algorithm == Algorithm::kOneShot || algorithm == Algorithm::kPairwise;
  }
  return true;
}

double predictUs(Algorithm algorithm, bool direct, const Query& query, const Machine& machine) {
  const double n = machine.ranks, size = static_cast<double>(query.bytes);
  if (machine.ranks == 1) return 2 * size / (machine.memoryGBps * 1e3);
  if (algorithm == Algorithm::kHierarchical) return stepsOf(query, machine).us;
  const Cost cost =
      direct ? directCost(algorithm, query.collective, n, size) : stagedCost(algorithm, query.collective, n, size);
  const double cores = std::max(1, std::min(machine.cores, machine.ranks));
  const double turn = machine.ranks > machine.cores ? machine.switchUs * n / cores : machine.hopUs;
  const double ofAll = cost.ofAll >= 0 ? cost.ofAll : cost.bytes * n;
  double rate = (ofAll > machine.cacheBytes ? machine.memoryGBps : machine.cacheGBps) * 1e3;
  if (machine.blockGBps > 0) rate = std::min(rate, machine.blockGBps * 1e3 * channelsFor(algorithm, query, machine));
  // Peers are visited one after the other: a line's read and write for each.
  const double peers = keepsOrder(algorithm) || algorithm == Algorithm::kPairwise ? 0.05 * (n - 1) : 0.1;
  const double chunks = 1 + cost.bytes / machine.slotBytes * 0.05;
  const bool usesSlots = !direct && algorithm != Algorithm::kLine;  // one more line to fetch than the header
  return cost.steps * turn + peers + (usesSlots ? chunks * machine.hopUs : 0) +
         std::max(cost.bytes, ofAll / cores) / 2 / rate + networkUs(algorithm, query, machine);
}

std::uint64_t sizeForClassOf(std::uint64_t bytes) {
  if (bytes <= device::kHeaderPayloadBytes) return bytes == 0 ? 0 : std::bit_floor(bytes);
  return std::bit_floor(bytes) + std::bit_floor(bytes) / 2;
}

bool haveRanges(const std::vector<Wish>& wishes) {
  return std::any_of(wishes.begin(), wishes.end(),
                     [](const Wish& wish) { return wish.low != 0 || wish.high != UINT64_MAX; });
}

Choice choose(const Query& query, const Machine& machine, const std::vector<Wish>& wishes) {
  Choice choice;
  if (const Wish* force = findForce(query, wishes); force != nullptr && fits(force->algorithm, query, machine)) {
    choice.algorithm = force->algorithm;
    choice.direct = directFormOf(force->algorithm, query.collective, machine);
  } else {
    const std::vector<Candidate> all = candidates(query, machine, wishes);
    // All forbidden: wishes do not make an operation impossible.
    choice.algorithm = !all.empty() ? all.front().algorithm
                       : query.bytes <= device::kHeaderPayloadBytes && fits(Algorithm::kLine, query, machine)
                           ? Algorithm::kLine
                           : Algorithm::kOneShot;
    const bool sharesCores = machine.mapped && machine.ranks > machine.cores;
    if (query.collective == Collective::kBarrier && sharesCores && !isForbidden(Algorithm::kTwoShot, query, wishes)) {
      choice.behindRoot = Algorithm::kTwoShot;
    }
    if (choice.algorithm != Algorithm::kLine) {
      choice.direct = bestDirectForm(query, machine, wishes, predictUs(choice.algorithm, false, query, machine));
    }
    if (isTaken(choice, query, machine)) choice.algorithm = Algorithm::kOneShot;
  }
  if (choice.algorithm == Algorithm::kHierarchical) {
    const Steps steps = stepsOf(query, machine);
    choice.within = steps.within;
    choice.between = steps.between;
  }
  const bool zeroCopy = query.registered && choice.direct != Algorithm::kCount;
  choice.predictedUs = predictUs(zeroCopy ? choice.direct : choice.algorithm, zeroCopy, query, machine);
  return choice;
}

std::string explain(const Query& asked, const Machine& machine, const std::vector<Wish>& wishes) {
  const bool moves = asked.collective != Collective::kBarrier;  // a barrier has neither bytes nor buffers
  std::string text = koloCollectiveName(static_cast<koloCollective_t>(asked.collective));
  if (moves) text += fmt::format(" of {} bytes", asked.bytes);
  text += fmt::format(", {} rank{} on {} core{}", machine.ranks, machine.ranks == 1 ? "" : "s", machine.cores,
                      machine.cores == 1 ? "" : "s");
  if (machine.hosts > 1) text += fmt::format(", {} hosts", machine.hosts);
  text += !moves ? "\n" : asked.registered ? ", registered buffers\n" : ", ordinary buffers\n";
  if (machine.hosts > 1) {
    text += fmt::format(
        "network, one way: {:g} GB/s of a host by {} NIC{}, {:g} GB/s of a rank; {:g} us for a message, {:g} us to "
        "send it\n",
        machine.netGBps, machine.netNics, machine.netNics == 1 ? "" : "s", machine.netRankGBps, machine.netHopUs,
        machine.netPostUs);
  }
  if (machine.ranks == 1) return text + "self: chosen, because one rank has nobody to exchange data with\n";
  Query query = asked;
  if (!haveRanges(wishes)) query.bytes = sizeForClassOf(asked.bytes);
  if (query.bytes != asked.bytes) text += fmt::format("planned as {} bytes, like all of its class\n", query.bytes);
  if (query.inOrder && reduces(query.collective)) text += "folded at once, in the order of the ranks\n";
  const Choice choice = choose(query, machine, wishes);
  text += fmt::format("{:<12} {:>14} {:>14}\n", "algorithm", "staged us", "zero-copy us");
  for (int i = 0; i < static_cast<int>(Algorithm::kCount); ++i) {
    const auto algorithm = static_cast<Algorithm>(i);
    if (!isWrittenFor(algorithm, query.collective)) continue;
    std::string remark;
    if (!fits(algorithm, query, machine)) remark = "does not fit this size, order or number of ranks";
    if (isForbidden(algorithm, query, wishes)) remark = "forbidden";
    if (algorithm == choice.algorithm) remark = "chosen through staging";
    if (algorithm == choice.algorithm && algorithm == Algorithm::kHierarchical) {
      remark += fmt::format(": {} inside hosts, {} between them", name(choice.within), name(choice.between));
    }
    if (algorithm == choice.behindRoot && algorithm != choice.algorithm)
      remark = "chosen behind a broadcast or a scatter, whose root goes on first";
    if (algorithm == choice.direct) remark += remark.empty() ? "chosen zero-copy" : ", chosen zero-copy";
    const bool known = fits(algorithm, query, machine);
    const bool direct = known && directFormOf(algorithm, query.collective, machine) == algorithm;
    text += fmt::format("{:<12} {:>14} {:>14}  {}\n", name(algorithm),
                        known ? fmt::format("{:.2f}", predictUs(algorithm, false, query, machine)) : "-",
                        direct ? fmt::format("{:.2f}", predictUs(algorithm, true, query, machine)) : "-", remark);
  }
  const Wish* force = findForce(query, wishes);
  if (force != nullptr) {
    text +=
        fits(force->algorithm, query, machine)
            ? fmt::format("{} was asked for\n", name(force->algorithm))
            : fmt::format("{} was asked for but does not fit; the least predicted time won\n", name(force->algorithm));
  } else {
    text += isTaken(choice, query, machine)
                ? fmt::format("{}, for the others take the data from where they are", name(choice.algorithm))
                : fmt::format("{} has the least predicted time", name(choice.algorithm));
    if (moves) {
      text += fmt::format(" through staging; zero-copy when all buffers lie in windows: {}", name(choice.direct));
    }
    text += '\n';
  }
  return text;
}

int channelsFor(Algorithm algorithm, const Query& query, const Machine& machine) {
  if (algorithm == Algorithm::kLine || query.collective == Collective::kBarrier) return 1;
  if (!query.countsKnown) return machine.channels;  // ranks see different counts
  const bool divided = device::isIn(query.collective, device::kSendsBlocks | device::kReceivesBlocks);
  // These move runs of blocks at a time, which a channel's parts of them are not.
  const bool joinsBlocks = algorithm == Algorithm::kRecursive || algorithm == Algorithm::kTree;
  if (divided && joinsBlocks) return 1;
  if (algorithm == Algorithm::kHierarchical && query.collective == Collective::kAllToAll)
    return 1;  // likewise: all blocks of a host
  const std::uint64_t bytes = query.bytes * (divided ? static_cast<std::uint64_t>(machine.ranks) : 1);
  return static_cast<int>(std::clamp<std::uint64_t>(bytes >> 16, 1, static_cast<std::uint64_t>(machine.channels)));
}

std::uint64_t scratchBytes(Algorithm algorithm, Collective collective, std::uint64_t totalBytes) {
  const bool needs = (algorithm == Algorithm::kHierarchical &&
                      (collective == Collective::kReduceScatter || collective == Collective::kAllToAll)) ||
                     (algorithm == Algorithm::kRecursive && collective == Collective::kReduceScatter) ||
                     (algorithm == Algorithm::kBruck && collective == Collective::kAllToAll);
  return needs ? totalBytes : 0;
}

}  // namespace kolo::planner
