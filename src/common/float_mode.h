// The floating-point mode in which the library calculates: that of a new program, whatever the calling thread has set.
// All ranks then round alike, and none flushes subnormal numbers that others keep. Traps that a program has enabled
// (feenableexcept) do not fire inside.
//
// On x86-64 the mode is that of SSE; nothing here uses the x87 unit.
//
// Thread safety: of the calling thread.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kolo {

class UsualFloatMode {
 public:
  // isNeeded: false for what calculates nothing.
  explicit UsualFloatMode(bool isNeeded = true) : before_(isNeeded ? get() : kUsual) {
    if ((before_ & kMode) != kUsual) [[unlikely]]
      set(kUsual);
  }
  ~UsualFloatMode() {
    if ((before_ & kMode) != kUsual) [[unlikely]]
      set(before_);
  }
  UsualFloatMode(const UsualFloatMode&) = delete;
  UsualFloatMode& operator=(const UsualFloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  // All of MXCSR but the flags of what has happened.
  static constexpr Word kMode = 0xffc0, kUsual = 0x1f80;
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  // FPCR: default NaNs, flushing, rounding, and the traps.
  static constexpr Word kMode = 0x07ff'9f07, kUsual = 0;
  static Word get() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
#error "expected a way to read this processor's floating-point mode"
#endif

  const Word before_;
};

}  // namespace kolo
