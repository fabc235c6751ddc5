// The copy of a line's payload.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

// Copies up to 64 bytes without a call: two overlapping moves of the largest size that fits.
KOLO_DEVICE void copyShort(void* dst, const void* src, std::uint32_t bytes) {
  auto* const to = static_cast<unsigned char*>(dst);
  const auto* const from = static_cast<const unsigned char*>(src);
  const auto ends = [&](auto word) {
    auto last = word;
    __builtin_memcpy(&word, from, sizeof word);
    __builtin_memcpy(&last, from + bytes - sizeof word, sizeof word);
    __builtin_memcpy(to, &word, sizeof word);
    __builtin_memcpy(to + bytes - sizeof word, &last, sizeof word);
  };
  struct Half {
    std::uint64_t words[4];
  };
  struct Quarter {
    std::uint64_t words[2];
  };
  if (bytes >= sizeof(Half)) return ends(Half{});
  if (bytes >= sizeof(Quarter)) return ends(Quarter{});
  if (bytes >= sizeof(std::uint64_t)) return ends(std::uint64_t{});
  if (bytes >= sizeof(std::uint32_t)) return ends(std::uint32_t{});
  for (std::uint32_t i = 0; i < bytes; ++i) to[i] = from[i];
}

}  // namespace kolo::device
