// ring and bidirectional ring: n - 1 steps, each rank talking to its neighbours only. One text for both: a lane is one
// direction; the bidirectional ring runs two at once, the second half of every block to the right and the first half to
// the left (the manner of JAX's Pallas all-gather), for all-gather, reduce-scatter and all-reduce alike.
//
// With lane direction d, data moves from rank r to rank r + d. A block that starts at rank b is at rank b + s d after s
// steps, so at step s rank r sends the block that started at r - s d.
//
// Blocks go in chunks, a few of them through all steps together (Channel::chunksAtOnce): while a rank works on one, and
// waits for its way to its neighbour, others keep the wire busy. Each rank takes as many chunks out of its slots as it
// puts into its neighbour's, but for those with which it began; so with fewer of these than slots somebody can always
// go on.
#pragma once

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"

namespace kolo::algorithms {

struct Lane {
  int direction;  // +1 or -1
  int half;       // 0: whole blocks; 1: the first half of each; 2: the second
};

// The lane's part of a block.
KOLO_DEVICE device::Range laneOf(const Lane& lane, device::Range block) {
  const std::uint64_t first = block.count / 2;
  if (lane.half == 1) return {block.begin, first};
  if (lane.half == 2) return {block.begin + first, block.count - first};
  return block;
}

// The ring algorithms of one operation.
template <class Team>
class Ring {
 public:
  KOLO_DEVICE Ring(device::Exchange<Team>& exchange, bool bidirectional)
      : exchange_(exchange), work_(exchange.work()), lanes_{{+1, bidirectional ? 2 : 0}, {-1, 1}},
        laneCount_(bidirectional ? 2 : 1), atOnce_(exchange.work().channel.chunksAtOnce) {
    if (bidirectional && work_.ranks == 2 && atOnce_ > 1) atOnce_ /= 2;  // both lanes have the same slots
  }

  template <class Visit>
  KOLO_DEVICE void eachNeighbour(Visit visit) const {
    visit(neighbour(+1));
    if (work_.ranks != 2) visit(neighbour(-1));
  }

  KOLO_DEVICE_CALL void allGather() {
    const device::Range own = gathered(work_.rank);
    const auto block = [&](int rank) { return gathered(rank); };
    forEachChunks(block, [&](std::uint64_t begin) {
      each(begin, [&](const Lane& lane, std::uint64_t c) {
        const device::Range first = chunk(lane, own, c);
        forward(exchange_, to(lane), work_.input({first.begin - own.begin, first.count}));
      });
      // The neighbours have what they wait for.
      if (begin == 0) copy(exchange_, work_.output(own), work_.input({0, own.count}), work_.streaming);
      circulate(1, block, begin);
    });
  }

  KOLO_DEVICE_CALL void reduceScatter() {
    const auto block = [&](int rank) { return work_.sendLayout.block(rank); };
    forEachChunks(block, [&](std::uint64_t begin) {
      reducePhase(1, block, begin, [&](const Lane& lane, device::Range last) {
        const device::Range place{last.begin - block(work_.rank).begin, last.count};
        recvReduce(exchange_, from(lane), work_.output(place), work_.input(last));
      });
    });
  }

  KOLO_DEVICE_CALL void allReduce() {
    const auto block = [&](int rank) {
      // Of a list, each item's part; not where this is a step of a hierarchical operation, whose list is not cut so.
      return work_.sendLayout.counts != nullptr
                 ? work_.sendLayout.block(rank)
                 : device::factoredPart(work_.sendLayout.block(0).count, work_.ranks, rank);
    };
    forEachChunks(block, [&](std::uint64_t begin) {
      reducePhase(0, block, begin, [&](const Lane& lane, device::Range last) {
        recvReduceForward(exchange_, from(lane), to(lane), work_.output(last), work_.input(last));
      });
      circulate(0, block, begin);
    });
  }

 private:
  KOLO_DEVICE int neighbour(int d) const { return device::ringRank(work_.rank, d, work_.ranks); }
  KOLO_DEVICE int to(const Lane& lane) const { return neighbour(lane.direction); }
  KOLO_DEVICE int from(const Lane& lane) const { return neighbour(-lane.direction); }
  KOLO_DEVICE device::Range gathered(int rank) const { return work_.recvLayout.block(rank); }

  KOLO_DEVICE device::Range chunk(const Lane& lane, device::Range block, std::uint64_t c) const {
    const device::Range part = laneOf(lane, block);
    const device::Range piece = device::chunkOf(part.count, exchange_.chunkElements(), c);
    return {part.begin + piece.begin, piece.count};
  }

  // The chunks from number `begin` on that go together, in each lane; those past a block's end are empty.
  template <class Visit>
  KOLO_DEVICE void each(std::uint64_t begin, Visit visit) {
    for (std::uint64_t c = begin; c < begin + atOnce_; ++c) {
      for (int i = 0; i < laneCount_; ++i) visit(lanes_[i], c);
    }
  }

