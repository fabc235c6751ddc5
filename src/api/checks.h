// The checks of the collectives' arguments: each says what was wrong and what was expected.
#pragma once

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/operation.h"

namespace kolo::api {

namespace refusal {
// The words, off the hot path.
Status ranks(int ranks);
Status datatype(koloDataType_t datatype);
Status count(std::size_t count, koloDataType_t datatype, std::uint64_t blocks);
Status root(int root, int ranks);
Status peer(int peer, int ranks, bool anyAllowed);
Status tag(int tag, bool anyAllowed);
Status reduction(koloRedOp_t op, koloDataType_t datatype, comm::Communicator& communicator);
}  // namespace refusal

inline Status checkRanks(int ranks) { return ranks >= 1 && ranks <= KOLO_MAX_RANKS ? Status() : refusal::ranks(ranks); }
inline Status checkDatatype(koloDataType_t datatype) {
  return datatype >= 0 && datatype < koloNumDatatypes ? Status() : refusal::datatype(datatype);
}
// bytes of `blocks` blocks of count elements fit in memory at all. REQUIRES: a known datatype.
inline Status checkCount(std::size_t count, koloDataType_t datatype, std::uint64_t blocks) {
  // Short of 2^40 elements no product overflows, whatever the datatype (16 bytes) and the ranks (2^17).
  if (count < std::size_t{1} << 40) return {};
  return refusal::count(count, datatype, blocks);
}
inline Status checkRoot(int root, int ranks) {
  return root >= 0 && root < ranks ? Status() : refusal::root(root, ranks);
}
inline Status checkPeer(int peer, int ranks, bool anyAllowed) {
  const bool known = (peer >= 0 && peer < ranks) || (anyAllowed && peer == KOLO_ANY_SOURCE);
  return known ? Status() : refusal::peer(peer, ranks, anyAllowed);
}
inline Status checkTag(int tag, bool anyAllowed) {
  return tag >= 0 || (anyAllowed && tag == KOLO_ANY_TAG) ? Status() : refusal::tag(tag, anyAllowed);
}
// The reduction exists, on this communicator, and is defined for the datatype. REQUIRES: a known datatype.
inline Status checkReduction(koloRedOp_t op, koloDataType_t datatype, comm::Communicator& communicator) {
  // Sums are defined for every datatype.
  return op == koloSum ? Status() : refusal::reduction(op, datatype, communicator);
}

// A range of a caller's memory.
struct Extent {
  const char* name;
  const void* data;
  std::uint64_t bytes;
};
namespace refusal {
Status pointer(const Extent& extent);
Status overlap(const Extent& send, const Extent& recv, const char* rule);
}  // namespace refusal

inline Status checkPointer(const Extent& extent) {
  return extent.data != nullptr || extent.bytes == 0 ? Status() : refusal::pointer(extent);
}
// Apart, or in the one position that is called in place.
inline Status checkOverlap(const Extent& send, const Extent& recv, bool inPlace, const char* rule) {
  const auto begin = [](const Extent& extent) { return reinterpret_cast<std::uintptr_t>(extent.data); };
  const bool apart = begin(send) + send.bytes <= begin(recv) || begin(recv) + recv.bytes <= begin(send);
  if (apart || inPlace || send.bytes == 0 || recv.bytes == 0) return {};
  return refusal::overlap(send, recv, rule);
}

}  // namespace kolo::api
