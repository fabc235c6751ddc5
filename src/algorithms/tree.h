// Binomial trees: log2 n deep. Ranks are counted from the root; the subtree of place v holds the places
// [v, v + size(v)), size(v) being the lowest set bit of v.
#pragma once

#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/packets.h"
#include "device/slots.h"

namespace kolo::algorithms {

// Pure arithmetic of the binomial tree over n places, place 0 the root.
class Binomial {
 public:
  KOLO_DEVICE Binomial(int n, int place) : n_(n), place_(place) {}
  KOLO_DEVICE int parent() const { return place_ & (place_ - 1); }
  KOLO_DEVICE int subtreeOf(int v) const {
    const int whole = v == 0 ? n_ : v & -v;
    return v + whole > n_ ? n_ - v : whole;
  }
  // Children in rising order: place + 1, + 2, + 4, ...
  template <class Visit>
  KOLO_DEVICE void eachChild(Visit visit) const {
    for (int bit = 1; (place_ == 0 || bit < (place_ & -place_)) && place_ + bit < n_; bit *= 2) visit(place_ + bit);
  }

 private:
  int n_;
  int place_;
};

// One chunk towards the root of a tree: own input and the children's partial results, folded in that order. ranks: that
// the result is of; isLast: it is the root's. eachChild(visit) calls visit(rank, ranks that its result is of) for each
// child, the same at each call. inputFrom(child): where that result is; outputAt(): where the fold goes.
template <class Team, class EachChild, class InputFrom, class OutputAt>
KOLO_DEVICE void foldUp(device::Exchange<Team>& exchange, device::Range chunk, int ranks, bool isLast, bool streaming,
                        const EachChild& eachChild, const InputFrom& inputFrom, const OutputAt& outputAt) {
  const device::Work& work = exchange.work();
  device::FoldLists& lists = exchange.team().lists();
  int count = 0;
  const auto add = [&](const void* input, int ofRanks) {
    if (exchange.team().leader()) {
      lists.weights[count] = shareOf(exchange, ofRanks);
      lists.inputs[count] = input;
    }
    ++count;
  };
  exchange.team().sync();  // the last chunk's fold has ended
  add(work.input(chunk).data, 1);
  eachChild([&](int child, int ofRanks) { add(inputFrom(child), ofRanks); });
  void* output = outputAt();
  exchange.team().sync();
  fold(exchange, &output, 1, lists.inputs, count, 0, exchange.bytesOf(chunk.count), isLast, isLast && streaming,
       {lists.weights, ranks});
}

// The same through slots: the fold goes to the parent; at the root, whose parent is -1, it is the result.
template <class Team, class EachChild>
KOLO_DEVICE void passUp(device::Exchange<Team>& exchange, device::Range chunk, int parent, int ranks, bool streaming,
                        const EachChild& eachChild) {
  const bool isRoot = parent < 0;
  foldUp(
      exchange, chunk, ranks, isRoot, streaming, eachChild, [&](int child) { return awaitSlot(exchange, child); },
      [&] { return isRoot ? exchange.work().output(chunk).data : acquireSlot(exchange, parent); });
  tellAlone(exchange, [&] {
    if (!isRoot) publish(exchange, exchange.linkTo(parent), exchange.bytesOf(chunk.count));
    eachChild([&](int child, int) { release(exchange, exchange.linkTo(child)); });
  });
}

template <class Team>
class Tree {
 public:
  KOLO_DEVICE Tree(device::Exchange<Team>& exchange, int root)
      : exchange_(exchange), work_(exchange.work()), root_(root),
        place_(device::ringRank(work_.rank, -root, work_.ranks)), binomial_(work_.ranks, place_) {}

  template <class Visit>
  KOLO_DEVICE void eachNeighbour(Visit visit) const {
    if (place_ != 0) visit(parent());
    binomial_.eachChild([&](int child) { visit(rankAt(child)); });
  }

  // Header lines only: up when all below have arrived, down when the parent says so.
  KOLO_DEVICE_CALL void barrier() {
    binomial_.eachChild([&](int child) { meet(exchange_, rankAt(child)); });
    if (place_ != 0) {
      announce(exchange_, parent());
      meet(exchange_, parent());
    }
    binomial_.eachChild([&](int child) { announce(exchange_, rankAt(child)); });
  }

