#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace kolo::test {

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Milliseconds that an error message says rank 0 waited; -1: it says nothing of it. On a busy machine they may be many.
inline long waitedMs(const std::string& message) {
  constexpr std::string_view kBegin = "rank 0 waited ";
  const std::size_t at = message.find(kBegin);
  return at == std::string::npos ? -1 : std::strtol(message.c_str() + at + kBegin.size(), nullptr, 10);
}

}  // namespace kolo::test
