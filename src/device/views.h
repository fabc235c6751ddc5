// Views of buffers (D16): algorithms say which elements they mean, and what lies where is said here and in Work. A view
// of a buffer of segments holds logical addresses (device/segments.h).
#pragma once

#include <cstdint>

#include "device/host_device.h"
#include "device/partition.h"

namespace kolo::device {

// A run of bytes in this process: where something is read, and where something is written.
struct ConstPiece {
  const unsigned char* data;
  std::uint64_t bytes;

  // Without its first bytes, of which it has as many.
  KOLO_DEVICE ConstPiece after(std::uint64_t first) const { return {data + first, bytes - first}; }
  KOLO_DEVICE ConstPiece first(std::uint64_t count) const { return {data, count}; }
};
struct Piece {
  unsigned char* data;
  std::uint64_t bytes;

  KOLO_DEVICE Piece after(std::uint64_t first) const { return {data + first, bytes - first}; }
  KOLO_DEVICE operator ConstPiece() const { return {data, bytes}; }
};

// Elements of so many bytes each, one after the other, that are read and written.
struct Elements {
  unsigned char* begin;
  std::uint64_t elementBytes;

  KOLO_DEVICE Piece at(const Range& range) const {
    return {begin + range.begin * elementBytes, range.count * elementBytes};
  }
};

}  // namespace kolo::device
