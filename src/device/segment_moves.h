// Copies and folds whose operands may be logical addresses (device/segments.h): cut into runs, each of which is one
// copy or fold of memory. Called by folds.h and peer_memory.h alone.
//
// A fold takes runs where they are, if their elements follow each other in the datatype in which they are transferred.
// Others pass through an *edge*, a piece of memory that stays in a cache: they are brought there before the fold, or
// put from there to where they belong behind it. So a cast, and an array with strides, cost no pass over memory.
#pragma once

#include <cstdint>

#include "device/host_device.h"
#include "device/reduce_args.h"
#include "device/reducers.h"
#include "device/row_move.h"
#include "device/segments.h"
#include "device/shares.h"
#include "device/work.h"

namespace kolo::device {

// A fold has one operand in the send buffer, one in the receive buffer that it reads, and one that it writes.
inline constexpr int kEdges = 3;
inline constexpr std::uint64_t kEdgeBytes = 8192;

template <class Team>
class SegmentMoves {
 public:
  KOLO_DEVICE SegmentMoves(Team& team, const Work& work) : team_(team), work_(work), all_(*work.segments) {}

  KOLO_DEVICE void copy(unsigned char* dst, const unsigned char* src, std::uint64_t bytes, bool streaming) {
    copy(all_, dst, all_, src, bytes, streaming);
  }
  // Copies between two lists: each logical address is one of the list before it.
  KOLO_DEVICE_CALL void copy(const Segments& ofDst, unsigned char* dst, const Segments& ofSrc, const unsigned char* src,
                             std::uint64_t bytes, bool streaming) {
    std::uint32_t lastTo = 0, lastFrom = 0;
    KOLO_ROLLED
    while (bytes != 0) {
      Run to = runAt(ofDst, dst, bytes, lastTo), from = runAt(ofSrc, src, bytes, lastFrom);
      matchRows(to, from);
      if (to.data != nullptr && from.data != nullptr) moveRun(to, from, streaming);
      dst += to.bytes;
      src += to.bytes;
      bytes -= to.bytes;
    }
  }

  // Between this rank's memory and `place`, a logical address of a peer whose list can be loaded from and stored to.
  // All threads call; no barrier.
  KOLO_DEVICE void load(Piece dst, const Segments& theirs, const unsigned char* place) {
    copy(all_, dst.data, theirs, place, dst.bytes, work_.streaming);
  }
  KOLO_DEVICE void store(const Segments& theirs, unsigned char* place, ConstPiece src) {
    copy(theirs, place, all_, src.data, src.bytes, work_.streaming);
  }

  // Fills `dst` from what is at `place`, a logical address of the peer's. All threads call; ends with a barrier.
  KOLO_DEVICE_CALL void take(Piece dst, const PeerSegments& theirs, const unsigned char* place) {
    std::uint32_t last = 0;
    KOLO_ROLLED
    for (std::uint64_t at = 0; at < dst.bytes && !team_.failed();) {
      Run to = runAt(all_, dst.data + at, dst.bytes - at, last);
      if (!to.isPlain()) to.cut(kEdgeBytes);
      if (to.data != nullptr) takeRun(to, theirs, place + at);
      at += to.bytes;
    }
    team_.sync();
  }
  // Copies to there. All threads call; ends with a barrier.
  KOLO_DEVICE_CALL void put(const PeerSegments& theirs, const unsigned char* place, ConstPiece src) {
    std::uint32_t last = 0;
    KOLO_ROLLED
    for (std::uint64_t at = 0; at < src.bytes && !team_.failed();) {
      Run from = runAt(all_, src.data + at, src.bytes - at, last);
      if (!from.isPlain()) from.cut(kEdgeBytes);
      if (from.data != nullptr) putRun(theirs, place + at, from);
      at += from.bytes;
    }
    team_.sync();
  }

  // As fold() of folds.h. The operands have the same segments, but for where these lie.
  KOLO_DEVICE_CALL void fold(void* const* outputs, int outputCount, const void* const* inputs, int inputCount, int own,
                             std::uint64_t bytes, bool last, bool streaming, const FoldParts& parts) {
    std::uint32_t found = 0;
    KOLO_ROLLED
    for (std::uint64_t at = 0, done = 0; at < bytes; at += done) {
      done =
          foldRun(Fold{outputs, outputCount, inputs, inputCount, own, last, streaming, parts}, at, bytes - at, found);
    }
  }

 private:
  struct Fold {
    void* const* outputs;
    int outputCount;
    const void* const* inputs;
    int inputCount;
    int own;
    bool last;
    bool streaming;
    const FoldParts& parts;
  };

  KOLO_DEVICE static const unsigned char* plus(const void* address, std::uint64_t bytes) {
    return static_cast<const unsigned char*>(address) + bytes;
  }

