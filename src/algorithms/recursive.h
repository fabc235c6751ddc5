// Recursive doubling and halving: log2 n steps between ranks whose numbers differ in one bit.
//
// For n that is no power of two the first 2 (n - p) ranks, p the largest power below, fold in pairs: the even one hands
// its data to the odd one, which stands for both, and gets the result back at the end (Thakur, Rabenseifner and Gropp,
// "Optimization of Collective Communication Operations in MPICH", 2005).
#pragma once

#include "algorithms/bounds.h"
#include "device/chunks.h"
#include "device/exchange.h"
#include "device/folds.h"
#include "device/headers.h"
#include "device/slots.h"

namespace kolo::algorithms {

// The members, and the ranks that each of them stands for. Pure arithmetic.
class Folding {
 public:
  KOLO_DEVICE explicit Folding(int ranks) : ranks_(ranks) {
    while (size_ * 2 <= ranks) size_ *= 2;
    pairs_ = ranks - size_;
  }
  KOLO_DEVICE int size() const { return size_; }  // members: the largest power of two <= n
  KOLO_DEVICE bool isPaired(int rank) const { return rank < 2 * pairs_; }
  KOLO_DEVICE bool isMember(int rank) const { return !isPaired(rank) || rank % 2 == 1; }
  KOLO_DEVICE int memberOf(int rank) const { return isPaired(rank) ? rank / 2 : rank - pairs_; }
  KOLO_DEVICE int rankOf(int member) const { return member < pairs_ ? 2 * member + 1 : member + pairs_; }
  // The ranks that members [first, last) stand for are consecutive: [firstRank(first), firstRank(last)).
  KOLO_DEVICE int firstRank(int member) const { return member < pairs_ ? 2 * member : member + pairs_; }
  // How many ranks those members stand for that differ from this one by a multiple of `distance`, a power of two.
  KOLO_DEVICE int ranksApart(int member, int distance) const {
    const int first = member & (distance - 1);
    const int pairs = first < pairs_ ? (pairs_ - first + distance - 1) / distance : 0;
    return size_ / distance + pairs;
  }

 private:
  int ranks_;
  int size_ = 1;
  int pairs_ = 0;
};

template <class Team>
class Recursive {
 public:
  KOLO_DEVICE explicit Recursive(device::Exchange<Team>& exchange)
      : exchange_(exchange), work_(exchange.work()), folding_(work_.ranks), member_(folding_.memberOf(work_.rank)) {}

  template <class Visit>
  KOLO_DEVICE void eachPartner(Visit visit) {
    if (!folding_.isMember(work_.rank)) {
      visit(work_.rank + 1);
      return;
    }
    if (folding_.isPaired(work_.rank)) visit(work_.rank - 1);
    eachStep([&](int, int partner) { visit(partner); });
  }

  // Header lines only. A line to a partner is written when all that it stands for have arrived.
  KOLO_DEVICE_CALL void barrier() {
    if (!folding_.isMember(work_.rank)) {
      announce(exchange_, work_.rank + 1);
      meet(exchange_, work_.rank + 1);
      return;
    }
    if (folding_.isPaired(work_.rank)) meet(exchange_, work_.rank - 1);
    eachStep([&](int, int partner) {
      announce(exchange_, partner);
      meet(exchange_, partner);
    });
    if (folding_.isPaired(work_.rank)) announce(exchange_, work_.rank - 1);
  }

  // Everybody's whole vector to the partner in each step: fewest steps, for short vectors.
  KOLO_DEVICE_CALL void allReduceByDoubling() {
    const std::uint64_t total = work_.sendLayout.block(0).count;
    exchange_.expectAtMost(exchange_.bytesOf(total));
    forEachChunk(total, [&](device::Range chunk) {
      const device::Piece result = work_.output(chunk);
      const device::ConstPiece own = work_.input(chunk);
      if (!folding_.isMember(work_.rank)) {
        send(exchange_, work_.rank + 1, own);
        recv(exchange_, work_.rank + 1, result);
        return;
      }
      if (folding_.isPaired(work_.rank)) {
        reduceInto(work_.rank - 1, result, own, ofPair());
      } else if (result.data != own.data || work_.fold.scaled) {
        contribute(exchange_, result.data, own);
      }
      // The partners come in the order of halve(), so that an element's bits do not depend on the vector's length.
      for (int bit = folding_.size() / 2; bit >= 1; bit /= 2) {
        const int partner = folding_.rankOf(member_ ^ bit);
        forward(exchange_, partner, result);
        const int theirs = folding_.ranksApart(member_ ^ bit, 2 * bit), mine = folding_.ranksApart(member_, 2 * bit);
        reduceInto(partner, result, result, {theirs, mine, false, bit == 1});
      }
      if (folding_.isPaired(work_.rank)) forward(exchange_, work_.rank - 1, result);
    });
  }

