#include "planner/planner.h"

#include <algorithm>
#include <bit>

#include "algorithms/bounds.h"
#include "algorithms/catalogue.h"
#include "algorithms/names.h"
#include "common/float_mode.h"
#include "planner/network.h"

namespace kolo::planner {
namespace {

using algorithms::GridOf;
using algorithms::Meeting;
using algorithms::rowOf;
using device::Algorithm;
using device::Collective;

bool reduces(Collective collective) { return device::isIn(collective, device::kReducing); }

bool hasGrid(GridOf grid, const Machine& machine) {
  return grid == GridOf::kHosts ? machine.hosts > 1 && machine.perHost > 1 : !machine.mesh.empty();
}

// The zero-copy form of a forced algorithm: only the same one.
Algorithm directFormOf(Algorithm staged, Collective collective, const Machine& machine) {
  if (!machine.mapped || machine.ranks > algorithms::kMaxDirectRanks) return Algorithm::kCount;
  const algorithms::Row& row = rowOf(staged);
  if (device::isIn(collective, row.asTwoShot)) return Algorithm::kTwoShot;
  return device::isIn(collective, row.asOneShot) ? Algorithm::kOneShot : Algorithm::kCount;
}

// What the last wish that holds asks for, where buffers are registered or where they are not.
const Wish* findForce(const Query& query, const Machine& machine, const std::vector<Wish>& wishes, bool registered) {
  const Wish* found = nullptr;
  for (const Wish& wish : wishes) {
    if (!wish.forbid && wish.holds(query, machine, registered)) found = &wish;
  }
  return found;
}

// The wish that findForce() finds, if the operation can be carried out so; else nullptr.
const Wish* findForceThatFits(const Query& query, const Machine& machine, const std::vector<Wish>& wishes,
                              bool registered) {
  const Wish* found = findForce(query, machine, wishes, registered);
  return found != nullptr && fits(found->algorithm, query, machine) ? found : nullptr;
}

bool isForbidden(Algorithm algorithm, const Query& query, const Machine& machine, const std::vector<Wish>& wishes,
                 bool registered) {
  return std::any_of(wishes.begin(), wishes.end(), [&](const Wish& wish) {
    return wish.forbid && wish.algorithm == algorithm && wish.holds(query, machine, registered);
  });
}

// Whether an algorithm that fits is taken, on links of this kind and for this size, only if it was asked for.
bool waitsToBeAskedFor(const algorithms::Row& row, const Query& query, const Machine& machine) {
  return device::isIn(query.collective, machine.mapped ? row.onlyPosted : row.onlyMapped) ||
         query.bytes < row.chosenFromBytes;
}

struct Candidate {
  Algorithm algorithm;
  double us;
};

std::vector<Candidate> candidates(const Query& query, const Machine& machine, const std::vector<Wish>& wishes) {
  std::vector<Candidate> result;
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    if (waitsToBeAskedFor(row, query, machine)) continue;
    if (fits(row.algorithm, query, machine) && !isForbidden(row.algorithm, query, machine, wishes, false)) {
      result.push_back({row.algorithm, predictUs(row.algorithm, false, query, machine)});
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
    if (form != algorithm || !fits(algorithm, query, machine)) continue;
    if (isForbidden(algorithm, query, machine, wishes, true)) continue;
    if (!query.countsKnown) return form;
    const double us = predictUs(form, true, query, machine);
    if (us <= bestUs) {
      best = form;
      bestUs = us;
    }
  }
  return best;
}

// The best through staging. isBesideDirect: a form between windows has been asked for beside it, which a line rules
// out.
Algorithm bestStaged(const Query& query, const Machine& machine, const std::vector<Wish>& wishes, bool isBesideDirect) {
  for (const Candidate& candidate : candidates(query, machine, wishes)) {
    if (!isBesideDirect || candidate.algorithm != Algorithm::kLine) return candidate.algorithm;
  }
  // All forbidden: wishes do not make an operation impossible.
  const bool isShort = query.bytes <= device::kHeaderPayloadBytes && fits(Algorithm::kLine, query, machine);
  return isShort && !isBesideDirect ? Algorithm::kLine : Algorithm::kOneShot;
}

}  // namespace

// Whether an algorithm serves lists of items. What is folded in scratch memory has no datatype there, and what is read
// again from the output has to be there as it is transferred.
bool servesLists(const algorithms::Row& row, const Query& query) {
  if (row.meeting == Meeting::kByLines) return query.collective == Collective::kBarrier;
  if (reduces(query.collective) && device::isIn(query.collective, row.scratch)) return false;
  return !query.castsOutput || !device::isIn(query.collective, row.readsOutput);
}

bool isWrittenFor(Algorithm algorithm, Collective collective) { return rowOf(algorithm).serves(collective); }

bool fits(Algorithm algorithm, const Query& query, const Machine& machine) {
  const algorithms::Row& row = rowOf(algorithm);
  const Collective collective = query.collective;
  if (!row.serves(collective) || query.bytes > row.mostBytes) return false;
  if (query.inOrder && reduces(collective) && !row.keepsOrder) return false;
  if (device::isIn(collective, row.boundedRanks) && machine.ranks > row.mostRanks) return false;
  if (query.vector && !device::isIn(collective, query.countsKnown ? row.vectors : row.pairVectors)) return false;
  if (query.isList && !servesLists(row, query)) return false;
  if (row.grid != GridOf::kNone && (!hasGrid(row.grid, machine) || query.bytes == 0)) return false;
  if (device::isIn(collective, row.hostsInRows) && !machine.hostsInRows) return false;
  // What moves nothing is the line's, on as many ranks as a line serves.
  const bool movesNothing =
      query.bytes == 0 && query.countsKnown && !query.isList && collective != Collective::kBarrier;
  const bool isLine = row.meeting == Meeting::kByLines;
  return isLine || !movesNothing || machine.ranks > algorithms::kMaxLineRanks;
}

namespace {

// How data goes: each has a column of costs in the catalogue.
enum class Form { kDirect, kSlots, kPackets };

double predictFormUs(Algorithm algorithm, Form form, const Query& query, const Machine& machine) {
  const double n = machine.ranks, size = static_cast<double>(query.bytes);
  const algorithms::Row& row = rowOf(algorithm);
  const auto costs = form == Form::kDirect ? row.direct : form == Form::kPackets ? row.packets : row.staged;
  const algorithms::Cost cost = costs(query.collective, n, size);
  const double cores = std::max(1, std::min(machine.cores, machine.ranks));
  const double turn = machine.ranks > machine.cores ? machine.switchUs * n / cores : machine.hopUs;
  const double ofAll = cost.ofAll >= 0 ? cost.ofAll : cost.bytes * n;
  double rate = (ofAll > machine.cacheBytes ? machine.memoryGBps : machine.cacheGBps) * 1e3;
  if (machine.blockGBps > 0) rate = std::min(rate, machine.blockGBps * 1e3 * channelsFor(algorithm, query, machine));
  // Peers are visited one after the other: a line's read and write for each. Where all ranks visit all, and not only
  // the root, those that share a core do so in turns.
  const double visits = (n - 1) * (device::isIn(query.collective, device::kRooted) ? 1 : n / cores);
  const double peers = row.meeting == Meeting::kPartners ? 0.1 : 0.05 * visits;
  const double lines = cost.steps + cost.bytes / machine.slotBytes * 0.05;
  // In each step a line to fetch behind the signal.
  const bool usesSlots = form == Form::kSlots && row.meeting != Meeting::kByLines;
  const bool hasSlots =
      form == Form::kSlots && query.collective != Collective::kBarrier;  // header lines are the steps of a barrier
  const double fences = hasSlots ? cost.fences : 0;
  return cost.steps * turn + peers + (usesSlots ? lines * machine.hopUs : 0) + fences * machine.fenceUs +
         std::max(cost.bytes, ofAll / cores) / 2 / rate + networkUs(algorithm, query, machine);
}

}  // namespace

bool goesInPackets(Algorithm algorithm, const Query& query, const Machine& machine) {
  const bool isPossible = device::hasPacketForm(algorithm, query.collective) && machine.packetBytes != 0 &&
                          machine.ranks > 1 && query.bytes != 0 && query.countsKnown && !query.isList &&
                          query.reduction != kPreMulSum;
  const int pieces = channelsFor(algorithm, query, machine) * (rowOf(algorithm).inSlices ? machine.ranks : 1);
  const auto us = [&](Form form) { return predictFormUs(algorithm, form, query, machine); };
  return isPossible && query.bytes / static_cast<std::uint64_t>(pieces) <= machine.packetBytes &&
         us(Form::kPackets) < us(Form::kSlots);
}

double predictUs(Algorithm algorithm, bool direct, const Query& query, const Machine& machine) {
  if (machine.ranks == 1) return static_cast<double>(query.bytes) / (machine.memoryGBps * 1e3);
  if (rowOf(algorithm).grid != GridOf::kNone) return planSteps(algorithm, query, machine).us;
  if (direct) return predictFormUs(algorithm, Form::kDirect, query, machine);
  const Form form = goesInPackets(algorithm, query, machine) ? Form::kPackets : Form::kSlots;
  return predictFormUs(algorithm, form, query, machine);
}

std::uint64_t sizeForClassOf(std::uint64_t bytes) {
  if (bytes <= device::kHeaderPayloadBytes) return bytes == 0 ? 0 : std::bit_floor(bytes);
  return std::bit_floor(bytes) + std::bit_floor(bytes) / 2;
}

bool tellCallsApart(const std::vector<Wish>& wishes) {
  return std::any_of(wishes.begin(), wishes.end(), [](const Wish& wish) {
    return !wish.bytes.isWhole() || !wish.elements.isWhole() || wish.reductions != UINT32_MAX;
  });
}

Choice choose(const Query& query, const Machine& machine, const std::vector<Wish>& wishes) {
  const UsualFloatMode asOnAllRanks;
  Choice choice;
  const Wish* const force = findForceThatFits(query, machine, wishes, false);
  const Wish* const directForce = findForceThatFits(query, machine, wishes, true);
  const Algorithm wishedForm =
      directForce != nullptr ? directFormOf(directForce->algorithm, query.collective, machine) : Algorithm::kCount;
  choice.algorithm =
      force != nullptr ? force->algorithm : bestStaged(query, machine, wishes, wishedForm != Algorithm::kCount);
  if (directForce != nullptr) {
    choice.direct = wishedForm;
    choice.isDirectForced = true;
  } else if (choice.algorithm != Algorithm::kLine) {
    choice.direct = bestDirectForm(query, machine, wishes, predictUs(choice.algorithm, false, query, machine));
  }
  // A line carries the data before anybody knows where the buffers of the others lie.
  if (choice.algorithm == Algorithm::kLine) choice.direct = Algorithm::kCount;
  if (force == nullptr) {
    const bool sharesCores = machine.mapped && machine.ranks > machine.cores;
    if (query.collective == Collective::kBarrier && sharesCores &&
        !isForbidden(Algorithm::kTwoShot, query, machine, wishes, false)) {
      choice.behindRoot = Algorithm::kTwoShot;
    }
  }
  if (rowOf(choice.algorithm).grid != GridOf::kNone) {
    const Steps steps = planSteps(choice.algorithm, query, machine);
    choice.alongFirst = steps.alongFirst;
    choice.alongOthers = steps.alongOthers;
  }
  choice.inPackets = goesInPackets(choice.algorithm, query, machine);
  const bool zeroCopy = query.registered && choice.direct != Algorithm::kCount;
  choice.predictedUs = predictUs(zeroCopy ? choice.direct : choice.algorithm, zeroCopy, query, machine);
  return choice;
}

namespace {

// What is asked for, and of which machine.
std::string describe(const Query& asked, const Machine& machine) {
  const bool moves = asked.collective != Collective::kBarrier;  // a barrier has neither bytes nor buffers
  std::string text = koloCollectiveName(static_cast<koloCollective_t>(asked.collective));
  if (moves) text += fmt::format(" of {} bytes", asked.bytes);
  text += fmt::format(", {} rank{} on {} core{}", machine.ranks, machine.ranks == 1 ? "" : "s", machine.cores,
                      machine.cores == 1 ? "" : "s");
  if (machine.hosts > 1) text += fmt::format(", {} hosts", machine.hosts);
  for (const Machine::Axis& axis : machine.mesh)
    text += fmt::format("{}{}", &axis == machine.mesh.data() ? ", a mesh of " : " x ", axis.ranks);
  text += !moves ? "\n" : asked.registered ? ", registered buffers\n" : ", ordinary buffers\n";
  if (machine.hosts > 1) {
    text += fmt::format(
        "network, one way: {:g} GB/s of a host by {} NIC{}, {:g} GB/s of a rank; {:g} us for a message, {:g} us to "
        "send it\n",
        machine.netGBps, machine.netNics, machine.netNics == 1 ? "" : "s", machine.netRankGBps, machine.netHopUs,
        machine.netPostUs);
  }
  return text;
}

}  // namespace

std::string explain(const Query& asked, const Machine& machine, const std::vector<Wish>& wishes) {
  const bool moves = asked.collective != Collective::kBarrier;
  std::string text = describe(asked, machine);
  if (machine.ranks == 1) return text + "self: chosen, because one rank has nobody to exchange data with\n";
  Query query = asked;
  if (!tellCallsApart(wishes)) query.bytes = sizeForClassOf(asked.bytes);
  if (query.bytes != asked.bytes) text += fmt::format("planned as {} bytes, like all of its class\n", query.bytes);
  if (query.inOrder && reduces(query.collective)) text += "folded at once, in the order of the ranks\n";
  const Choice choice = choose(query, machine, wishes);
  text += fmt::format("{:<12} {:>14} {:>14}\n", "algorithm", "staged us", "zero-copy us");
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    const Algorithm algorithm = row.algorithm;
    if (!row.serves(query.collective)) continue;
    std::string remark;
    if (waitsToBeAskedFor(row, query, machine)) remark = "only if it is asked for";
    if (!fits(algorithm, query, machine)) remark = "does not fit this size, order or communicator";
    if (isForbidden(algorithm, query, machine, wishes, query.registered)) remark = "forbidden";
    if (algorithm == choice.algorithm) remark = choice.inPackets ? "chosen in packets" : "chosen through staging";
    if (algorithm == choice.algorithm && row.grid == GridOf::kHosts) {
      remark += fmt::format(": {} inside hosts, {} between them", name(choice.alongOthers), name(choice.alongFirst));
    }
    if (algorithm == choice.behindRoot && algorithm != choice.algorithm)
      remark = "chosen behind a broadcast or a scatter, whose root goes on first";
    if (algorithm == choice.direct) remark += remark.empty() ? "chosen zero-copy" : ", chosen zero-copy";
    const bool known = fits(algorithm, query, machine);
    const bool direct = known && directFormOf(algorithm, query.collective, machine) == algorithm;
    text += fmt::format("{:<12} {:>14} {:>14}  {}\n", row.name,
                        known ? fmt::format("{:.2f}", predictUs(algorithm, false, query, machine)) : "-",
                        direct ? fmt::format("{:.2f}", predictUs(algorithm, true, query, machine)) : "-", remark);
  }
  const Wish* force = findForce(query, machine, wishes, query.registered);
  if (force != nullptr) {
    text +=
        fits(force->algorithm, query, machine)
            ? fmt::format("{} was asked for\n", name(force->algorithm))
            : fmt::format("{} was asked for but does not fit; the least predicted time won\n", name(force->algorithm));
  } else {
    text += fmt::format("{} has the least predicted time", name(choice.algorithm));
    if (moves) {
      text += fmt::format(" through staging; zero-copy when all buffers lie in windows: {}", name(choice.direct));
    }
    text += '\n';
  }
  return text;
}

int channelsFor(Algorithm algorithm, const Query& query, const Machine& machine) {
  const bool isUndivided = device::isIn(query.collective, rowOf(algorithm).undivided);
  if (isUndivided || query.collective == Collective::kBarrier) return 1;
  if (!query.countsKnown) return machine.channels;  // ranks see different counts
  const bool hasBlocks = device::isIn(query.collective, device::kDivided);
  const std::uint64_t bytes = query.bytes * (hasBlocks ? static_cast<std::uint64_t>(machine.ranks) : 1);
  return static_cast<int>(
      std::clamp<std::uint64_t>(bytes / kLeastPartBytes, 1, static_cast<std::uint64_t>(machine.channels)));
}

std::uint64_t scratchBytes(Algorithm algorithm, Collective collective, std::uint64_t totalBytes) {
  return device::isIn(collective, rowOf(algorithm).scratch) ? totalBytes : 0;
}

}  // namespace kolo::planner
