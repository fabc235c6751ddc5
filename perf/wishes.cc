#include "perf/wishes.h"

#include <fmt/format.h>

#include <algorithm>

#include "perf/failure.h"
#include "perf/names.h"
#include "perf/sizes.h"

namespace kolo::perf {
namespace {

bool hasAlgorithms(koloCollective_t collective) { return collective != koloCollectiveSendRecv; }

// "LOW-HIGH", either of which may be left out.
void parseRange(std::string_view text, Wish& wish) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) fail("\"{}\" is not a range of sizes such as 64K-1M, 1M- or -64K", text);
  if (dash > 0) wish.low = parseBytes(text.substr(0, dash));
  if (dash + 1 < text.size()) wish.high = parseBytes(text.substr(dash + 1));
  if (wish.low > wish.high) fail("the range of sizes \"{}\" ends before it begins", text);
}

// "[^]ALGORITHM[@LOW-HIGH][/CONDITION...]"
Wish parseAlgorithm(std::string_view text) {
  Wish wish;
  if (!text.empty() && text.front() == '^') {
    wish.forbid = true;
    text.remove_prefix(1);
  }
  const size_t slash = std::min(text.find('/'), text.size());
  wish.conditions = text.substr(slash);
  text = text.substr(0, slash);
  const size_t at = std::min(text.find('@'), text.size());
  wish.algorithm = text.substr(0, at);
  const std::vector<std::string> known = algorithmNames();
  if (std::find(known.begin(), known.end(), wish.algorithm) == known.end()) {
    fail("unknown algorithm \"{}\"; known are {}", wish.algorithm, fmt::join(known, " "));
  }
  if (at < text.size()) parseRange(text.substr(at + 1), wish);
  return wish;
}

}  // namespace

std::vector<std::string> algorithmNames() {
  std::vector<std::string> names;
  for (int i = 0; koloAlgorithmName(i) != nullptr; ++i) names.emplace_back(koloAlgorithmName(i));
  return names;
}

std::vector<Wish> parseWishes(std::string_view text, const std::vector<koloCollective_t>& measured) {
  std::vector<Wish> wishes;
  for (const std::string& word : splitList(text)) {
    const size_t colon = word.find(':');
    Wish wish = parseAlgorithm(std::string_view(word).substr(colon == std::string::npos ? 0 : colon + 1));
    if (colon == std::string::npos) {
      for (const koloCollective_t each : measured) {
        wish.collective = each;
        if (hasAlgorithms(each)) wishes.push_back(wish);
      }
      continue;
    }
    wish.collective = parseCollective(word.substr(0, colon));
    const char* const name = koloCollectiveName(wish.collective);
    if (!hasAlgorithms(wish.collective)) fail("\"{}\": {} has no algorithms", word, name);
    if (std::find(measured.begin(), measured.end(), wish.collective) == measured.end()) {
      fail("\"{}\": {} is not among the collectives to measure", word, name);
    }
    wishes.push_back(wish);
  }
  return wishes;
}

std::string wishesText(const std::vector<Wish>& wishes) {
  std::string text;
  for (const Wish& wish : wishes) {
    text += fmt::format("{}{}:{}{}", text.empty() ? "" : ",", koloCollectiveName(wish.collective),
                        wish.forbid ? "^" : "", wish.algorithm);
    if (wish.low != 0 || wish.high != SIZE_MAX)
      text += fmt::format("@{}-{}", wish.low, wish.high == SIZE_MAX ? "" : std::to_string(wish.high));
    text += wish.conditions;
  }
  return text;
}

std::string algorithmAskedFor(const std::vector<Wish>& wishes, koloCollective_t collective, size_t countBytes) {
  std::string algorithm;
  for (const Wish& wish : wishes) {
    if (!wish.forbid && wish.conditions.empty() && wish.collective == collective && countBytes >= wish.low &&
        countBytes <= wish.high) {
      algorithm = wish.algorithm;
    }
  }
  return algorithm;
}

}  // namespace kolo::perf
