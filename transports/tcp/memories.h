// What a device has registered: the ranges that peers may name in their frames.
//
// Thread safety: one thread at a time.
#pragma once

#include <kolo/transport.h>
#include <sodium.h>

#include <cstdint>
#include <vector>

namespace kolo::tcp {

// What a koloTransportKey holds.
struct MemoryKey {
  std::uint64_t number, bytes, unused;
};
static_assert(sizeof(MemoryKey) == KOLO_TRANSPORT_KEY_BYTES);

class Memories {
 public:
  struct Range {
    unsigned char* address = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;
    // Where `count` bytes at `offset` lie; null: not inside.
    unsigned char* at(std::uint64_t offset, std::uint64_t count) const {
      return offset <= bytes && count <= bytes - offset ? address + offset : nullptr;
    }
  };

  // The lower half of a number says where it stands in the table, the upper one is random: a number that was given back
  // is not valid again when its place is.
  std::uint64_t add(void* address, std::uint64_t bytes) {
    if (free_.empty()) {
      free_.reserve(ranges_.size() + 1);  // for all that are given back: remove() needs no memory
      ranges_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(ranges_.size() - 1));
    }
    const std::uint32_t place = free_.back();
    free_.pop_back();
    const std::uint64_t number = std::uint64_t{randombytes_random()} << 32 | place;
    ranges_[place] = {static_cast<unsigned char*>(address), bytes, number};
    return number;
  }

  void remove(std::uint64_t number) {
    const auto place = static_cast<std::uint32_t>(number);
    ranges_[place] = {};
    free_.push_back(place);
  }

  const Range* find(std::uint64_t number) const {
    const auto place = static_cast<std::uint32_t>(number);
    if (place >= ranges_.size() || ranges_[place].number != number || ranges_[place].address == nullptr) return nullptr;
    return &ranges_[place];
  }

 private:
  std::vector<Range> ranges_;
  std::vector<std::uint32_t> free_;
};

}  // namespace kolo::tcp
