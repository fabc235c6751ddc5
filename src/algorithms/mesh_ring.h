// mesh_ring: the all-reduce by rings along the axes of a mesh: a reduce-scatter along each axis but the first, from the
// last one on, an all-reduce along the first axis, and all-gathers back. n ranks take 2 (d - 1) steps for each axis of
// d ranks instead of the 2 (n - 1) of one ring, and each rank sends and receives as many bytes as there. (Mikami et
// al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018: the 2D-torus all-reduce.)
#pragma once

#include "algorithms/steps.h"

namespace kolo::algorithms {

template <class Team>
class MeshRing {
 public:
  KOLO_DEVICE explicit MeshRing(device::Exchange<Team>& exchange)
      : steps_(exchange), work_(exchange.work()), mesh_(*work_.steps.mesh) {}

  KOLO_DEVICE_CALL void allReduce() {
    int folded = 1;  // the ranks whose inputs are in each input of the next step
    for (int axis = mesh_.axes - 1; axis > 0; --axis) {
      reduceScatter(axis, folded);
      folded *= mesh_.lines[axis].ranks;
    }
    reduceAlongFirst(folded);
    for (int axis = 1; axis < mesh_.axes; ++axis) allGather(axis);
  }

 private:
  // The line's ranks have the sums of this slice over the axes behind this one. Each gets the sum of its part of the
  // slice over the line.
  KOLO_DEVICE void reduceScatter(int axis, int folded) {
    const device::Range slice = sliceBefore(axis);
    if (slice.count == 0) return;
    device::Work& step = along(axis, device::Collective::kReduceScatter);
    step.sendLayout = step.recvLayout = partsOf(slice, axis);
    if (folded > 1) {
      steps_.foldsPartialResults(folded);
      step.send = work_.output(slice).data;
    }
    step.recv = work_.output(ownPart(slice, axis)).data;
    steps_.run();
  }

  KOLO_DEVICE void reduceAlongFirst(int folded) {
    const device::Range slice = sliceBefore(0);
    if (slice.count == 0) return;
    device::Work& step = along(0, device::Collective::kAllReduce);
    steps_.foldsPartialResults(folded);
    steps_.yieldsResults();
    step.sendLayout = step.recvLayout = {.count = slice.count};
    step.recv = work_.output(slice).data;
    step.send = step.recv;
    steps_.run();
  }

  KOLO_DEVICE void allGather(int axis) {
    const device::Range slice = sliceBefore(axis), mine = ownPart(slice, axis);
    if (slice.count == 0) return;
    device::Work& step = along(axis, device::Collective::kAllGather);
    step.recvLayout = partsOf(slice, axis);
    step.recv = work_.output(slice).data;
    step.sendLayout = {.count = mine.count};
    step.send = work_.output(mine).data;
    steps_.run();
  }

  KOLO_DEVICE device::Work& along(int axis, device::Collective collective) {
    return steps_.describe(collective, device::Algorithm::kRing, mesh_.lines[axis]);
  }

  // What the reduce-scatters along the axes behind this one leave to this rank, and to all others of its line.
  KOLO_DEVICE device::Range sliceBefore(int axis) const {
    device::Range slice{0, work_.sendLayout.block(0).count};
    for (int behind = mesh_.axes - 1; behind > axis; --behind) slice = ownPart(slice, behind);
    return slice;
  }
  // The parts of a slice for the ranks of the line, counted from where the slice begins.
  KOLO_DEVICE device::Layout partsOf(const device::Range& slice, int axis) const {
    return {.count = slice.count, .parts = mesh_.lines[axis].ranks, .grain = work_.grain()};
  }
  KOLO_DEVICE device::Range ownPart(const device::Range& slice, int axis) const {
    const device::Range part = partsOf(slice, axis).block(mesh_.lines[axis].rank);
    return {slice.begin + part.begin, part.count};
  }

  Steps<Team> steps_;
  const device::Work& work_;
  const device::Mesh& mesh_;
};

template <class Team>
KOLO_DEVICE_CALL void runMeshRing(device::Exchange<Team>& exchange) {
  MeshRing<Team> ring(exchange);
  ring.allReduce();
}

}  // namespace kolo::algorithms