  // Both get the same length: one row of each, or rows of the same length, or rows and what is in a row.
  KOLO_DEVICE static void matchRows(Run& a, Run& b) {
    for (int i = 0; i < 2; ++i) {
      if (!a.isRow() && !b.isRow() && a.rowBytes != b.rowBytes) {
        if (a.rowBytes > b.rowBytes) a.bytes = a.rowBytes;
        else b.bytes = b.rowBytes;
      }
      const std::uint64_t common = a.bytes < b.bytes ? a.bytes : b.bytes;
      a.cut(common);
      b.cut(common);
    }
    const std::uint64_t common = a.bytes < b.bytes ? a.bytes : b.bytes;
    a.cut(common);
    b.cut(common);
  }

  // What is transferred from one run to the other, of the same length.
  KOLO_DEVICE void move(const Run& to, const Run& from, bool streaming) {
    const bool areAlike = to.isRow() == from.isRow() && (to.isRow() || to.stride == from.stride);
    if (to.data == from.data && areAlike && !isCast(to) && !isCast(from)) return;  // peers may be reading it
    if (!isCast(to) && !isCast(from) && to.isRow() && from.isRow())
      return team_.copy(to.data, from.data, to.bytes, streaming);
    const Run& rows =
        !to.isRow() || (from.isRow() && to.segment != nullptr) ? to : from;  // with the rows, or a segment
    team_.moveRows({.dst = to.data,
                    .src = from.data,
                    .rows = rows.bytes / rows.rowBytes,
                    .rowElements = rows.rowBytes / unitOf(to, from),
                    .dstStride = strideOf(to, rows),
                    .srcStride = strideOf(from, rows),
                    .dstBytes = unitIn(to, from),
                    .srcBytes = unitIn(from, to),
                    .dstDatatype = isCast(to) ? to.segment->datatype : transferTypeOf(to, from),
                    .srcDatatype = isCast(from) ? from.segment->datatype : transferTypeOf(to, from),
                    .factor = (isCast(from) ? from.segment->scale : 1) / (isCast(to) ? to.segment->scale : 1)});
  }
  KOLO_DEVICE void takeRun(const Run& to, const PeerSegments& theirs, const unsigned char* place) {
    if (to.isPlain()) {
      team_.readList(theirs, to.data, place, to.bytes);
      return team_.sync();  // all know alike whether that has failed
    }
    Run edge;
    edge.data = edgeOf(0);
    edge.bytes = edge.rowBytes = to.bytes;
    team_.readList(theirs, edge.data, place, to.bytes);
    team_.sync();
    if (!team_.failed()) move(to, edge, false);
    team_.sync();
  }
  KOLO_DEVICE void putRun(const PeerSegments& theirs, const unsigned char* place, const Run& from) {
    if (from.isPlain()) {
      team_.writeList(theirs, place, from.data, from.bytes);
      return team_.sync();  // as above
    }
    Run edge;
    edge.data = edgeOf(0);
    edge.bytes = edge.rowBytes = from.bytes;
    move(edge, from, false);
    team_.sync();
    if (!team_.failed()) team_.writeList(theirs, place, edge.data, from.bytes);
    team_.sync();
  }
  // What is converted on the way out and on the way in: first into the datatype of the transfer, as from another rank.
  // In one call of move(): its place on a thread's stack is local memory of the whole device.
  KOLO_DEVICE void moveRun(Run& to, Run& from, bool streaming) {
    const bool isTwice = isCast(to) && isCast(from);
    Run edge;
    if (isTwice) {
      to.cut(kEdgeBytes);
      from.cut(kEdgeBytes);
      matchRows(to, from);
      edge.data = edgeOf(0);
      edge.bytes = edge.rowBytes = to.bytes;
    }
    KOLO_ROLLED
    for (int moves = isTwice ? 2 : 1; moves > 0; --moves) {
      move(moves == 2 ? edge : to, isTwice && moves == 1 ? edge : from, streaming && moves == 1);
      if (isTwice) team_.sync();
    }
  }
  KOLO_DEVICE static bool isCast(const Run& run) { return run.segment != nullptr && run.segment->isCast(); }
  KOLO_DEVICE static std::uint8_t transferTypeOf(const Run& a, const Run& b) {
    return a.segment != nullptr ? a.segment->transferType : b.segment->transferType;
  }
  // Bytes of an element in the transfer.
  KOLO_DEVICE static std::uint8_t unitOf(const Run& a, const Run& b) {
    return a.segment != nullptr ? a.segment->transferElementBytes : b.segment->transferElementBytes;
  }
  // And in a run's memory.
  KOLO_DEVICE static std::uint8_t unitIn(const Run& run, const Run& other) {
    return run.segment != nullptr ? run.segment->elementBytes : other.segment->transferElementBytes;
  }
  // From row to row of `rows`, in a run that has such rows, or these in one row.
  KOLO_DEVICE static std::int64_t strideOf(const Run& run, const Run& rows) {
    if (!run.isRow()) return run.stride;
    const std::uint64_t elements = rows.rowBytes / rows.segment->transferElementBytes;
    return static_cast<std::int64_t>(
        elements * (run.segment != nullptr ? run.segment->elementBytes : rows.segment->transferElementBytes));
  }

