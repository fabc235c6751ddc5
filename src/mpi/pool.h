// Memory for the program (MPI_Alloc_mem), out of memory of Kolo's, which other processes can map: so collectives need
// not copy it.
//
// It is cut from segments, of which a session makes windows: so a communicator has a few windows, however many blocks
// there are, and knows blocks that are allocated later, too. Segments are larger than what is asked for: their pages
// are taken when touched. They stay until the process ends; the pages of large blocks that are given back go back to
// the system.
//
// A process that is forked shares the memory, and does not have a copy.
//
// Thread safety: all functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

namespace kolo::mpi {

class Pool {
 public:
  struct Segment {
    unsigned char* begin;
    std::size_t bytes;
  };
  static constexpr std::size_t kSegmentBytes = std::size_t{256} << 20;  // at least

  // alignment: a power of two, up to a page. nullptr: there is no such memory (koloMemAlloc).
  void* take(std::size_t bytes, std::size_t alignment);
  // Whether it was taken here; now it no longer is.
  bool give(void* pointer);

  // In the order in which they came.
  std::size_t segments() const;
  Segment segment(std::size_t i) const;

 private:
  using Extents = std::map<std::uintptr_t, std::size_t>;  // bytes, by where they begin
  struct Part {
    Segment segment;
    Extents free;  // none beside another
  };
  struct Taken {
    Part* part;
    std::size_t bytes;
  };

  static std::optional<std::uintptr_t> cut(Part& part, std::size_t bytes, std::size_t alignment);
  static void join(Part& part, std::uintptr_t begin, std::size_t bytes);
  Part* grow(std::size_t bytes);

  mutable std::mutex mutex_;
  std::deque<Part> parts_;  // stay where they are
  std::map<std::uintptr_t, Taken> taken_;
};

// The process's.
Pool& pool();

}  // namespace kolo::mpi
