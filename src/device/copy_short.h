// The copy of a line's payload.
#pragma once

#include <cstdint>

#include "device/packs.h"

namespace kolo::device {

// All words of a round are loaded before the first is stored, so that no load waits for another.
template <class Word>
KOLO_HD void copyWords(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
  constexpr std::uint32_t kInFlight = 8;
  const std::uint32_t count = bytes / sizeof(Word);
  KOLO_ROLLED
  for (std::uint32_t at = 0; at < count; at += kInFlight) {
    Word words[kInFlight] = {};
    for (std::uint32_t k = 0; k < kInFlight; ++k) {
      if (at + k < count) words[k] = loadWord<Word>(from + (at + k) * sizeof(Word));
    }
    for (std::uint32_t k = 0; k < kInFlight; ++k) {
      if (at + k < count) storeWord(to + (at + k) * sizeof(Word), words[k]);
    }
  }
}

// By the largest word to which both ends and the length are aligned: a GPU loads no other.
KOLO_DEVICE_CALL void copyByAlignment(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
  const std::uintptr_t offsets = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes;
  if (offsets % sizeof(std::uint64_t) == 0) return copyWords<std::uint64_t>(to, from, bytes);
  if (offsets % sizeof(std::uint32_t) == 0) return copyWords<std::uint32_t>(to, from, bytes);
  if (offsets % sizeof(std::uint16_t) == 0) return copyWords<std::uint16_t>(to, from, bytes);
  copyWords<unsigned char>(to, from, bytes);
}

// By two overlapping moves of the largest size that fits: the host's processors load words at any address.
KOLO_HD void copyByTwoMoves(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
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

// Copies up to 64 bytes, on the host without a call.
KOLO_DEVICE void copyShort(void* dst, const void* src, std::uint32_t bytes) {
  auto* const to = static_cast<unsigned char*>(dst);
  const auto* const from = static_cast<const unsigned char*>(src);
  if constexpr (kLoadsAnyAddress) {
    copyByTwoMoves(to, from, bytes);
  } else {
    copyByAlignment(to, from, bytes);
  }
}

}  // namespace kolo::device
