#include "bootstrap/text_list.h"

#include <algorithm>

namespace kolo::bootstrap {
namespace {

// Equal bytes that are worth the numbers by which they are left out.
constexpr std::size_t kWorthLeavingOut = 8;
constexpr std::size_t kMostOfPiece = UINT16_MAX;

std::size_t equalBytes(std::string_view a, std::string_view b, std::size_t from) {
  const std::size_t end = std::min(a.size(), b.size());
  std::size_t at = from;
  while (at < end && a[at] == b[at]) ++at;
  return at - std::min(from, at);
}

}  // namespace

void TextList::add(std::string_view text) {
  if (repeats_ != 0 && text == previous_ && text.size() <= kMostSharedBytes) {
    ++repeats_;
  } else {
    repeats_ = 1;
    repeatsAt_ = bytes_.size();
    bytes_ += Encoder().number(repeats_).number(static_cast<std::uint32_t>(text.size())).take();
    addDifference(text);
  }
  bytes_.replace(repeatsAt_, sizeof repeats_, Encoder().number(repeats_).take());
  previous_ = text;
}

// In pieces: so many bytes as in the text before, so many others, and these.
void TextList::addDifference(std::string_view text) {
  const bool isShared = text.size() <= kMostSharedBytes;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t same = isShared ? std::min(equalBytes(text, previous_, at), kMostOfPiece) : 0;
    std::size_t other = 0;
    const std::size_t begin = at + same;
    while (begin + other < text.size() && other < kMostOfPiece) {
      const std::size_t again = isShared ? equalBytes(text, previous_, begin + other) : 0;
      if (again >= kWorthLeavingOut || (again > 0 && begin + other + again == text.size())) break;
      other = std::min(other + again + 1, kMostOfPiece);
      other = std::min(other, text.size() - begin);
    }
    bytes_ += Encoder()
                  .number(static_cast<std::uint16_t>(same))
                  .number(static_cast<std::uint16_t>(other))
                  .raw(text.substr(begin, other))
                  .take();
    at = begin + other;
  }
}

namespace {

// Goes through a list of `count` texts: piece(bytes as in the text before, other bytes), in order, and text(repeats)
// behind each. False: it is none, or a text is too long. It needs no memory.
template <class Piece, class Text>
bool walk(Decoder& decoder, std::size_t count, std::size_t mostBytes, Piece piece, Text text) {
  std::size_t previous = 0;
  for (std::size_t i = 0; i < count;) {
    const auto repeats = decoder.number<std::uint32_t>();
    const std::size_t size = decoder.number<std::uint32_t>();
    const bool isShared = size <= kMostSharedBytes;
    if (repeats == 0 || repeats > count - i || (!isShared && repeats != 1) || size > mostBytes) return false;
    for (std::size_t made = 0; made < size;) {
      const std::size_t same = decoder.number<std::uint16_t>();
      const std::string_view other = decoder.raw(decoder.number<std::uint16_t>());
      if (!decoder.ok() || same + other.size() == 0 || made + same + other.size() > size) return false;
      if (same != 0 && (!isShared || made + same > previous)) return false;
      piece(same, other);
      made += same + other.size();
    }
    text(repeats);
    i += repeats;
    previous = size;
  }
  return decoder.ok();
}

}  // namespace

bool isTextList(Decoder& decoder, std::size_t count) {
  return walk(
      decoder, count, kMaxBlobBytes, [](std::size_t, std::string_view) {}, [](std::uint32_t) {});
}

bool readTexts(Decoder& decoder, std::span<std::string> texts, std::size_t mostBytes) {
  std::string_view previous;
  std::string text;
  std::size_t i = 0;
  const auto addPiece = [&](std::size_t same, std::string_view other) {
    if (same != 0) text.append(previous.substr(text.size(), same));
    text.append(other);
  };
  return walk(decoder, texts.size(), mostBytes, addPiece, [&](std::uint32_t repeats) {
    for (std::uint32_t copy = 0; copy < repeats; ++copy) texts[i++] = text;
    previous = texts[i - 1];
    text.clear();
  });
}

}  // namespace kolo::bootstrap
