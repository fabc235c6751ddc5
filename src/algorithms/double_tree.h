// double_tree: broadcast and reduce along two binary trees (two_trees.h), each of which carries one half of the data.
// A rank that is an inner node of one tree is a leaf of the other, so every rank sends and receives each byte about
// once, as in a ring, and the first chunk passes log2 n ranks instead of n - 1.
//
// Every rank takes the chunks in one order: a few of the first tree (Channel::chunksAtOnce), as many of the second, the
// next ones of the first, and so on. What a rank waits for is the same chunk at a rank nearer to the root (in a
// reduction: to the leaves), or the slot of an earlier chunk. So no circle of ranks waits for each other.
#pragma once

#include <cstdint>

#include "algorithms/tree.h"
#include "algorithms/two_trees.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/slots.h"

namespace kolo::algorithms {

template <class Team>
class DoubleTree {
 public:
  KOLO_DEVICE explicit DoubleTree(device::Exchange<Team>& exchange)
      : exchange_(exchange), work_(exchange.work()), trees_(work_.ranks),
        place_(device::ringRank(work_.rank, -work_.root, work_.ranks)) {}

  // Two parents, and two children in one tree or, of the root, one in each.
  template <class Visit>
  KOLO_DEVICE void eachNeighbour(Visit visit) const {
    int known[4];
    int count = 0;
    const auto add = [&](int place) {
      for (int i = 0; i < count; ++i) {
        if (known[i] == place) return;
      }
      known[count++] = place;
      visit(rankAt(place));
    };
    for (int tree = 0; tree < 2; ++tree) {
      if (!isRoot()) add(trees_.parent(tree, place_));
      eachChild(tree, add);
    }
  }

  KOLO_DEVICE_CALL void broadcast() {
    forEachChunk(work_.recvLayout.block(0).count, [&](int tree, device::Range chunk) { down(tree, chunk); });
  }
  KOLO_DEVICE_CALL void reduce() {
    forEachChunk(work_.sendLayout.block(0).count, [&](int tree, device::Range chunk) { up(tree, chunk); });
  }

 private:
  KOLO_DEVICE bool isRoot() const { return place_ == 0; }
  KOLO_DEVICE int rankAt(int place) const { return device::ringRank(place, work_.root, work_.ranks); }
  KOLO_DEVICE int parent(int tree) const { return rankAt(trees_.parent(tree, place_)); }
  template <class Visit>
  KOLO_DEVICE void eachChild(int tree, Visit visit) const {
    trees_.eachChild(tree, place_, visit);
  }

  template <class Visit>
  KOLO_DEVICE void forEachChunk(std::uint64_t total, Visit visit) {
    const auto half = [&](int tree) { return device::alignedPart(total, 2, tree, work_.grain()); };
    const std::uint64_t step = exchange_.chunkElements(), chunks = device::divideUp(half(0).count, step);
    for (std::uint64_t first = 0; first < chunks && !exchange_.failed(); first += work_.channel.chunksAtOnce) {
      for (int tree = 0; tree < 2; ++tree) {
        const device::Range part = half(tree);
        for (std::uint64_t c = first; c < first + work_.channel.chunksAtOnce; ++c) {
          const device::Range chunk = device::chunkOf(part.count, step, c);
          if (chunk.count != 0) visit(tree, device::Range{part.begin + chunk.begin, chunk.count});
        }
      }
    }
  }

  // One chunk towards the leaves: to this rank's output, and to all children at once.
  KOLO_DEVICE_CALL void down(int tree, device::Range chunk) {
    const std::uint64_t bytes = exchange_.bytesOf(chunk.count);
    void* outputs[3];
    int count = 0;
    if (!isRoot() || work_.send != work_.recv) outputs[count++] = work_.output(chunk).data;
    const void* input = isRoot() ? work_.input(chunk).data : awaitSlot(exchange_, parent(tree));
    eachChild(tree, [&](int child) { outputs[count++] = acquireSlot(exchange_, rankAt(child)); });
    fold(exchange_, outputs, count, &input, 1, -1, bytes, false, false);
    tellAlone(exchange_, [&] {
      eachChild(tree, [&](int child) { publish(exchange_, exchange_.linkTo(rankAt(child)), bytes); });
      if (!isRoot()) release(exchange_, exchange_.linkTo(parent(tree)));
    });
  }

  // One chunk towards the root: own input and the children's partial results.
  KOLO_DEVICE_CALL void up(int tree, device::Range chunk) {
    const int ranks = trees_.subtreeOf(tree, place_);
    passUp(exchange_, chunk, isRoot() ? -1 : parent(tree), ranks, work_.streaming, [&](auto visit) {
      eachChild(tree, [&](int child) { visit(rankAt(child), trees_.subtreeOf(tree, child)); });
    });
  }

  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  TwoTrees trees_;
  int place_;
};

template <class Team>
KOLO_DEVICE_CALL void runDoubleTree(device::Exchange<Team>& exchange, bool met) {
  DoubleTree<Team> trees(exchange);
  const auto eachNeighbour = [&](auto visit) { trees.eachNeighbour(visit); };
  runWith(exchange, met, eachNeighbour, [&] {
    if (exchange.work().signature.collective == device::Collective::kBroadcast) {
      trees.broadcast();
    } else {
      trees.reduce();
    }
  });
}

}  // namespace kolo::algorithms
