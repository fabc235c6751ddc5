// Buffers that are lists of segments: tensors that lie apart, of several datatypes, and arrays with strides.
//
// Such a buffer is a logical buffer: the bytes that it would have if its segments were packed one behind the other,
// each from a multiple of kSegmentGrain on, in the datatypes in which they are transferred. Algorithms speak of it as
// of any buffer, by an address and a number of bytes; its addresses are logical ones, which no memory has. Data goes
// through the copies and folds of device/folds.h; data in a peer's buffer goes through device/peer_memory.h. No
// algorithm asks where a logical byte is (device/segment_moves.h), so that it has one text for both kinds of buffer.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

// Segments begin at multiples of these bytes in the logical buffer. Data is cut at such multiples, so that no element
// is.
inline constexpr std::uint64_t kSegmentGrain = 64;
// The next such multiple. Between the end of a segment and the next one is a gap, of which nothing is transferred.
KOLO_DEVICE constexpr std::uint64_t inGrains(std::uint64_t bytes) {
  return (bytes + kSegmentGrain - 1) / kSegmentGrain * kSegmentGrain;
}
inline constexpr int kMostDimensions = 8;

// Of a table of segments that peers are given.
inline constexpr std::uint64_t kMostListBytes = std::uint64_t{1} << 30;

// A segment whose elements do not follow each other in memory: rows of elements that do, in an array of rows.
struct Strides {
  std::uint64_t rowElements = 1;
  std::int64_t ndim = 0;  // of the array of rows, in row-major order
  std::uint64_t shape[kMostDimensions] = {};
  std::int64_t strides[kMostDimensions] = {};  // bytes of memory
};

struct Segment {
  std::uint64_t begin = 0;        // in the logical buffer; a multiple of kSegmentGrain
  std::uint64_t bytes = 0;        // there; not 0
  unsigned char* data = nullptr;  // its first element in memory
  std::uint64_t first = 0;        // with strides: `data` is that of element 0, and the segment begins with this one
  float scale = 1;                // elements are transferred multiplied by it, if transferred in another datatype
  std::uint32_t strides = 0;      // which of the buffer's Strides, + 1; 0: its elements follow each other
  std::uint8_t datatype = 0;      // in memory
  std::uint8_t transferType = 0;  // in the logical buffer
  std::uint8_t elementBytes = 1;  // in memory
  std::uint8_t transferElementBytes = 1;  // in the logical buffer

  KOLO_DEVICE bool isCast() const { return datatype != transferType; }
};

enum class Buffer : std::uint8_t { kSend, kRecv };

// Both buffers of an operation, in one piece of memory that may be moved: this, the segments of the send buffer, those
// of the receive buffer, and the strides.
struct Segments {
  std::uint64_t bytes = 0;  // of all of it
  std::uint32_t sends = 0, recvs = 0;
  std::uint64_t edgesAt = 0;    // in the scratch memory of each channel, kEdges pieces of kEdgeBytes: segment_moves.h
  std::uint64_t recvBytes = 0;  // of the logical receive buffer
  std::uint64_t isInPlace = 0;  // 1: some of what this rank gives lies where it receives
  std::uint64_t id = 0;         // of this list: no other one of this process has ever had it

  // As many bytes as the counts say; else it is none.
  bool isWhole() const {
    return bytes >= sizeof(Segments) + (std::uint64_t{sends} + recvs) * sizeof(Segment) &&
           (bytes - sizeof(Segments) - (std::uint64_t{sends} + recvs) * sizeof(Segment)) % sizeof(Strides) == 0;
  }
  KOLO_DEVICE const Segment* of(Buffer buffer) const {
    return reinterpret_cast<const Segment*>(this + 1) + (buffer == Buffer::kSend ? 0 : sends);
  }
  KOLO_DEVICE std::uint32_t countOf(Buffer buffer) const { return buffer == Buffer::kSend ? sends : recvs; }
  KOLO_DEVICE const Strides& stridesOf(const Segment& segment) const {
    return reinterpret_cast<const Strides*>(of(Buffer::kSend) + sends + recvs)[segment.strides - 1];
  }
};
static_assert(sizeof(Segments) == 48 && sizeof(Segment) == 48 && alignof(Segment) == 8 && alignof(Strides) == 8);