  KOLO_DEVICE_CALL void broadcast() {
    const std::uint64_t total = work_.recvLayout.block(0).count;
    expect(total);
    if (place_ == 0) copy(exchange_, work_.output({0, total}), work_.input({0, total}), work_.streaming);
    forEachChunk(total, [&](device::Range chunk) { down(chunk, work_.input(chunk)); });
  }
  KOLO_DEVICE_CALL void reduce() {
    expect(work_.sendLayout.block(0).count);
    forEachChunk(work_.sendLayout.block(0).count, [&](device::Range chunk) { up(chunk); });
  }
  // Each chunk up to place 0 and down again.
  KOLO_DEVICE_CALL void allReduce() {
    expect(work_.sendLayout.block(0).count);
    forEachChunk(work_.sendLayout.block(0).count, [&](device::Range chunk) {
      up(chunk);
      exchange_.team().sync();
      down(chunk, work_.output(chunk));
    });
  }

  // All-reduce, reduce and broadcast in packets, in one step with the neighbours: partial results go up to the parent,
  // and results down to the children.
  KOLO_DEVICE_CALL void inPackets() {
    using device::Collective, device::ConstPiece, device::Piece;
    const Collective collective = work_.signature.collective;
    const bool goesUp = device::isIn(collective, device::kReducing), goesDown = collective != Collective::kReduce;
    const bool isRoot = place_ == 0;
    const device::Range all = work_.sendLayout.block(0);
    const ConstPiece input = work_.input(all);
    const Piece output = work_.output(all);
    int children = 0;
    binomial_.eachChild([&](int) { ++children; });
    const int peers = isRoot ? children : children + 1;  // the parent behind the children
    // What goes up: of a leaf, its input.
    const Piece folded = isRoot ? output : Piece{unpackedFrom(exchange_, parent()), input.bytes};
    const ConstPiece up = children == 0 ? input : ConstPiece(folded);
    const ConstPiece down = goesUp || !isRoot ? ConstPiece(output) : input;

    const auto peerAt = [&](int i) { return i < children ? rankAt(place_ + (1 << i)) : parent(); };
    const auto isParent = [&](int peer) { return !isRoot && peer == parent(); };
    const auto pieceFor = [&](int peer) {
      if (isParent(peer)) return goesUp ? up : ConstPiece{};
      return goesDown ? down : ConstPiece{};
    };
    const auto pieceFrom = [&](int peer) {
      if (isParent(peer)) return goesDown ? output : Piece{};
      return goesUp ? Piece{unpackedFrom(exchange_, peer), input.bytes} : Piece{};
    };
    if (!openPackets(exchange_, peers, peerAt, pieceFor, pieceFrom)) return;
    if (goesUp && children != 0) {
      takePackets(exchange_, 0, children);
      foldUp(
          exchange_, all, binomial_.subtreeOf(place_), isRoot, false, eachBelow(),
          [&](int child) { return unpackedFrom(exchange_, child); }, [&] { return folded.data; });
      exchange_.team().sync();
      if (exchange_.failed()) return;
    }
    putPackets(exchange_, children, peers);
    exchange_.team().sync();  // it has been read, and may lie where the output does
    takePackets(exchange_, children, peers);
    exchange_.team().sync();
    if (exchange_.failed()) return;
    putPackets(exchange_, 0, children);
    if (isRoot && !goesUp) copy(exchange_, output, input, work_.streaming);
    closePackets(exchange_, peers);
  }

  // Up: own block first, then the children's subtrees in rising order, which is the order of places.
  KOLO_DEVICE_CALL void gather() {
    if (place_ == 0) {
      const device::Range own = work_.recvLayout.block(work_.rank);
      copy(exchange_, work_.output(own), work_.input({0, own.count}), false);
    } else {
      const std::uint64_t count = work_.sendLayout.block(0).count;
      forEachChunk(count, [&](device::Range chunk) { forward(exchange_, parent(), work_.input(chunk)); });
    }
    binomial_.eachChild([&](int child) {
      eachBlockBelow(child, gatherCount(), [&](int rank, device::Range chunk) {
        if (place_ != 0) {
          relay(rankAt(child), parent(), exchange_.bytesOf(chunk.count));
        } else {
          const std::uint64_t begin = work_.recvLayout.block(rank).begin + chunk.begin;
          recv(exchange_, rankAt(child), work_.output({begin, chunk.count}));
        }
      });
    });
  }

