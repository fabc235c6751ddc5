#include "planner/network.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "algorithms/catalogue.h"
#include "algorithms/steps.h"

namespace kolo::planner {
namespace {

using algorithms::rowOf;
using device::Algorithm;
using device::Collective;

using algorithms::GridOf;
using algorithms::Part;
using algorithms::Step;

// A step on a line of the grid, while all other lines along the axis have theirs.
struct LineStep {
  Query query;
  Machine line;
  Algorithm by = Algorithm::kCount;  // kCount: the axis's algorithm
  int times = 1;
};

std::vector<Machine::Axis> axesOf(GridOf grid, const Machine& machine) {
  if (grid == GridOf::kMesh) return machine.mesh;
  return {{machine.hosts, machine.hosts}, {machine.perHost, 1}};
}

Machine lineAlong(const Machine::Axis& axis, const Machine& machine) {
  Machine line = machine;
  line.ranks = axis.ranks;
  line.packetBytes = 0;  // steps go through slots
  line.hosts = axis.hosts;
  line.perHost = axis.ranks % axis.hosts == 0 ? axis.ranks / axis.hosts : 0;
  line.cores = std::max(1, static_cast<int>(std::int64_t{machine.cores} * axis.ranks / machine.ranks));
  const double ranksOnHost = static_cast<double>(machine.ranks) / machine.hosts;
  const double ofLineOnHost = static_cast<double>(axis.ranks) / axis.hosts;
  line.netGBps = machine.netGBps / std::max(1.0, ranksOnHost / ofLineOnHost);  // the host's lines speak at once
  return line;
}

// As Query::bytes has it.
std::uint64_t bytesOf(const Step& step, int axis, std::uint64_t whole, const std::vector<Machine::Axis>& axes) {
  if (step.send == Part::kAside)
    return whole * static_cast<std::uint64_t>(algorithms::blocksAside(step, axes.back().ranks));
  if (!algorithms::usesSlices(step)) return whole;
  const int cut = device::isIn(step.collective, device::kDivided) ? axis : axis + 1;  // a block is a rank's share
  for (int behind = static_cast<int>(axes.size()) - 1; behind >= cut; --behind)
    whole /= static_cast<std::uint64_t>(axes[static_cast<std::size_t>(behind)].ranks);
  return whole;
}

// The steps along the first axis, or along all others.
std::vector<LineStep> stepsAlong(bool isFirst, GridOf grid, const Query& query, const Machine& machine) {
  const std::vector<Machine::Axis> axes = axesOf(grid, machine);
  std::vector<LineStep> steps;
  algorithms::forEachStep(algorithms::stepsOf(query.collective, query.bytes), static_cast<int>(axes.size()),
                          [&](const Step& step, int axis) {
                            if ((axis == 0) != isFirst) return;
                            Query part;
                            part.collective = step.collective;
                            part.bytes = bytesOf(step, axis, query.bytes, axes);
                            steps.push_back({part, lineAlong(axes[static_cast<std::size_t>(axis)], machine), step.by,
                                             step.eachLine ? axes.front().ranks : 1});
                          });
  return steps;
}

double timeOf(Algorithm algorithm, const std::vector<LineStep>& steps) {
  double us = 0;
  for (const LineStep& step : steps)
    us += step.times * predictUs(step.by != Algorithm::kCount ? step.by : algorithm, false, step.query, step.line);
  return us;
}

// The collectives among the steps along the first axis, or along the others, short or long: ranks of a GPU cut a
// message into the parts of channels, which may be short where the message is not.
std::uint32_t collectivesAlong(bool isFirst, Collective collective) {
  std::uint32_t set = 0;
  for (const std::uint64_t bytes : {std::uint64_t{0}, UINT64_MAX}) {
    algorithms::forEachStep(algorithms::stepsOf(collective, bytes), 2, [&](const Step& step, int axis) {
      if ((axis == 0) == isFirst && step.by == Algorithm::kCount) set |= device::setOf(step.collective);
    });
  }
  return set;
}

// The algorithm for all of these steps, by its predicted time: blocks of a part of the ranks need not stand in a row.
Algorithm bestFor(const std::vector<LineStep>& steps, std::uint32_t collectives) {
  Algorithm best = Algorithm::kOneShot;
  double bestUs = timeOf(best, steps);
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    const bool serves = row.algorithm != best && (collectives & ~row.steps) == 0 &&
                        std::all_of(steps.begin(), steps.end(), [&](const LineStep& step) {
                          return step.by != Algorithm::kCount || fits(row.algorithm, step.query, step.line);
                        });
    if (!serves) continue;
    if (const double us = timeOf(row.algorithm, steps); us < bestUs) {
      best = row.algorithm;
      bestUs = us;
    }
  }
  return best;
}

}  // namespace