  template <class Block, class Visit>
  KOLO_DEVICE void forEachChunks(Block block, Visit visit) {
    std::uint64_t longest = 0;
    for (int rank = 0; rank < work_.ranks; ++rank) {
      for (int i = 0; i < laneCount_; ++i) {
        const std::uint64_t count = laneOf(lanes_[i], block(rank)).count;
        longest = count > longest ? count : longest;
      }
    }
    for (std::uint64_t c = 0; c * exchange_.chunkElements() < longest && !exchange_.failed(); c += atOnce_) visit(c);
  }

  // n - 1 steps of reduction. Rank r starts with block r - shift d; the block that arrives in the last step is given to
  // `finish`: with shift 1 it is block r.
  template <class Block, class Finish>
  KOLO_DEVICE void reducePhase(int shift, Block block, std::uint64_t begin, Finish finish) {
    const auto at = [&](const Lane& lane, int step, std::uint64_t c) {
      return chunk(lane, block(device::ringRank(work_.rank, -lane.direction * (shift + step), work_.ranks)), c);
    };
    each(begin, [&](const Lane& lane, std::uint64_t c) {
      const device::Range first = at(lane, 0, c);
      send(exchange_, to(lane), work_.input(first));
    });
    for (int step = 1; step < work_.ranks - 1; ++step) {
      each(begin, [&](const Lane& lane, std::uint64_t c) {
        const device::Range next = at(lane, step, c);
        recvReduceSend(exchange_, from(lane), to(lane), work_.input(next), step);
      });
    }
    each(begin, [&](const Lane& lane, std::uint64_t c) { finish(lane, at(lane, work_.ranks - 1, c)); });
  }

  // n - 1 steps of gathering, after rank r has sent the block it starts with: block r with shift 1; with shift 0 the
  // one that the reduction left it, r + d.
  template <class Block>
  KOLO_DEVICE void circulate(int shift, Block block, std::uint64_t begin) {
    for (int step = 1; step < work_.ranks; ++step) {
      each(begin, [&](const Lane& lane, std::uint64_t c) {
        const int origin = device::ringRank(work_.rank, -lane.direction * (step - 1 + shift), work_.ranks);
        const device::Range next = chunk(lane, block(origin), c);
        const device::Piece place = work_.output(next);
        if (step < work_.ranks - 1) {
          recvForward(exchange_, from(lane), to(lane), place);
        } else {
          recv(exchange_, from(lane), place);
        }
      });
    }
  }

  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  Lane lanes_[2];
  int laneCount_;
  std::uint64_t atOnce_;  // chunks
};

// Chains: the ring cut open at the root, for broadcast (away from it) and reduce (towards it), chunk after chunk.
template <class Team>
KOLO_DEVICE_CALL void runChain(device::Exchange<Team>& exchange, bool met) {
  const device::Work& work = exchange.work();
  const bool reduces = work.signature.collective == device::Collective::kReduce;
  const int n = work.ranks, place = device::ringRank(work.rank, -work.root, n);
  const int before = device::ringRank(work.rank, -1, n), after = device::ringRank(work.rank, 1, n);
  const int from = reduces ? after : before, to = reduces ? before : after;
  const bool receives = reduces ? place < n - 1 : place > 0;
  const bool sends = reduces ? place > 0 : place < n - 1;

  const std::uint64_t total = reduces ? work.sendLayout.block(0).count : work.recvLayout.block(0).count;
  const auto eachNeighbour = [&](auto visit) {
    if (sends) visit(to);
    if (receives) visit(from);
  };
  runWith(exchange, met, eachNeighbour, [&] {
    if (!reduces && !receives) copy(exchange, work.output({0, total}), work.input({0, total}), work.streaming);
    for (std::uint64_t c = 0; c * exchange.chunkElements() < total && !exchange.failed(); ++c) {
      const device::Range chunk = device::chunkOf(total, exchange.chunkElements(), c);
      if (reduces) {
        if (!receives) send(exchange, to, work.input(chunk));
        else if (sends) recvReduceSend(exchange, from, to, work.input(chunk), n - 1 - place);
        else recvReduce(exchange, from, work.output(chunk), work.input(chunk));
      } else {
        if (!receives) forward(exchange, to, work.input(chunk));
        else if (sends) recvForward(exchange, from, to, work.output(chunk));
        else recv(exchange, from, work.output(chunk));
      }
    }
  });
}

template <class Team>
KOLO_DEVICE_CALL void runRing(device::Exchange<Team>& exchange, bool bidirectional, bool met) {
  using device::Collective;
  const Collective collective = exchange.work().signature.collective;
  if (collective == Collective::kBroadcast || collective == Collective::kReduce) {
    runChain(exchange, met);
    return;
  }
  Ring<Team> ring(exchange, bidirectional);
  const auto eachNeighbour = [&](auto visit) { ring.eachNeighbour(visit); };
  runWith(exchange, met, eachNeighbour, [&] {
    if (collective == Collective::kAllReduce) ring.allReduce();
    if (collective == Collective::kAllGather) ring.allGather();
    if (collective == Collective::kReduceScatter) ring.reduceScatter();
  });
}

}  // namespace kolo::algorithms