  // Rabenseifner: reduce-scatter by halving, all-gather by doubling; each byte moves about twice.
  KOLO_DEVICE_CALL void allReduceByHalving() {
    const std::uint64_t total = work_.sendLayout.block(0).count;
    const auto place = [&](int member) {
      return member == folding_.size() ? total
                                       : device::alignedPart(total, folding_.size(), member, work_.grain()).begin;
    };
    if (!folding_.isMember(work_.rank)) {
      sendAll(work_.rank + 1, total);
      recvAll(work_.rank + 1, {0, total});
      return;
    }
    const device::Elements result = work_.outputElements();
    gatherPair(result, total);
    halve(result, place);
    exchange_.team().sync();
    unfold(result, place);
    if (folding_.isPaired(work_.rank)) forwardAll(work_.rank - 1, result, {0, total});
  }

  // By halving in scratch, which holds the whole input.
  KOLO_DEVICE_CALL void reduceScatter() {
    const auto rankPlace = [&](int rank) {
      return rank == work_.ranks ? work_.sendLayout.block(rank - 1).begin + work_.sendLayout.block(rank - 1).count
                                 : work_.sendLayout.block(rank).begin;
    };
    const std::uint64_t total = rankPlace(work_.ranks);
    const device::Range mine = work_.sendLayout.block(work_.rank);
    if (!folding_.isMember(work_.rank)) {
      sendAll(work_.rank + 1, total);
      recvAll(work_.rank + 1, {0, mine.count});
      return;
    }
    const device::Elements sums = work_.scratchElements();
    gatherPair(sums, total);
    halve(sums, [&](int member) { return rankPlace(folding_.firstRank(member)); });
    exchange_.team().sync();
    copy(exchange_, work_.output({0, mine.count}), sums.at(mine), work_.streaming);
    if (folding_.isPaired(work_.rank)) {
      forwardAll(work_.rank - 1, sums, work_.sendLayout.block(work_.rank - 1));
    }
  }

  KOLO_DEVICE_CALL void allGather() {
    const auto block = [&](int rank) { return work_.recvLayout.block(rank); };
    const device::Range own = block(work_.rank);
    copy(exchange_, work_.output(own), work_.input({0, own.count}), false);
    if (!folding_.isMember(work_.rank)) {
      sendAll(work_.rank + 1, own.count);
      exchangeBlocks(work_.rank + 1, 0, 0, 0, work_.ranks, true);
      return;
    }
    if (folding_.isPaired(work_.rank)) {
      recvAll(work_.rank - 1, block(work_.rank - 1));
    }
    eachStep([&](int bit, int partner) {
      const int have = member_ & ~(bit - 1), want = have ^ bit;
      exchangeBlocks(partner, folding_.firstRank(have), folding_.firstRank(have + bit), folding_.firstRank(want),
                     folding_.firstRank(want + bit), false);
    });
    if (folding_.isPaired(work_.rank)) exchangeBlocks(work_.rank - 1, 0, work_.ranks, 0, 0, true);
  }

 private:
  template <class Visit>
  KOLO_DEVICE void eachStep(Visit visit) {
    for (int bit = 1; bit < folding_.size(); bit *= 2) visit(bit, folding_.rankOf(member_ ^ bit));
  }
  template <class Visit>
  KOLO_DEVICE void forEachChunk(std::uint64_t total, Visit visit) {
    for (std::uint64_t c = 0; c * exchange_.chunkElements() < total && !exchange_.failed(); ++c) {
      visit(device::chunkOf(total, exchange_.chunkElements(), c));
    }
  }

  // This rank's input, whole.
  KOLO_DEVICE_CALL void sendAll(int peer, std::uint64_t count) {
    forEachChunk(count, [&](device::Range chunk) { send(exchange_, peer, work_.input(chunk)); });
  }
  KOLO_DEVICE_CALL void forwardAll(int peer, const device::Elements& data, device::Range range) {
    forEachChunk(range.count, [&](device::Range chunk) {
      forward(exchange_, peer, data.at({range.begin + chunk.begin, chunk.count}));
    });
  }
  KOLO_DEVICE_CALL void recvAll(int peer, device::Range range) {
    forEachChunk(range.count, [&](device::Range chunk) {
      recv(exchange_, peer, work_.output({range.begin + chunk.begin, chunk.count}));
    });
  }

  // Two partial results that become one.
  struct Step {
    int theirs;       // ranks in the peer's
    int mine;         // ranks in this rank's own
    bool ownIsInput;  // this rank's own is its input, still without its scale
    bool last;        // the two are all ranks
  };
  KOLO_DEVICE static Step ofPair() { return {1, 1, true, false}; }

