#include "planner/network.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

namespace kolo::planner {
namespace {

using device::Algorithm;
using device::Collective;

// Messages one after the other; messages that one rank sends; bytes that cross the busiest host's border, one way; and
// the part of them that the busiest rank's do.
struct Wire {
  double steps;
  double messages;
  double bytes;
  double rankBytes;
};

struct Shape {
  double n, hosts, perHost;
  double others() const { return n - perHost; }  // ranks on other hosts
  Wire alike(double steps, double messages, double bytes) const {
    return {steps, messages, bytes, bytes / perHost};
  }  // all ranks of a host
  Wire ofOne(double steps, double messages, double bytes) const { return {steps, messages, bytes, bytes}; }
};

// Everybody to everybody, `size` bytes each: a header and its chunk go together, and sometimes with the credit for the
// last.
Wire everybody(const Shape& at, double size) { return at.alike(1, 1.5 * (at.n - 1), at.perHost * at.others() * size); }

Wire ofOneShot(Collective collective, const Shape& at, double size) {
  switch (collective) {
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter: return at.ofOne(1, at.n - 1, at.others() * size);
    default: return everybody(at, size);
  }
}

Wire ofTwoShot(Collective collective, const Shape& at, double size) {
  if (collective == Collective::kBarrier) return at.ofOne(2, at.others(), 64 * at.others());
  const Wire all = everybody(at, size / at.n);
  if (collective == Collective::kAllReduce) return {2, 2 * all.messages, 2 * all.bytes, 2 * all.rankBytes};
  const double ofRoot = at.others() * size / at.n;
  return {2, 2 * all.messages, all.bytes + ofRoot, all.rankBytes + ofRoot};
}

// Hosts in a row: one pair of ranks speaks across each border.
Wire ofRing(Collective collective, const Shape& at, double size) {
  if (collective == Collective::kAllReduce)
    return at.ofOne(2 * (at.n - 1), 2 * (at.n - 1), 2 * size * (at.n - 1) / at.n);
  if (collective == Collective::kAllGather || collective == Collective::kReduceScatter) {
    return at.ofOne(at.n - 1, at.n - 1, size * (at.n - 1));
  }
  return at.ofOne(at.hosts, 1, size);
}

Wire ofRecursive(Collective collective, const Shape& at, double size) {
  const double log = std::ceil(std::log2(at.n)), folds = std::exp2(std::floor(std::log2(at.n))) < at.n ? 2 : 0;
  if (collective == Collective::kBarrier) return at.alike(log + folds, log + folds, 64 * log);
  if (collective != Collective::kAllReduce)
    return at.alike(log + folds, log + folds, at.perHost * at.others() * size * (1 + folds / 2));
  if (size <= 2048) return at.alike(log + folds, log + folds, at.perHost * size * (log + folds));
  return at.alike(2 * log + folds, 2 * log + folds, at.perHost * size * (2 * (1 - 1 / at.hosts) + folds));
}

Wire ofTree(Collective collective, const Shape& at, double size) {
  const double log = std::ceil(std::log2(at.n)), hostLog = std::ceil(std::log2(at.hosts));
  switch (collective) {
    case Collective::kBarrier: return at.ofOne(2 * log, log, 64 * log);
    case Collective::kAllReduce: return at.ofOne(2 * log, 2 * log, size * hostLog);
    case Collective::kBroadcast:
    case Collective::kReduce: return at.ofOne(log, log, size * hostLog);
    default: return at.ofOne(log, log, at.others() * size);
  }
}

Wire wireOf(Algorithm algorithm, Collective collective, const Shape& at, double size) {
  switch (algorithm) {
    case Algorithm::kLine: return at.alike(1, at.n - 1, at.perHost * at.others() * 64);
    case Algorithm::kOneShot:
    case Algorithm::kPairwise: return ofOneShot(collective, at, size);
    case Algorithm::kTwoShot: return ofTwoShot(collective, at, size);
    case Algorithm::kRing:
    case Algorithm::kBiring: return ofRing(collective, at, size);
    case Algorithm::kRecursive: return ofRecursive(collective, at, size);
    case Algorithm::kBruck: {
      const double log = std::ceil(std::log2(at.n));
      const double moved = collective == Collective::kAllToAll ? at.n * log / 2 : at.others();
      return at.alike(log, log, at.perHost * moved * size);
    }
    case Algorithm::kTree: return ofTree(collective, at, size);
    case Algorithm::kHierarchical:
    case Algorithm::kCount: break;
  }
  return {0, 0, 0, 0};
}

// Where everybody sends to everybody, the first chunks go with the headers (sendsBeforeMeeting in
// algorithms/execute.h); other algorithms wait for their partners' headers first. One-way collectives leave them for
// later, and a barrier has nothing else.
bool meetsFirst(Algorithm algorithm, Collective collective) {
  const bool givesAndTakes = collective == Collective::kAllReduce || collective == Collective::kAllGather ||
                             collective == Collective::kAllToAll || collective == Collective::kReduceScatter;
  const bool hasPartners = algorithm == Algorithm::kRing || algorithm == Algorithm::kBiring ||
                           algorithm == Algorithm::kRecursive || algorithm == Algorithm::kBruck ||
                           algorithm == Algorithm::kTree;
  return givesAndTakes && hasPartners;
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

// Of those that ask of blocks nothing but where each is: blocks of a part of the ranks need not stand in a row.
Algorithm bestFor(std::span<const Part> parts, const Machine& machine, double& us) {
  Algorithm best = Algorithm::kOneShot;
  us = timeOf(best, parts, machine);
  for (const Algorithm algorithm :
       {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kBiring, Algorithm::kPairwise, Algorithm::kTree}) {
    const bool serves = std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
      return fits(algorithm, queryOf(part), machine) &&
             (algorithm != Algorithm::kTree || part.collective == Collective::kAllReduce ||
              part.collective == Collective::kBroadcast);
    });
    if (!serves) continue;
    if (const double time = timeOf(algorithm, parts, machine); time < us) {
      best = algorithm;
      us = time;
    }
  }
  return best;
}

}  // namespace

double networkUs(Algorithm algorithm, const Query& query, const Machine& machine) {
  if (machine.hosts <= 1) return 0;
  const Shape shape{static_cast<double>(machine.ranks), static_cast<double>(machine.hosts),
                    static_cast<double>(machine.ranks) / machine.hosts};
  const Wire wire = wireOf(algorithm, query.collective, shape, static_cast<double>(query.bytes));
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

bool fitsHosts(const Query& query, const Machine& machine) {
  if (machine.hosts <= 1 || machine.perHost <= 1 || query.bytes == 0) return false;
  switch (query.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast: return true;
    case Collective::kAllGather: return query.countsKnown;
    case Collective::kReduceScatter: return !query.vector;
    case Collective::kAllToAll: return !query.vector && machine.hostsInRows;
    default: return false;
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

}  // namespace kolo::planner
