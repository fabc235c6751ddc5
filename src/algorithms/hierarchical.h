// hierarchical: steps inside a host, over mapped links, and steps between hosts, over posted ones, in which each rank
// speaks with those that have its place on the other hosts: so all ranks, and the NICs near them, carry a share. Each
// step is a collective of its own among a part of the ranks, by an algorithm of its own. (The manner of MPI-3 era
// multi-leader collectives: Kandalla et al., "Designing multi-leader-based Allgather algorithms for multi-core
// clusters", 2009.)
#pragma once

#include "algorithms/steps.h"

namespace kolo::algorithms {

template <class Team>
class Hierarchical {
 public:
  KOLO_DEVICE explicit Hierarchical(device::Exchange<Team>& exchange)
      : exchange_(exchange), steps_(exchange), work_(exchange.work()), hosts_(*work_.steps.hosts) {}

  // Each rank has the sum of its host for its slice, then the sum of all, then all slices.
  KOLO_DEVICE_CALL void allReduce() {
    const device::Layout slices = slicesOf(work_.sendLayout.block(0).count);
    const device::Range mine = slices.block(hosts_.place);
    auto* const own = work_.output(mine).data;

    device::Work& inside = within(device::Collective::kReduceScatter);
    inside.sendLayout = inside.recvLayout = slices;
    inside.recv = own;
    steps_.run();

    device::Work& outside = between(device::Collective::kAllReduce);
    foldsTheLast();
    outside.sendLayout.count = outside.recvLayout.count = mine.count;
    outside.send = outside.recv = own;
    if (mine.count != 0) steps_.run();

    gatherSlices(slices);
  }

  // Blocks of the ranks with this place, then host by host those of the ranks on it.
  KOLO_DEVICE_CALL void allGather() {
    device::Work& outside = between(device::Collective::kAllGather);
    outside.recvLayout.order = hosts_.across;
    steps_.run();
    for (int host = 0; host < hosts_.count && !exchange_.failed(); ++host) {
      device::Work& inside = within(device::Collective::kAllGather);
      inside.recvLayout.order = hosts_.on(host);
      const device::Range mine = inside.recvLayout.block(hosts_.place);
      inside.sendLayout = {.count = mine.count};
      inside.send = work_.output(mine).data;
      steps_.run();
    }
  }

  // For each host the sums of this one's ranks, a block at each place; then over the hosts. REQUIRES: equal blocks;
  // scratch for a block of each host.
  KOLO_DEVICE_CALL void reduceScatter() {
    const std::uint64_t count = work_.recvLayout.count;  // of a block, or of this channel's part of each
    for (int host = 0; host < hosts_.count && !exchange_.failed(); ++host) {
      device::Work& inside = within(device::Collective::kReduceScatter);
      inside.sendLayout.order = inside.recvLayout.order = hosts_.on(host);
      inside.recv = blockInScratch(host, count).data;
      steps_.run();
    }
    device::Work& outside = between(device::Collective::kReduceScatter);
    foldsTheLast();
    outside.sendLayout = outside.recvLayout = {.count = count};
    outside.send = work_.channel.scratch;
    steps_.run();
  }

  // What this host's ranks have for those with this place elsewhere is collected here, and goes there in one piece for
  // each host. REQUIRES: equal blocks; the ranks of a host in a row; one channel; scratch for a block of each rank.
  KOLO_DEVICE_CALL void allToAll() {
    const std::uint64_t count = work_.sendLayout.count, ofHost = count * static_cast<std::uint64_t>(hosts_.perHost);
    for (int host = 0; host < hosts_.count && !exchange_.failed(); ++host) {
      device::Work& inside = within(device::Collective::kAllToAll);
      inside.sendLayout.order = hosts_.on(host);
      inside.recvLayout = {.count = count};
      inside.recv = blockInScratch(host, ofHost).data;
      steps_.run();
    }
    device::Work& outside = between(device::Collective::kAllToAll);
    outside.sendLayout = outside.recvLayout = {.count = ofHost};
    outside.send = work_.channel.scratch;
    steps_.run();
  }

