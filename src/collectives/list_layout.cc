// From a list to the segments of its logical buffers.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>

#include "base/datatypes.h"
#include "collectives/list.h"
#include "device/partition.h"

namespace kolo::collectives {
namespace {

using device::Buffer;
using device::Segment;
using device::Strides;

// On average. To read or write a run of a peer costs a system call, as much as copying a quarter of this.
constexpr std::uint64_t kLongRun = 16 << 10;

const Side& sideOf(const Item& item, Buffer buffer) { return buffer == Buffer::kSend ? item.send : item.recv; }

// The dimensions of an array, without those that have one element, and with those in one that follow each other in
// memory.
struct Merged {
  int ndim = 0;
  std::uint64_t shape[device::kMostDimensions] = {};
  std::int64_t strides[device::kMostDimensions] = {};  // elements

  void add(std::uint64_t length, std::int64_t stride) {
    if (length == 1) return;
    if (ndim != 0 && strides[ndim - 1] == static_cast<std::int64_t>(length) * stride) {
      shape[ndim - 1] *= length;
      strides[ndim - 1] = stride;
    } else {
      shape[ndim] = length;
      strides[ndim++] = stride;
    }
  }
};

class Layouter {
 public:
  Layouter(const List& list, int parts, bool makesSegments)
      : list_(list), parts_(parts), makesSegments_(makesSegments) {}

  // The segments of a buffer, behind those that there are.
  Blocks add(Buffer buffer) {
    Blocks blocks;
    for (std::size_t block = 0; block < blockCount(buffer); ++block) {
      const std::uint64_t begin = blocks.bytes;
      for (const Item& item : list_.items) {
        const device::Range elements = elementsOf(item, buffer, block);
        if (elements.count == 0) continue;
        if (makesSegments_ && sideOf(item, buffer).data != nullptr)
          addSegment(item, buffer, block, elements, blocks.bytes);
        blocks.bytes = device::inGrains(blocks.bytes + elements.count * elementBytes(item.transferType));
      }
      const std::uint64_t bytes = blocks.bytes - begin;
      blocks.areAlike = blocks.areAlike && (block == 0 || bytes == blocks.counts.front());
      blocks.longest = std::max(blocks.longest, bytes);
      blocks.counts.push_back(bytes);
      blocks.displs.push_back(begin);
    }
    return blocks;
  }

  std::size_t segmentCount() const { return segments_.size(); }

  // Of the segments from number `first` on.
  bool areLongRuns(std::size_t first) const {
    const std::span added(segments_.begin() + static_cast<std::ptrdiff_t>(first), segments_.end());
    std::uint64_t bytes = 0;
    for (const Segment& segment : added) {
      if (segment.strides != 0 || segment.isCast()) return false;
      bytes += segment.bytes;
    }
    return bytes >= added.size() * kLongRun;
  }

  std::vector<std::uint64_t> memory(std::size_t sends, device::Segments head) const {
    head.sends = static_cast<std::uint32_t>(sends);
    head.recvs = static_cast<std::uint32_t>(segments_.size() - sends);
    const std::size_t forSegments = segments_.size() * sizeof(Segment), forStrides = strides_.size() * sizeof(Strides);
    head.bytes = sizeof head + forSegments + forStrides;
    std::vector<std::uint64_t> memory(head.bytes / sizeof(std::uint64_t));
    auto* const at = reinterpret_cast<unsigned char*>(memory.data());
    std::memcpy(at, &head, sizeof head);
    if (forSegments != 0) std::memcpy(at + sizeof head, segments_.data(), forSegments);
    if (forStrides != 0) std::memcpy(at + sizeof head + forSegments, strides_.data(), forStrides);
    return memory;
  }

 private:
  std::size_t blockCount(Buffer buffer) const {
    if (parts_ > 1) return static_cast<std::size_t>(parts_);
    return list_.items.empty() ? 1 : sideOf(list_.items.front(), buffer).extents.size();
  }
  // Of an item, in a block: in row-major order of the array that the item has there.
  device::Range elementsOf(const Item& item, Buffer buffer, std::size_t block) const {
    const Side& side = sideOf(item, buffer);
    if (parts_ == 1) return {0, side.elementsOf(block)};
    return device::factoredPart(side.elementsOf(0), parts_, static_cast<int>(block));
  }

