// The words of a list in a setting, or in a file of the system.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace kolo {

// Those that are not empty, each once, without the blanks around them.
inline std::vector<std::string> wordsOf(std::string_view list, char separator = ',') {
  std::vector<std::string> words;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(separator), list.size());
    std::string_view word = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    const std::size_t first = word.find_first_not_of(" \t");
    if (first == std::string_view::npos) continue;
    word = word.substr(first, word.find_last_not_of(" \t") - first + 1);
    if (std::find(words.begin(), words.end(), word) == words.end()) words.emplace_back(word);
  }
  return words;
}

inline bool isWordOf(std::string_view word, std::string_view list, char separator = ',') {
  const std::vector<std::string> words = wordsOf(list, separator);
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace kolo
