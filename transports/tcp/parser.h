// The receiving half of a rail: checks frames, puts their bytes where they belong, and then sets their signals.
//
// Thread safety: one thread at a time.
// Invariants: nothing is written outside of a registered memory. A signal is set when all bytes of its frame, and of
// the frames before it, are in place. After an error nothing more is taken.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "memories.h"
#include "seal.h"

namespace kolo::tcp {

class Parser {
 public:
  Parser(const Memories& memories, const Direction& direction);

  // Bytes as they come, cut anywhere. Null, or what is wrong with the frame: "has ...".
  const char* feed(const unsigned char* bytes, std::size_t count);

  // Where the next bytes of the payload go: they may be received right there; then filled() instead of feed(). Empty: a
  // header comes first, or what is thrown away, or is encrypted. Valid until forget().
  std::span<unsigned char> room() const { return {to_, isForgotten_ || seal_.encrypts() ? 0 : left_}; }
  const char* filled(std::size_t count);

  bool decrypts() const { return seal_.encrypts(); }
  // Of the last frame's payload.
  std::size_t lastBytes() const { return frame_.bytes; }
  bool isBetweenFrames() const { return have_ == 0 && left_ == 0; }
  // Nothing is written to that memory any more: of a payload that is half there the rest is thrown away, and then the
  // frame is wrong.
  void forget(std::uint64_t memory);

 private:
  const char* takeHeader();
  std::size_t takePlain(const unsigned char* bytes, std::size_t count, const char** wrong);
  std::size_t takeSealed(const unsigned char* bytes, std::size_t count, const char** wrong);
  const char* finish();

  const Memories* memories_;
  unsigned char header_[sizeof(Frame)] = {};
  std::unique_ptr<unsigned char[]> piece_;  // encrypted, as far as it has come
  std::size_t have_ = 0;                    // of the header, or of the piece
  Frame frame_{};
  unsigned char* to_ = nullptr;  // the rest of the payload
  std::size_t left_ = 0;
  bool isForgotten_ = false;  // goes nowhere
  std::uint32_t crc_ = 0;     // of the payload so far
  std::uint64_t next_ = 0;
  Seal seal_;
};

}  // namespace kolo::tcp