  void addSegment(const Item& item, Buffer buffer, std::size_t block, const device::Range& elements,
                  std::uint64_t begin) {
    const Side& side = sideOf(item, buffer);
    const std::size_t part = parts_ == 1 ? block : 0;
    const auto size = static_cast<std::int64_t>(elementBytes(side.datatype));
    std::int64_t before = 0;  // elements along the axis
    for (std::size_t i = 0; i < part; ++i) before += static_cast<std::int64_t>(side.extents[i]);
    Merged merged;
    for (int d = 0; d < side.ndim; ++d)
      merged.add(d == side.axis ? side.extents[part] : side.shape[d], side.strides[d]);
    Segment segment;
    segment.begin = begin;
    segment.bytes = elements.count * elementBytes(item.transferType);
    segment.data = side.data + before * side.strides[side.axis] * size;
    segment.scale = item.scale;
    segment.datatype = static_cast<std::uint8_t>(side.datatype);
    segment.transferType = static_cast<std::uint8_t>(item.transferType);
    segment.elementBytes = static_cast<std::uint8_t>(size);
    segment.transferElementBytes = static_cast<std::uint8_t>(elementBytes(item.transferType));
    if (merged.ndim == 0 || (merged.ndim == 1 && merged.strides[0] == 1)) {
      segment.data += static_cast<std::int64_t>(elements.begin) * size;
    } else {
      segment.first = elements.begin;
      segment.strides = stridesOf(merged, size);
    }
    segments_.push_back(segment);
  }

  // Its number, + 1. Blocks of an item mostly have the same.
  std::uint32_t stridesOf(const Merged& merged, std::int64_t size) {
    Strides strides;
    const bool hasRows = merged.strides[merged.ndim - 1] == 1;
    strides.rowElements = hasRows ? merged.shape[merged.ndim - 1] : 1;
    strides.ndim = merged.ndim - (hasRows ? 1 : 0);
    for (int d = 0; d < strides.ndim; ++d) {
      strides.shape[d] = merged.shape[d];
      strides.strides[d] = merged.strides[d] * size;
    }
    if (strides_.empty() || std::memcmp(&strides_.back(), &strides, sizeof strides) != 0) strides_.push_back(strides);
    return static_cast<std::uint32_t>(strides_.size());
  }

  const List& list_;
  const int parts_;
  const bool makesSegments_;
  std::vector<Segment> segments_;
  std::vector<Strides> strides_;
};

}  // namespace

std::uint64_t Side::elementsOf(std::size_t block) const {
  std::uint64_t elements = 1;
  for (int d = 0; d < ndim; ++d) elements *= d == axis ? extents[block] : shape[d];
  return elements;
}

std::pair<const unsigned char*, const unsigned char*> Side::place() const {
  if (data == nullptr) return {nullptr, nullptr};
  std::int64_t low = 0, high = 1;
  for (int d = 0; d < ndim; ++d) {
    std::uint64_t length = d == axis ? 0 : shape[d];
    for (std::size_t i = 0; d == axis && i < extents.size(); ++i) length += extents[i];
    if (length == 0) return {data, data};
    const std::int64_t reach = (static_cast<std::int64_t>(length) - 1) * strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto size = static_cast<std::int64_t>(elementBytes(datatype));
  return {data + low * size, data + high * size};
}

Blocks blocksOf(const List& list, Buffer buffer) { return Layouter(list, 1, false).add(buffer); }

LaidOut layOut(const List& list, int parts, std::uint64_t edgesAt) {
  LaidOut result;
  Layouter layouter(list, parts, true);
  result.send = layouter.add(Buffer::kSend);
  result.sendHasLongRuns = layouter.areLongRuns(0);
  const std::size_t sends = layouter.segmentCount();
  result.recv = layouter.add(Buffer::kRecv);
  result.recvHasLongRuns = layouter.areLongRuns(sends);
  device::Segments head;
  head.edgesAt = edgesAt;
  head.recvBytes = result.recv.bytes;
  head.isInPlace = list.isInPlace ? 1 : 0;
  static std::atomic<std::uint64_t> lists{0};
  head.id = lists.fetch_add(1, std::memory_order_relaxed) + 1;
  result.memory = layouter.memory(sends, head);
  return result;
}

}  // namespace kolo::collectives