// The memory that the elements of a segment lie in; of one with strides, all of its array.
struct Extent {
  unsigned char* begin;
  std::uint64_t bytes;
};
inline Extent extentOf(const Segments& all, const Segment& segment) {
  if (segment.strides == 0) return {segment.data, segment.bytes / segment.transferElementBytes * segment.elementBytes};
  const Strides& strides = all.stridesOf(segment);
  std::int64_t low = 0, high = static_cast<std::int64_t>(strides.rowElements) * segment.elementBytes;
  for (std::int64_t d = 0; d < strides.ndim; ++d) {
    const std::int64_t reach = (static_cast<std::int64_t>(strides.shape[d]) - 1) * strides.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  return {segment.data + low, static_cast<std::uint64_t>(high - low)};
}

// A peer's list: its Segments, by their address there.
struct PeerSegments {
  int peer = -1;
  std::uint64_t address = 0;
  std::uint64_t id = 0;  // Segments::id
};

// ---- logical addresses: the highest bit says that it is one, the next one which buffer's, the others its byte

inline constexpr std::uint64_t kLogical = std::uint64_t{1} << 63, kLogicalRecv = std::uint64_t{1} << 62;

inline unsigned char* logicalBegin(Buffer buffer) {
  return reinterpret_cast<unsigned char*>(kLogical | (buffer == Buffer::kRecv ? kLogicalRecv : 0));
}
KOLO_DEVICE bool isLogical(const void* address) { return (reinterpret_cast<std::uint64_t>(address) & kLogical) != 0; }
KOLO_DEVICE Buffer bufferOf(const void* address) {
  return (reinterpret_cast<std::uint64_t>(address) & kLogicalRecv) != 0 ? Buffer::kRecv : Buffer::kSend;
}
KOLO_DEVICE std::uint64_t byteOf(const void* address) {
  return reinterpret_cast<std::uint64_t>(address) & (kLogicalRecv - 1);
}

// ---- runs

// What follows an address in memory: one row, or several of one length at one distance from each other.
struct Run {
  unsigned char* data = nullptr;     // null: a gap between two segments
  std::uint64_t bytes = 0;           // of the logical buffer, in all its rows
  std::uint64_t rowBytes = 0;        // of the logical buffer, in one of several rows; an only row may be a part of one
  std::int64_t stride = 0;           // bytes of memory from row to row
  const Segment* segment = nullptr;  // null: of memory by its own address

  KOLO_DEVICE bool isRow() const { return bytes == rowBytes; }
  // Bytes in memory as they are transferred.
  KOLO_DEVICE bool isPlain() const { return isRow() && (segment == nullptr || !segment->isCast()); }
  // Cut to so many bytes or fewer. Of several rows: whole ones, or the first.
  KOLO_DEVICE void cut(std::uint64_t most) {
    if (bytes <= most) return;
    if (most < rowBytes) rowBytes = most;
    bytes = rowBytes == most ? most : most / rowBytes * rowBytes;
  }
};

KOLO_DEVICE std::uint64_t endOf(const Segment& segment) { return segment.begin + segment.bytes; }

// The segment that a byte lies in, or the next one behind it: the first that ends behind it. count: there is none.
// near: any number. Runs follow each other, so that it is mostly segment `near` or the next, if `near` was found last.
KOLO_DEVICE std::uint32_t findSegment(const Segment* segments, std::uint32_t count, std::uint64_t byte,
                                      std::uint32_t near) {
  std::uint32_t low = 0, high = count;
  if (near < count) {
    if (endOf(segments[near]) > byte) {
      if (near == 0 || endOf(segments[near - 1]) <= byte) return near;
      high = near;
    } else {
      low = near + 1;
      if (low == count || endOf(segments[low]) > byte) return low;
    }
  }
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (endOf(segments[middle]) > byte) high = middle;
    else low = middle + 1;
  }
  return low;
}

// From element `element` of a segment with strides on.
KOLO_DEVICE_CALL void runInRows(const Segment& segment, const Strides& strides, std::uint64_t element, Run& run) {
  const std::uint64_t inRow = element % strides.rowElements;
  std::uint64_t row = element / strides.rowElements, last = 0;
  unsigned char* data = segment.data + inRow * segment.elementBytes;
  for (auto d = strides.ndim - 1; d >= 0; --d) {
    const std::uint64_t at = row % strides.shape[d];
    row /= strides.shape[d];
    data += static_cast<std::int64_t>(at) * strides.strides[d];
    if (d == strides.ndim - 1) last = strides.shape[d] - at;
  }
  const std::uint64_t bytes = strides.rowElements * segment.transferElementBytes;
  run.data = data;
  run.rowBytes = bytes - inRow * segment.transferElementBytes;
  run.bytes = inRow == 0 ? last * bytes : run.rowBytes;
  run.stride = strides.strides[strides.ndim - 1];
}

// The run that begins at an address, of `most` bytes or fewer; never empty. last: the number of the segment that was
// found for the run before it, or any other; becomes this one's. REQUIRES: most > 0.
KOLO_DEVICE_CALL Run runAt(const Segments& all, const void* address, std::uint64_t most, std::uint32_t& last) {
  Run run;
  if (!isLogical(address)) {
    run.data = static_cast<unsigned char*>(const_cast<void*>(address));
    run.bytes = run.rowBytes = most;
    return run;
  }
  const Buffer buffer = bufferOf(address);
  const std::uint64_t byte = byteOf(address);
  const Segment* const segments = all.of(buffer);
  const std::uint32_t count = all.countOf(buffer), found = findSegment(segments, count, byte, last);
  last = found;
  if (found == count || segments[found].begin > byte) {
    run.bytes = run.rowBytes = found == count ? most : segments[found].begin - byte;
    run.cut(most);
    return run;
  }
  const Segment& segment = segments[found];
  const std::uint64_t element = (byte - segment.begin) / segment.transferElementBytes;
  run.segment = &segment;
  const std::uint64_t left = segment.begin + segment.bytes - byte;
  if (segment.strides != 0) {
    runInRows(segment, all.stridesOf(segment), segment.first + element, run);
  } else {
    run.data = segment.data + element * segment.elementBytes;
    run.bytes = run.rowBytes = left;
  }
  run.cut(left < most ? left : most);
  return run;
}

}  // namespace kolo::device
