// Buffers of random bytes, whose contents after a call are compared with what the MPI's own function left.
#pragma once

#include <algorithm>
#include <string>

#include "layouts.h"

namespace kolo::test {

inline std::string what;  // is being done, for messages

inline void expectSame(const void* one, const void* other, std::size_t bytes) {
  if (bytes == 0 || std::memcmp(one, other, bytes) == 0) return;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::size_t at = 0;
  while (static_cast<const char*>(one)[at] == static_cast<const char*>(other)[at]) ++at;
  std::fprintf(stderr, "rank %d of the world: %s: byte %zu of %zu differs from the MPI's own result\n", rank,
               what.c_str(), at, bytes);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

struct Layout {
  MPI_Datatype datatype;
  MPI_Aint begin, extent;
};
inline Layout layoutOf(MPI_Datatype datatype) {
  Layout layout{datatype, 0, 0};
  MPI_Aint lower = 0, trueExtent = 0;
  MPI_Type_get_extent(datatype, &lower, &layout.extent);
  MPI_Type_get_true_extent(datatype, &layout.begin, &trueExtent);
  return layout;
}

// Room for elements of any of the datatypes, with bytes around them that nobody may write.
class Buffer {
 public:
  static constexpr int kMostExtent = 48;
  explicit Buffer(int elements) : bytes_(static_cast<std::size_t>(elements) * kMostExtent + 2 * kAround, 0x5a) {}
  unsigned char* data() { return bytes_.data() + kAround; }
  std::vector<unsigned char>& all() { return bytes_; }  // with those around
  void randomize(Random& random) {
    for (std::size_t i = kAround; i + kAround < bytes_.size(); ++i) bytes_[i] = static_cast<unsigned char>(random());
  }
  void expectSameAs(const Buffer& other) const { expectSame(bytes_.data(), other.bytes_.data(), bytes_.size()); }

 private:
  static constexpr std::size_t kAround = 128;
  std::vector<unsigned char> bytes_;
};

// A product of complex numbers may be 0 or -0, by its order: so those to be multiplied have no imaginary part.
inline void fill(Buffer& buffer, const Number& number, MPI_Op op, int count, Random& random) {
  const MPI_Aint extent = layoutOf(number.datatype).extent;
  for (int i = 0; i < count; ++i) {
    unsigned char* const element = buffer.data() + i * extent;
    number.fill(element, random);
    if (number.isComplex && op == MPI_PROD) std::memset(element + extent / 2, 0, static_cast<std::size_t>(extent / 2));
  }
}

}  // namespace kolo::test