double networkUs(Algorithm algorithm, const Query& query, const Machine& machine) {
  const auto wireOf = rowOf(algorithm).wire;
  if (machine.hosts <= 1 || wireOf == nullptr) return 0;
  const algorithms::Shape shape{static_cast<double>(machine.ranks), static_cast<double>(machine.hosts),
                                static_cast<double>(machine.ranks) / machine.hosts};
  const algorithms::Wire wire = wireOf(query.collective, shape, static_cast<double>(query.bytes));
  return wire.steps * machine.netHopUs + wire.messages * machine.netPostUs +
         std::max(wire.bytes / machine.netGBps, wire.rankBytes / machine.netRankGBps) / 1e3;
}

void useUplinks(const std::vector<Uplink>& ranks, Machine& machine) {
  const Machine usual;
  std::map<int, std::map<std::string, double>> nicsOf;  // by host
  std::map<int, double> ranksOf;                        // what its ranks get through
  machine.netHopUs = machine.netPostUs = machine.netRankGBps = 0;
  for (const Uplink& rank : ranks) {
    double own = 0;
    const auto add = [&](const std::string& name, double gigabytes) {
      own += nicsOf[rank.host][name] = gigabytes > 0 ? gigabytes : usual.netGBps;
    };
    for (const Uplink::Nic& nic : rank.nics) add(nic.name, nic.gigabytes);
    if (rank.nics.empty()) add("", 0);
    if (rank.mostGigabytes > 0) own = std::min(own, rank.mostGigabytes);
    ranksOf[rank.host] += own;
    machine.netRankGBps = machine.netRankGBps > 0 ? std::min(machine.netRankGBps, own) : own;
    machine.netHopUs = std::max(machine.netHopUs, rank.hopUs > 0 ? rank.hopUs : usual.netHopUs);
    machine.netPostUs = std::max(machine.netPostUs, rank.postUs > 0 ? rank.postUs : usual.netPostUs);
  }
  machine.netGBps = 0;
  for (const auto& [host, nics] : nicsOf) {
    const double all =
        std::accumulate(nics.begin(), nics.end(), 0.0, [](double sum, const auto& nic) { return sum + nic.second; });
    const double together = std::min(all, ranksOf[host]);
    if (machine.netGBps > 0 && together >= machine.netGBps) continue;
    machine.netGBps = together;
    machine.netNics = static_cast<int>(nics.size());
  }
}

Steps planSteps(Algorithm algorithm, const Query& query, const Machine& machine) {
  const algorithms::Row& row = rowOf(algorithm);
  Steps plan;
  for (const bool isFirst : {true, false}) {
    const std::vector<LineStep> steps = stepsAlong(isFirst, row.grid, query, machine);
    Algorithm& along = isFirst ? plan.alongFirst : plan.alongOthers;
    along = row.along != Algorithm::kCount ? row.along : bestFor(steps, collectivesAlong(isFirst, query.collective));
    plan.us += timeOf(along, steps);
  }
  return plan;
}

}  // namespace kolo::planner