  // Short: along the ranks with the root's place, then inside each host. Long: the root's host cuts it into slices,
  // each goes along its place, and every host gathers them.
  KOLO_DEVICE_CALL void broadcast() {
    int at = 0;
    while (hosts_.ranks[at] != work_.root) ++at;
    const int rootHost = at / hosts_.perHost, rootPlace = at % hosts_.perHost;
    const std::uint64_t total = work_.recvLayout.block(0).count;
    if (bytes(total) <= kShortBytes) {
      device::Work& outside = between(device::Collective::kBroadcast);
      outside.root = rootHost;
      if (hosts_.place == rootPlace) steps_.run();
      device::Work& inside = within(device::Collective::kBroadcast);
      inside.root = rootPlace;
      inside.send = work_.recv;
      steps_.run();
      return;
    }
    const device::Layout slices = slicesOf(total);
    const device::Range mine = slices.block(hosts_.place);
    auto* const own = work_.output(mine).data;
    if (hosts_.host == rootHost) {
      device::Work& cut = within(device::Collective::kScatter);
      cut.signature.algorithm = device::Algorithm::kOneShot;
      cut.root = rootPlace;
      cut.sendLayout = slices;
      cut.recvLayout = {.count = mine.count};
      cut.recv = own;
      steps_.run();
    }
    device::Work& outside = between(device::Collective::kBroadcast);
    outside.root = rootHost;
    outside.sendLayout = outside.recvLayout = {.count = mine.count};
    outside.send = outside.recv = own;
    if (mine.count != 0) steps_.run();
    gatherSlices(slices);
  }

 private:
  static constexpr std::uint64_t kShortBytes = 32768;

  KOLO_DEVICE std::uint64_t bytes(std::uint64_t elements) const { return exchange_.bytesOf(elements); }
  KOLO_DEVICE device::Layout slicesOf(std::uint64_t total) const {
    return {.count = total, .parts = hosts_.perHost, .grain = work_.grain()};
  }

  KOLO_DEVICE_CALL void gatherSlices(const device::Layout& slices) {
    const device::Range mine = slices.block(hosts_.place);
    device::Work& inside = within(device::Collective::kAllGather);
    inside.recvLayout = slices;
    inside.sendLayout = {.count = mine.count};
    inside.send = work_.output(mine).data;
    steps_.run();
  }

  // Blocks of `count` elements for, or of, each host.
  KOLO_DEVICE device::Piece blockInScratch(int host, std::uint64_t count) const {
    return work_.scratchElements().at({count * static_cast<std::uint64_t>(host), count});
  }

  KOLO_DEVICE device::Work& within(device::Collective collective) {
    return steps_.describe(collective, work_.steps.within, {hosts_.on(hosts_.host), hosts_.perHost, hosts_.place});
  }
  KOLO_DEVICE device::Work& between(device::Collective collective) {
    return steps_.describe(collective, work_.steps.between, {hosts_.across, hosts_.count, hosts_.host});
  }
  // The inputs of the step that is described are partial results, each of a host's ranks, and its outputs the results.
  KOLO_DEVICE void foldsTheLast() {
    steps_.foldsPartialResults(hosts_.perHost);
    steps_.yieldsResults();
  }

  device::Exchange<Team>& exchange_;
  Steps<Team> steps_;
  const device::Work& work_;
  const device::Hosts& hosts_;
};

template <class Team>
KOLO_DEVICE_CALL void runHierarchical(device::Exchange<Team>& exchange) {
  using device::Collective;
  Hierarchical<Team> hierarchical(exchange);
  switch (exchange.work().signature.collective) {
    case Collective::kAllReduce: hierarchical.allReduce(); break;
    case Collective::kAllGather: hierarchical.allGather(); break;
    case Collective::kReduceScatter: hierarchical.reduceScatter(); break;
    case Collective::kAllToAll: hierarchical.allToAll(); break;
    case Collective::kBroadcast: hierarchical.broadcast(); break;
    default: break;
  }
}

}  // namespace kolo::algorithms
