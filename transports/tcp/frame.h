// What travels on a rail: frames, each a header and then its payload, without gaps.
//
// Thread safety: pure functions and plain data.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "crc32c.h"

namespace kolo::tcp {

static_assert(std::endian::native == std::endian::little, "what travels is little-endian");

// Where bytes go: a memory of the peer, by the number that it gave it, and a range in it.
struct Frame {
  static constexpr std::uint16_t kMark = 0x6f4b;
  static constexpr std::uint16_t kSignals = 1;         // a signal follows the payload
  static constexpr std::uint16_t kPayloadChecked = 2;  // payloadCrc is the payload's
  static constexpr std::uint16_t kAllFlags = 3;

  std::uint32_t headerCrc;  // CRC-32C of the rest of the header
  std::uint16_t mark;
  std::uint16_t flags;
  std::uint32_t sequence;  // on this rail in this direction, from 0 on
  std::uint32_t payloadCrc;
  std::uint64_t memory;
  std::uint64_t offset;
  std::uint64_t bytes;  // of payload
  std::uint64_t signalMemory;
  std::uint64_t signalOffset;
  std::uint64_t signal;
};

static_assert(sizeof(Frame) == 64 && std::has_unique_object_representations_v<Frame>);

inline std::uint32_t headerCrc(const Frame& frame) {
  return crc32c(0, &frame.mark, sizeof frame - sizeof frame.headerCrc);
}

}  // namespace kolo::tcp
