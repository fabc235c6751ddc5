// A list of texts of which most resemble the one before, as the blobs of an exchange do: equal ones are written once,
// with their number, and of the others only what differs at the same place.
//
// Thread safety: none; each object belongs to one thread at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "bootstrap/wire.h"

namespace kolo::bootstrap {

// A longer text is written in full. So who reads a list needs at most so many bytes for each of its texts beyond those
// that were sent.
constexpr std::size_t kMostSharedBytes = 64u << 10;

class TextList {
 public:
  // The text stays as it is until the next one is added.
  void add(std::string_view text);
  std::size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  void addDifference(std::string_view text);

  std::string bytes_;
  std::string_view previous_;
  std::uint32_t repeats_ = 0;  // of it
  std::size_t repeatsAt_ = 0;
};

// Whether a list of so many texts follows, which is passed over. It makes none of them.
bool isTextList(Decoder& decoder, std::size_t count);
// Reads so many texts of a list. False: it is none, or the number is another one, or a text has more than mostBytes.
bool readTexts(Decoder& decoder, std::span<std::string> texts, std::size_t mostBytes = kMaxBlobBytes);

}  // namespace kolo::bootstrap
