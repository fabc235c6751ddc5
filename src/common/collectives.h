// One row for each collective says what it does (D14). The library, kolo-perf and their texts follow from the rows.
// algorithms/catalogue.h says how algorithms do it.
//
// Thread safety: constants and pure functions.
#pragma once

#include <kolo/kolo.h>

#include <iterator>

namespace kolo {

struct CollectiveRow {
  // Blocks in one of the buffers: none, one, or one for each rank.
  enum class Blocks : unsigned char { kNone, kOne, kEach };
  // Which ranks send to which. In a collective with a root, only the root uses the buffer that it gives from or takes
  // into.
  enum class Flow : unsigned char { kAmongAll, kFromRoot, kToRoot, kPair };

  koloCollective_t collective;
  const char* name;
  Blocks sends, receives;
  Flow flow;
  bool folds = false;  // what is received is folded from the blocks of all ranks

  constexpr bool isRooted() const { return flow == Flow::kFromRoot || flow == Flow::kToRoot; }
  constexpr bool moves() const { return sends != Blocks::kNone; }
  // One buffer holds a block for each rank: a form with counts exists.
  constexpr bool isDivided() const { return sends == Blocks::kEach || receives == Blocks::kEach; }
  // Every rank gives something to every other, and takes something.
  constexpr bool isExchange() const { return flow == Flow::kAmongAll && moves(); }
  // The buffers may overlap in one position only. Where one of them holds the blocks of all ranks, the other is this
  // rank's own block in it (the root's, if there is one); else both are the same. vector: in the form with counts.
  constexpr const char* inPlace(bool vector) const {
    if (sends == receives) return "sendbuf == recvbuf";
    if (receives == Blocks::kEach && vector)
      return isRooted() ? "sendbuf == recvbuf + displs[root]" : "sendbuf == recvbuf + displs[rank]";
    if (receives == Blocks::kEach)
      return isRooted() ? "sendbuf == recvbuf + root * sendcount" : "sendbuf == recvbuf + rank * sendcount";
    if (vector) return isRooted() ? "recvbuf == sendbuf + displs[root]" : "recvbuf == sendbuf + displs[rank]";
    return isRooted() ? "recvbuf == sendbuf + root * recvcount" : "recvbuf == sendbuf + rank * recvcount";
  }
};

namespace rows {
using enum CollectiveRow::Blocks;
using enum CollectiveRow::Flow;
inline constexpr CollectiveRow kCollectives[] = {
    {koloCollectiveAllReduce, "all_reduce", kOne, kOne, kAmongAll, true},
    {koloCollectiveReduce, "reduce", kOne, kOne, kToRoot, true},
    {koloCollectiveBroadcast, "broadcast", kOne, kOne, kFromRoot},
    {koloCollectiveAllGather, "all_gather", kOne, kEach, kAmongAll},
    {koloCollectiveReduceScatter, "reduce_scatter", kEach, kOne, kAmongAll, true},
    {koloCollectiveAllToAll, "all_to_all", kEach, kEach, kAmongAll},
    {koloCollectiveGather, "gather", kOne, kEach, kToRoot},
    {koloCollectiveScatter, "scatter", kEach, kOne, kFromRoot},
    {koloCollectiveBarrier, "barrier", kNone, kNone, kAmongAll},
    {koloCollectiveSendRecv, "send_recv", kOne, kOne, kPair},
};
}  // namespace rows
using rows::kCollectives;

// REQUIRES: has a row.
constexpr const CollectiveRow& rowOf(koloCollective_t collective) { return kCollectives[collective]; }

constexpr bool areInOrder() {
  for (int i = 0; i < koloNumCollectives; ++i) {
    if (kCollectives[i].collective != i) return false;
  }
  return std::size(kCollectives) == koloNumCollectives;
}
static_assert(areInOrder(), "a row stands at the collective's number");

}  // namespace kolo
