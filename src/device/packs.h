// Sixteen bytes at once, wherever they lie. A GPU loads and stores a word only at a multiple of its size, and a
// compiler that does not know of the alignment moves byte by byte, as it does for memcpy: so a pack, and a word, are
// assigned as a whole. No CUDA include.
#pragma once

#include <cstdint>

#include "device/host_device.h"

namespace kolo::device {

inline constexpr std::uint64_t kPackBytes = 16;

struct alignas(kPackBytes) KOLO_MAY_ALIAS Pack {
  std::uint64_t words[2];
};

// A pack as elements come out of it on a GPU: of longer words the assembler would copy each half before a conversion
// reads it.
struct alignas(kPackBytes) KOLO_MAY_ALIAS Quarters {
  std::uint32_t words[4];
};

// A word of memory that was written as something else.
template <class Word>
struct KOLO_MAY_ALIAS Anywhere {
  Word word;
};
template <class Word>
KOLO_HD Word loadWord(const void* from) {
  return static_cast<const Anywhere<Word>*>(from)->word;
}
template <class Word>
KOLO_HD void storeWord(void* to, Word word) {
  static_cast<Anywhere<Word>*>(to)->word = word;
}

KOLO_HD std::uint64_t packOffset(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kPackBytes; }

// How a range of bytes falls apart: [0, head) and [packs end, bytes) by elements, between them whole packs.
struct PackSplit {
  std::uint64_t head;
  std::uint64_t packs;
  KOLO_HD std::uint64_t packsEnd() const { return head + packs * kPackBytes; }
};

// offset: the misalignment of the destination, whose packs are aligned if whole elements reach a pack's boundary, and
// else begin with the range. margin: how many bytes at either end are in no pack.
KOLO_HD PackSplit splitIntoPacks(std::uint64_t offset, std::uint64_t bytes, std::uint64_t elementBytes,
                                 std::uint64_t margin) {
  const std::uint64_t toBoundary = (kPackBytes - offset) % kPackBytes;
  const std::uint64_t head = (toBoundary % elementBytes == 0 ? toBoundary : 0) + margin;
  if (bytes < head + margin + kPackBytes) return {bytes, 0};
  return {head, (bytes - head - margin) / kPackBytes};
}

// The pack that begins at an address, which is a pack's boundary.
KOLO_HD Pack loadPack(const unsigned char* from) { return *reinterpret_cast<const Pack*>(from); }
KOLO_HD Quarters loadQuarters(const unsigned char* from) { return *reinterpret_cast<const Quarters*>(from); }
KOLO_HD void storePack(unsigned char* to, Pack pack) { *reinterpret_cast<Pack*>(to) = pack; }

// The one that begins some bytes after a pack's boundary: put together of two, so that what lies before it and behind
// it is read too, less than a pack. Little-endian, as all machines are that this runs on.
KOLO_HD Pack loadShifted(const unsigned char* from) {
#ifdef __SANITIZE_THREAD__
  // It is told of the bytes that are used: the others may be written meanwhile, and are shifted out.
  Pack exact;
  __builtin_memcpy(&exact, from, sizeof exact);
  return exact;
#endif
  const auto shift = static_cast<unsigned>(packOffset(from)), bits = shift % 8 * 8;
  const Pack low = loadPack(from - shift), high = loadPack(from - shift + kPackBytes);
  const bool inFirstWord = shift < 8;
  const std::uint64_t first = inFirstWord ? low.words[0] : low.words[1];
  const std::uint64_t second = inFirstWord ? low.words[1] : high.words[0];
  const std::uint64_t third = inFirstWord ? high.words[0] : high.words[1];
  return {{first >> bits | second << 1 << (63 - bits), second >> bits | third << 1 << (63 - bits)}};
}

// To an address that is no pack's boundary, by the largest words that are aligned there.
KOLO_DEVICE_CALL void storeShifted(unsigned char* to, Pack pack) {
  const auto address = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(to));
  const unsigned size = address & (0u - address) & 15u, bits = size * 8;
  KOLO_ROLLED
  for (unsigned at = 0; at < kPackBytes; at += size) {
    const std::uint64_t word = pack.words[0];
    if (size == 8) {
      storeWord(to + at, word);
      pack.words[0] = pack.words[1];
      continue;
    }
    if (size == 4) storeWord(to + at, static_cast<std::uint32_t>(word));
    if (size == 2) storeWord(to + at, static_cast<std::uint16_t>(word));
    if (size == 1) storeWord(to + at, static_cast<unsigned char>(word));
    pack.words[0] = word >> bits | pack.words[1] << (64 - bits);
    pack.words[1] >>= bits;
  }
}

// An element in words of up to eight bytes.
template <class T>
inline constexpr unsigned kWordBytes = sizeof(T) < sizeof(std::uint64_t) ? sizeof(T) : sizeof(std::uint64_t);
template <class T>
inline constexpr unsigned kWordsOf = sizeof(T) / kWordBytes<T>;

// Up to eight bytes at any address. Each load waits for no other.
KOLO_DEVICE_CALL std::uint64_t loadBytes(const unsigned char* from, unsigned bytes) {
  std::uint64_t word = 0;
  for (unsigned i = 0; i < sizeof word; ++i) {
    if (i < bytes) word |= std::uint64_t{from[i]} << (8 * i);
  }
  return word;
}
KOLO_DEVICE_CALL void storeBytes(unsigned char* to, std::uint64_t word, unsigned bytes) {
  for (unsigned i = 0; i < sizeof word; ++i) {
    if (i < bytes) to[i] = static_cast<unsigned char>(word >> (8 * i));
  }
}

// One element at any address; mostly one that is a multiple of its size.
template <class T, bool kAnyAddress = kLoadsAnyAddress>
KOLO_HD T loadElement(const unsigned char* from) {
  T element;
  if (kAnyAddress) {
    __builtin_memcpy(&element, from, sizeof(T));
  } else if (reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0) {
    __builtin_memcpy(&element, __builtin_assume_aligned(from, sizeof(T)), sizeof(T));
  } else {
    std::uint64_t words[kWordsOf<T>];
    for (unsigned i = 0; i < kWordsOf<T>; ++i) words[i] = loadBytes(from + i * kWordBytes<T>, kWordBytes<T>);
    __builtin_memcpy(&element, words, sizeof(T));
  }
  return element;
}
template <class T, bool kAnyAddress = kLoadsAnyAddress>
KOLO_HD void storeElement(unsigned char* to, const T& element) {
  if (kAnyAddress) {
    __builtin_memcpy(to, &element, sizeof(T));
  } else if (reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0) {
    __builtin_memcpy(__builtin_assume_aligned(to, sizeof(T)), &element, sizeof(T));
  } else {
    std::uint64_t words[kWordsOf<T>] = {};
    __builtin_memcpy(words, &element, sizeof(T));
    for (unsigned i = 0; i < kWordsOf<T>; ++i) storeBytes(to + i * kWordBytes<T>, words[i], kWordBytes<T>);
  }
}

}  // namespace kolo::device
