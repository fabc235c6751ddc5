// Memory that other processes can be given access to. It is taken from Kolo in segments, of which groups make windows;
// tensors are cut from them.
//
// Thread safety: all functions. Segments stay as long as a group may have windows over them, or a tensor lies in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "torch/communicator.h"

namespace kolo::pytorch {

class Pool {
 public:
  struct Segment {
    unsigned char* begin = nullptr;
    std::size_t bytes = 0;
  };

  static Pool& ofProcess();

  // Aligned to 64 bytes; nullptr: there is no memory.
  void* take(std::size_t bytes);
  void give(void* block);
  std::size_t segments() const;
  Segment segment(std::size_t i) const;

  // Each group that has windows: from its beginning until its windows have ended.
  void enter();
  void leave();

 private:
  // The first free block that fits; nullptr: none does.
  void* cut(std::size_t bytes);
  bool grow(std::size_t bytes);
  void addFree(unsigned char* begin, std::size_t bytes);
  void shrink();

  mutable std::mutex mutex_;
  std::vector<Segment> segments_;
  std::map<unsigned char*, std::size_t> free_;  // begin: bytes
  std::map<unsigned char*, std::size_t> taken_;
  int groups_ = 0;
};

// The windows that a group's communicator has over the process's segments.
//
// Taking memory is a rank's own affair, and making a window is all ranks' at once. So at collectives whose numbers all
// ranks know alike (the 1st, 3rd, 7th and so on, later every 256th) the ranks look whether one of them has a new
// segment.
class Windows {
 public:
  Windows() { Pool::ofProcess().enter(); }
  Windows(const Windows&) = delete;
  ~Windows() { Pool::ofProcess().leave(); }  // REQUIRES: the communicator has ended

  // To be called before each of the group's collectives.
  void look(Communicator& communicator) {
    const std::uint64_t number = ++collectives_;
    if ((number & (number + 1)) == 0 || number % kOften == 0) [[unlikely]]
      registerNew(communicator);
  }

 private:
  static constexpr std::uint64_t kOften = 256;

  void registerNew(Communicator& communicator);

  std::uint64_t collectives_ = 0;
  std::size_t registered_ = 0;
};

}  // namespace kolo::pytorch