  // Down: the same stream in reverse.
  KOLO_DEVICE_CALL void scatter() {
    const std::uint64_t count = work_.recvLayout.block(0).count;
    if (place_ == 0) {
      const device::Range own = work_.sendLayout.block(work_.rank);
      copy(exchange_, work_.output({0, own.count}), work_.input(own), false);
    } else {
      forEachChunk(count, [&](device::Range chunk) { recv(exchange_, parent(), work_.output(chunk)); });
    }
    binomial_.eachChild([&](int child) {
      eachBlockBelow(child, count, [&](int rank, device::Range chunk) {
        if (place_ != 0) {
          relay(parent(), rankAt(child), exchange_.bytesOf(chunk.count));
        } else {
          const std::uint64_t begin = work_.sendLayout.block(rank).begin + chunk.begin;
          forward(exchange_, rankAt(child), work_.input({begin, chunk.count}));
        }
      });
    });
  }

 private:
  KOLO_DEVICE int rankAt(int place) const { return device::ringRank(place, root_, work_.ranks); }
  KOLO_DEVICE int parent() const { return rankAt(binomial_.parent()); }
  KOLO_DEVICE std::uint64_t gatherCount() const { return work_.sendLayout.block(0).count; }

  // What comes from a neighbour.
  KOLO_DEVICE void expect(std::uint64_t count) { exchange_.expectAtMost(exchange_.bytesOf(count)); }

  template <class Visit>
  KOLO_DEVICE void forEachChunk(std::uint64_t total, Visit visit) {
    for (std::uint64_t c = 0; c * exchange_.chunkElements() < total && !exchange_.failed(); ++c) {
      visit(device::chunkOf(total, exchange_.chunkElements(), c));
    }
  }
  template <class Visit>
  KOLO_DEVICE void eachBlockBelow(int child, std::uint64_t count, Visit visit) {
    for (int v = child; v < child + binomial_.subtreeOf(child); ++v) {
      forEachChunk(count, [&](device::Range chunk) { visit(rankAt(v), chunk); });
    }
  }

  KOLO_DEVICE_CALL void relay(int from, int to, std::uint64_t bytes) {
    const auto* const slot = awaitSlot(exchange_, from);
    auto* const next = slot != nullptr ? acquireSlot(exchange_, to) : nullptr;
    if (next == nullptr) return;
    copy(exchange_, next, slot, bytes, false);
    passSlot(exchange_, to, bytes, from);
  }

  // One chunk towards the leaves; `source` is where the root has it.
  KOLO_DEVICE_CALL void down(device::Range chunk, device::ConstPiece source) {
    if (place_ != 0) {
      const device::Piece result = work_.output(chunk);
      recv(exchange_, parent(), result);
      source = result;
    }
    binomial_.eachChild([&](int child) { forward(exchange_, rankAt(child), source); });
  }

  // One chunk towards the root: own input and the children's sums, in rising order of places.
  KOLO_DEVICE_CALL void up(device::Range chunk) {
    passUp(exchange_, chunk, place_ == 0 ? -1 : parent(), binomial_.subtreeOf(place_), false, eachBelow());
  }
  // Visits the children, with the number of ranks that the result of each is of.
  KOLO_DEVICE auto eachBelow() const {
    return [this](auto visit) {
      binomial_.eachChild([&](int child) { visit(rankAt(child), binomial_.subtreeOf(child)); });
    };
  }

  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  int root_;
  int place_;
  Binomial binomial_;
};

template <class Team>
KOLO_DEVICE_CALL void runTree(device::Exchange<Team>& exchange, device::Opening opening, bool met) {
  using device::Collective;
  const device::Work& work = exchange.work();
  const bool rooted =
      work.signature.collective != Collective::kAllReduce && work.signature.collective != Collective::kBarrier;
  Tree<Team> tree(exchange, rooted ? work.root : 0);
  if (work.signature.collective == Collective::kBarrier) {
    tree.barrier();
    return;
  }
  if constexpr (Team::kPackets) {
    if (opening == device::Opening::kInPackets) return tree.inPackets();
  }
  const auto eachNeighbour = [&](auto visit) { tree.eachNeighbour(visit); };
  runWith(exchange, met, eachNeighbour, [&] {
    switch (work.signature.collective) {
      case Collective::kAllReduce: tree.allReduce(); break;
      case Collective::kReduce: tree.reduce(); break;
      case Collective::kBroadcast: tree.broadcast(); break;
      case Collective::kGather: tree.gather(); break;
      case Collective::kScatter: tree.scatter(); break;
      default: break;
    }
  });
}

}  // namespace kolo::algorithms