  // Of a part of a fold, in one segment: where each operand is in memory as it is transferred, or the edge to which it
  // is brought.
  struct Places {
    const void** inputs;  // [] of FoldLists, by the leader
    void** outputs;
    std::uint64_t bytes;
    const Segment* segment;  // null: a gap between two
  };

  // The part of a fold that begins at `at`; gives its length. found: as runAt() says, of all operands.
  KOLO_DEVICE std::uint64_t foldRun(const Fold& fold, std::uint64_t at, std::uint64_t most, std::uint32_t& found) {
    FoldLists& lists = team_.lists();
    Places places{lists.partInputs, lists.partOutputs, most, nullptr};
    int edges = 0;
    const auto find = [&](const void* operand) {
      unsigned char* const address = place(plus(operand, at), places, found);
      return address != nullptr ? address : edgeOf(edges++);
    };
    team_.sync();  // the last part's fold has ended
    for (int i = 0; i < fold.inputCount; ++i) {
      unsigned char* const input = find(fold.inputs[i]);
      if (team_.leader()) places.inputs[i] = input;
    }
    const int firstOut = edges;
    for (int i = 0; i < fold.outputCount; ++i) {
      unsigned char* const output = find(fold.outputs[i]);
      if (team_.leader()) places.outputs[i] = output;
    }
    team_.sync();
    if (places.segment != nullptr) foldInSegment(fold, at, places, firstOut, edges);
    return places.bytes;
  }
  // Of one operand; the part becomes as short as what there is of it in one place, or fits an edge.
  KOLO_DEVICE unsigned char* place(const unsigned char* address, Places& places, std::uint32_t& found) const {
    const Run run = runAt(all_, address, places.bytes, found);
    if (run.segment != nullptr) places.segment = run.segment;
    const bool isInPlace =
        run.segment == nullptr || (!run.segment->isCast() && (run.isRow() || run.rowBytes >= kEdgeBytes));
    const std::uint64_t bytes = isInPlace ? run.rowBytes : leftOf(run, address, kEdgeBytes);
    if (bytes < places.bytes) places.bytes = bytes;
    return isInPlace ? run.data : nullptr;
  }
  KOLO_DEVICE static std::uint64_t leftOf(const Run& run, const void* address, std::uint64_t most) {
    const std::uint64_t left = run.segment->begin + run.segment->bytes - byteOf(address);
    return left < most ? left : most;
  }

  // What is not in place is brought to edges, and from there. edges: how many operands that are; first come inputs.
  KOLO_DEVICE void foldInSegment(const Fold& fold, std::uint64_t at, const Places& places, int firstOut, int edges) {
    for (int i = 0, edge = 0; i < fold.inputCount && edge < firstOut; ++i) {
      if (places.inputs[i] != edgeOf(edge)) continue;
      copy(edgeOf(edge++), plus(fold.inputs[i], at), places.bytes, false);
    }
    if (edges != 0) team_.sync();
    reduce(fold, places, edges != firstOut);
    if (edges == 0) return;
    team_.sync();
    if (edges == firstOut) return;
    for (int i = 0; i < fold.outputCount; ++i) {
      auto* const address = const_cast<unsigned char*>(plus(fold.outputs[i], at));
      const auto* const from = static_cast<const unsigned char*>(places.outputs[i]);
      if (isEdge(from)) copy(address, from, places.bytes, fold.streaming);
    }
    team_.sync();
  }
  KOLO_DEVICE bool isEdge(const unsigned char* place) const { return place >= edgeOf(0) && place < edgeOf(kEdges); }
  KOLO_DEVICE unsigned char* edgeOf(int number) const {
    return work_.channel.scratch + all_.edgesAt + static_cast<std::uint64_t>(number) * kEdgeBytes;
  }
  KOLO_DEVICE void reduce(const Fold& fold, const Places& places, bool isAtEdge) {
    const auto datatype = static_cast<koloDataType_t>(places.segment->transferType);
    // Beside bools, which a rank alone folds with themselves (algorithms/alone.h), other items stay as they are.
    const bool isAsItIs = work_.ranks == 1 && work_.fold.op == ReduceOp::kSum && datatype != koloBool;
    ReduceArgs args{.dst = places.outputs,
                    .dstCount = fold.outputCount,
                    .src = places.inputs,
                    .srcCount = isAsItIs ? 1 : fold.inputCount,
                    .count = places.bytes / places.segment->transferElementBytes,
                    .scale = work_.fold.scaled && fold.own >= 0 ? work_.fold.scalar : nullptr,
                    .scaledSource = work_.fold.scaled ? fold.own : -1,
                    .divisor = fold.last ? work_.fold.divisor : 1,
                    .streaming = fold.streaming && !isAtEdge};
    if (averagesInShares(datatype)) foldShares(work_, fold.last, fold.parts, args);
    team_.reduceAs(datatype, args);
  }

  Team& team_;
  const Work& work_;
  const Segments& all_;
};

}  // namespace kolo::device