  // result = the peer's chunk and `own` folded, the lower rank's first, so that both partners get the same bits.
  KOLO_DEVICE_CALL void reduceInto(int peer, const device::Piece& result, const device::ConstPiece& own, Step step) {
    if (own.bytes == 0) return;
    const void* const slot = awaitSlot(exchange_, peer);
    if (slot == nullptr) return;
    const bool peerFirst = peer < work_.rank;
    const void* inputs[] = {peerFirst ? slot : own.data, peerFirst ? own.data : slot};
    void* outputs[] = {result.data};
    const float theirs = shareOf(exchange_, step.theirs), mine = shareOf(exchange_, step.mine);
    const float weights[] = {peerFirst ? theirs : mine, peerFirst ? mine : theirs};
    fold(exchange_, outputs, 1, inputs, 2, step.ownIsInput ? (peerFirst ? 1 : 0) : -1, own.bytes, step.last, false,
         {weights, step.theirs + step.mine});
    releaseSlot(exchange_, peer);
  }

  // into = this rank's input, with that of the even partner folded in if there is one.
  KOLO_DEVICE_CALL void gatherPair(const device::Elements& into, std::uint64_t total) {
    forEachChunk(total, [&](device::Range chunk) {
      const device::Piece result = into.at(chunk);
      const device::ConstPiece own = work_.input(chunk);
      if (folding_.isPaired(work_.rank)) {
        reduceInto(work_.rank - 1, result, own, ofPair());
      } else if (result.data != own.data || work_.fold.scaled) {
        contribute(exchange_, result.data, own);
      }
    });
    exchange_.team().sync();
  }

  // After the step for `bit` this member holds the sums of the range of members that agree with it in the bits from
  // `bit` upwards. place(m) is the first element of member m's range.
  template <class Place>
  KOLO_DEVICE void halve(const device::Elements& data, Place place) {
    for (int bit = folding_.size() / 2; bit >= 1; bit /= 2) {
      const int partner = folding_.rankOf(member_ ^ bit);
      const int keep = member_ & ~(bit - 1), give = keep ^ bit;
      const int theirs = folding_.ranksApart(member_ ^ bit, 2 * bit), mine = folding_.ranksApart(member_, 2 * bit);
      const Step step{theirs, mine, false, bit == 1};
      const std::uint64_t giveBegin = place(give), giveCount = place(give + bit) - giveBegin;
      const std::uint64_t keepBegin = place(keep), keepCount = place(keep + bit) - keepBegin;
      const std::uint64_t most = giveCount > keepCount ? giveCount : keepCount;
      forEachChunk(most, [&](device::Range chunk) {
        const auto cut = [&](std::uint64_t count) {
          const std::uint64_t end = chunk.begin + chunk.count < count ? chunk.begin + chunk.count : count;
          return chunk.begin < end ? end - chunk.begin : 0;
        };
        forward(exchange_, partner, data.at({giveBegin + chunk.begin, cut(giveCount)}));
        const device::Piece kept = data.at({keepBegin + chunk.begin, cut(keepCount)});
        reduceInto(partner, kept, kept, step);
      });
    }
  }

  // The reverse: ranges double until each member has everything.
  template <class Place>
  KOLO_DEVICE void unfold(const device::Elements& data, Place place) {
    eachStep([&](int bit, int partner) {
      const int have = member_ & ~(bit - 1), want = have ^ bit;
      const auto piece = [&](int first) { return data.at({place(first), place(first + bit) - place(first)}); };
      sendAndRecv(
          exchange_, partner, 1, [&](int) { return piece(have); }, partner, 1, [&](int) { return piece(want); });
    });
  }

  // Blocks of ranks [outFirst, outLast) out, [inFirst, inLast) in; skipOwn: but for those of the even partner, which
  // has its own already.
  KOLO_DEVICE_CALL void exchangeBlocks(int peer, int outFirst, int outLast, int inFirst, int inLast, bool skipOwn) {
    const int even = work_.rank < peer ? work_.rank : peer;
    const auto piece = [&](int rank) {
      const device::Range block = work_.recvLayout.block(rank);
      return work_.output({block.begin, skipOwn && rank == even ? 0 : block.count});
    };
    sendAndRecv(
        exchange_, peer, outLast - outFirst, [&](int i) { return piece(outFirst + i); }, peer, inLast - inFirst,
        [&](int i) { return piece(inFirst + i); });
  }

  device::Exchange<Team>& exchange_;
  const device::Work& work_;
  Folding folding_;
  int member_;
};

template <class Team>
KOLO_DEVICE_CALL void runRecursive(device::Exchange<Team>& exchange, bool met) {
  using device::Collective;
  Recursive<Team> recursive(exchange);
  const device::Work& work = exchange.work();
  if (work.signature.collective == Collective::kBarrier) {
    recursive.barrier();
    return;
  }
  const auto eachPartner = [&](auto visit) { recursive.eachPartner(visit); };
  runWith(exchange, met, eachPartner, [&] {
    switch (work.signature.collective) {
      case Collective::kAllReduce:
        if (exchange.bytesOf(work.sendLayout.block(0).count) <= kDoublingBytes) {
          recursive.allReduceByDoubling();
        } else {
          recursive.allReduceByHalving();
        }
        break;
      case Collective::kAllGather: recursive.allGather(); break;
      case Collective::kReduceScatter: recursive.reduceScatter(); break;
      default: break;
    }
  });
}

}  // namespace kolo::algorithms
