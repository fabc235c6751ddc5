#include "planner/network.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "algorithms/catalogue.h"

namespace kolo::planner {
namespace {

using algorithms::rowOf;
using device::Algorithm;
using device::Collective;

// Where everybody sends to everybody, the first chunks go with the headers (Opening::kSends in
// algorithms/execute.h); other algorithms wait for their partners' headers first. One-way collectives leave them for
// later, and a barrier has nothing else.
bool meetsFirst(Algorithm algorithm, Collective collective) {
  const bool hasPartners = rowOf(algorithm).meeting == algorithms::Meeting::kPartners;
  return hasPartners && device::isIn(collective, device::kGivesAndTakes);
}

// The steps of a hierarchical collective on a host of their own, and between hosts.
struct Part {
  Collective collective;
  std::uint64_t bytes;
  int times;
};

Query queryOf(const Part& part) {
  Query query;
  query.collective = part.collective;
  query.bytes = part.bytes;
  return query;
}

double timeOf(Algorithm algorithm, std::span<const Part> parts, const Machine& machine) {
  double us = 0;
  for (const Part& part : parts) us += part.times * predictUs(algorithm, false, queryOf(part), machine);
  return us;
}

// A ring along an axis of a mesh, while all other lines of the axis have theirs.
double alongAxisUs(const Part& part, const Machine::Axis& axis, const Machine& machine) {
  Machine line = machine;
  line.ranks = axis.ranks;
  line.hosts = axis.hosts;
  line.perHost = axis.ranks % axis.hosts == 0 ? axis.ranks / axis.hosts : 0;
  line.cores = std::max(1, machine.cores * axis.ranks / machine.ranks);
  const double ranksOnHost = static_cast<double>(machine.ranks) / machine.hosts;
  const double ofLineOnHost = static_cast<double>(axis.ranks) / axis.hosts;
  line.netGBps = machine.netGBps / std::max(1.0, ranksOnHost / ofLineOnHost);  // the host's lines speak at once
  return predictUs(Algorithm::kRing, false, queryOf(part), line);
}

// Of those that serve all the steps: blocks of a part of the ranks need not stand in a row.
Algorithm bestFor(std::span<const Part> parts, const Machine& machine, double& us) {
  Algorithm best = Algorithm::kOneShot;
  us = timeOf(best, parts, machine);
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    const bool serves =
        row.algorithm != best && std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
          return device::isIn(part.collective, row.steps) && fits(row.algorithm, queryOf(part), machine);
        });
    if (!serves) continue;
    if (const double time = timeOf(row.algorithm, parts, machine); time < us) {
      best = row.algorithm;
      us = time;
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
  const double steps = wire.steps + (meetsFirst(algorithm, query.collective) ? 1 : 0);
  return steps * machine.netHopUs + wire.messages * machine.netPostUs +
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

Steps stepsOf(const Query& query, const Machine& machine) {
  Machine host = machine, network = machine;
  host.ranks = machine.perHost;
  host.hosts = 1;
  host.cores = std::max(1, machine.cores / machine.hosts);
  network.ranks = machine.hosts;
  network.perHost = 1;
  network.netGBps = machine.netGBps / machine.perHost;  // all places speak at once
  const std::uint64_t slice = query.bytes / static_cast<std::uint64_t>(machine.perHost);
  const std::uint64_t ofHost = query.bytes * static_cast<std::uint64_t>(machine.perHost);
  std::vector<Part> within, between;
  switch (query.collective) {
    case Collective::kAllReduce:
      within = {{Collective::kReduceScatter, slice, 1}, {Collective::kAllGather, slice, 1}};
      between = {{Collective::kAllReduce, slice, 1}};
      break;
    case Collective::kBroadcast:
      within = {{Collective::kBroadcast, query.bytes, 1}, {Collective::kAllGather, slice, 1}};
      between = {{Collective::kBroadcast, slice, 1}};
      break;
    case Collective::kAllToAll:
      within = {{query.collective, query.bytes, machine.hosts}};
      between = {{query.collective, ofHost, 1}};
      break;
    default:
      within = {{query.collective, query.bytes, machine.hosts}};
      between = {{query.collective, query.bytes, 1}};
      break;
  }
  Steps steps;
  double withinUs = 0, betweenUs = 0;
  steps.within = bestFor(within, host, withinUs);
  steps.between = bestFor(between, network, betweenUs);
  steps.us = withinUs + betweenUs;
  return steps;
}

double meshRingUs(const Query& query, const Machine& machine) {
  double us = 0;
  std::uint64_t slice = query.bytes;
  for (std::size_t i = machine.mesh.size() - 1; i > 0; --i) {
    const Machine::Axis& axis = machine.mesh[i];
    slice /= static_cast<std::uint64_t>(axis.ranks);
    us += alongAxisUs({Collective::kReduceScatter, slice, 1}, axis, machine) +
          alongAxisUs({Collective::kAllGather, slice, 1}, axis, machine);
  }
  return us + alongAxisUs({Collective::kAllReduce, slice, 1}, machine.mesh.front(), machine);
}

}  // namespace kolo::planner
