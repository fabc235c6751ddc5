// Runs of bytes as one stream, cut into chunks: both sides of a pair that list the same bytes in the same order cut
// them alike. Pure index arithmetic.
#pragma once

#include <cstdint>

#include "device/host_device.h"
#include "device/views.h"

namespace kolo::device {

// at(i) gives piece i of `count`, which may be empty.
template <class At>
class PieceStream {
 public:
  KOLO_DEVICE PieceStream(int count, At at) : count_(count), at_(at) {}

  // Whether something is left.
  KOLO_DEVICE bool skipEmpty() {
    while (piece_ < count_ && at_(piece_).bytes == offset_) next();
    return piece_ < count_;
  }
  // The next chunk: each(place in the chunk, data, bytes) for the parts of pieces that are in it.
  template <class Each>
  KOLO_DEVICE void takeChunk(std::uint64_t chunkBytes, Each each) {
    std::uint64_t place = 0;
    while (place < chunkBytes && piece_ < count_) {
      const Piece piece = at_(piece_);
      const std::uint64_t left = piece.bytes - offset_, room = chunkBytes - place;
      const std::uint64_t bytes = left < room ? left : room;
      if (bytes != 0) each(place, piece.data + offset_, bytes);
      place += bytes;
      offset_ += bytes;
      if (offset_ == piece.bytes) next();
    }
  }

 private:
  KOLO_DEVICE void next() {
    ++piece_;
    offset_ = 0;
  }

  int count_;
  At at_;
  int piece_ = 0;
  std::uint64_t offset_ = 0;  // bytes of the piece that are done
};

}  // namespace kolo::device
