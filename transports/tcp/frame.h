// What travels on a rail: frames, each a header and then its payload, without gaps. Where the payload is encrypted,
// each of its pieces is followed by a tag (seal.h).
//
// Thread safety: plain data.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace kolo::tcp {

static_assert(std::endian::native == std::endian::little, "what travels is little-endian");

// Where bytes go: a memory of the peer, by the number that it gave it, and a range in it.
struct Frame {
  static constexpr std::uint16_t kMark = 0x6f4b;
  static constexpr std::uint16_t kSignals = 1;         // a signal follows the payload
  static constexpr std::uint16_t kPayloadChecked = 2;  // payloadCrc is the payload's
  static constexpr std::uint16_t kAllFlags = 3;

  std::uint64_t tag;  // of the header, and of its number on this rail in this direction: Seal::tag()
  std::uint16_t mark;
  std::uint16_t flags;
  std::uint32_t payloadCrc;
  std::uint64_t memory;
  std::uint64_t offset;
  std::uint64_t bytes;  // of payload
  std::uint64_t signalMemory;
  std::uint64_t signalOffset;
  std::uint64_t signal;
};

static_assert(sizeof(Frame) == 64 && std::has_unique_object_representations_v<Frame>);

}  // namespace kolo::tcp
