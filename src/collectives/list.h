// Collectives over lists of items (D13): tensors that lie apart, of several datatypes, and arrays with strides, in one
// operation. An item is checked and put into one form here (List); laid out for the executors, it is device::Segments.
//
// A block of the operation, as algorithms know it, consists of every item's part for that block, one behind the other.
//
// Thread safety: lists do not change once made.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/terms.h"
#include "device/segments.h"
#include "device/work.h"

namespace kolo::collectives {

// One buffer of an item: blocks in a row along an axis of an array. Shapes and strides are in elements.
struct Side {
  unsigned char* data = nullptr;
  koloDataType_t datatype = koloInt8;
  int ndim = 1;
  int axis = 0;
  std::uint64_t shape[device::kMostDimensions] = {};  // of a block; along the axis `extents` say it
  std::int64_t strides[device::kMostDimensions] = {};
  std::vector<std::uint64_t> extents;  // of each block along the axis: one, or one for each rank

  bool operator==(const Side&) const = default;
  std::uint64_t elementsOf(std::size_t block) const;  // which is 0 where there is one block
  // From its first byte in memory to behind the last; empty where it has none.
  std::pair<const unsigned char*, const unsigned char*> place() const;
};

struct Item {
  Side send, recv;  // data null: this rank has no such buffer
  koloDataType_t transferType = koloInt8;
  float scale = 1;
};

// What all ranks say alike of an array that is cut along one axis before, and along another one afterwards.
struct Recut {
  int from = 0, to = 0;                               // the axes
  std::vector<std::uint64_t> fromLengths, toLengths;  // of each rank's part; empty: of no rank but this one known
};

using Words = std::vector<std::uint64_t>;

struct List : Terms {
  std::vector<Item> items;
  Words said;  // all that its caller said (list_calls.h)
  device::Collective collective = device::Collective::kCount;
  int root = 0;
  std::optional<Recut> recut;  // of one item, instead of what its blocks say
  bool isLocal = false;        // each rank copies its items by itself, and the ranks exchange nothing
  std::uint64_t digest = 0;    // of what has to be the same on all ranks
  // Bytes of the longest block of any pair of ranks, and whether all are equally long: the same on all ranks.
  std::uint64_t longest = 0;
  bool areAlike = true;
  bool isInPlace = false;    // some of what this rank gives lies where it receives
  bool castsOutput = false;  // some item is received in another datatype than it is transferred in; the same on all

  // What has to be the same on all ranks, in words.
  std::size_t parts() const override { return items.size(); }
  std::vector<Term> of(std::size_t item) const override;
};

// What lists take that are remembered somewhere. With more, some are forgotten.
inline constexpr std::uint64_t kMostKeptBytes = std::uint64_t{256} << 20;
std::uint64_t memoryOf(const List& list);

// The blocks of one buffer of a list, in bytes of the logical buffer.
struct Blocks {
  std::vector<std::uint64_t> counts, displs;
  std::uint64_t bytes = 0;    // of all
  std::uint64_t longest = 0;  // block
  bool areAlike = true;       // of those of this rank
};

// A list laid out: what device::Work points to.
struct LaidOut {
  // Whether a buffer is in runs of memory that are long enough, with nothing to convert, to be read or written by peers
  // one by one.
  bool sendHasLongRuns = true, recvHasLongRuns = true;
  Blocks send, recv;
  std::vector<std::uint64_t> memory;  // a device::Segments

  const device::Segments* segments() const { return reinterpret_cast<const device::Segments*>(memory.data()); }
};

// Without the segments.
Blocks blocksOf(const List& list, device::Buffer buffer);

// parts: 1, or the number of ranks: each item is cut into so many, and part p of the buffers consists of all items'
// parts p, for the ring all-reduce, whose folds begin with another rank in each part. edgesAt: as in device::Segments.
LaidOut layOut(const List& list, int parts, std::uint64_t edgesAt);

// ---- making lists

// The operation of an item, and who calls it.
struct ListCall {
  device::Collective collective;
  int rank;
  int ranks;
  int root;
  koloRedOp_t op = koloSum;
};
struct ItemsCall {
  const koloItem_t* items;
  std::size_t count;
};
// An all-to-all of one item along two axes: makes blocks of its send array along splitAxis, and gets those of its
// receive array along concatAxis. splits, concats: lengths along these axes for each rank; NULL: alike.
struct AxisCall {
  const koloItem_t* item;
  int splitAxis, concatAxis;
  const std::size_t *splits, *concats;
};
// Checks the items and puts them into the one form. An error names the item.
Result<std::shared_ptr<List>> makeList(const ListCall& call, const ItemsCall& given);
Result<std::shared_ptr<List>> makeList(const ListCall& call, const AxisCall& given);
// An all-to-all of one item that is cut along an axis before and afterwards, in other lengths: those of each rank.
Result<std::shared_ptr<List>> makeRecut(const ListCall& call, const koloItem_t& item, int axis,
                                        const std::vector<std::size_t>& from, const std::vector<std::size_t>& to);
Status refuseNoItem();
// Items that each rank copies by itself, as a rank alone gathers them.
Result<std::shared_ptr<List>> makeLocal(const koloItem_t* items, std::size_t count);
// What the ranks have to say alike of a list, as a digest, which the header of every operation carries. In words it is
// List::of(). A pure function (list_terms.cc).
std::uint64_t digestOf(const List& list);

}  // namespace kolo::collectives
