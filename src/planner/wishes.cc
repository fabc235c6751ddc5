#include <algorithm>

#include "algorithms/catalogue.h"
#include "algorithms/names.h"
#include "base/settings.h"
#include "planner/planner.h"

namespace kolo::planner {
namespace {

Result<std::uint64_t> parseNumber(std::string_view text) {
  KOLO_ASSIGN(const std::int64_t number, settings::parseBytes(text));
  return static_cast<std::uint64_t>(number);
}

// "LOW-HIGH", either of which may be left out; of a condition also one number. what: "bytes".
Result<Range> parseRange(std::string_view text, std::string_view what, bool mayBeOne) {
  const std::size_t dash = text.find('-');
  const bool isOne = dash == std::string_view::npos;
  const std::string_view first = text.substr(0, dash), last = isOne ? first : text.substr(dash + 1);
  const Result<std::uint64_t> low = first.empty() ? Result<std::uint64_t>(0) : parseNumber(first);
  const Result<std::uint64_t> high = last.empty() ? Result<std::uint64_t>(UINT64_MAX) : parseNumber(last);
  const bool isRange = !isOne || (mayBeOne && !text.empty());
  if (!isRange || !low.ok() || !high.ok() || low.value() > high.value()) {
    return error(koloInvalidArgument, "\"{}\": expected a range of {} LOW-HIGH such as 64K-1M, 1M- or -64K{}", text,
                 what, mayBeOne ? ", or one number" : "");
  }
  return Range{low.value(), high.value()};
}

template <class Condition>
std::string algorithmsWhere(Condition condition) {
  std::string names;
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    if (condition(row)) names += fmt::format(" {}", row.name);
  }
  return names;
}

Result<device::Algorithm> parseAlgorithm(std::string_view wish, std::string_view text, device::Collective collective) {
  const device::Algorithm algorithm = algorithmByName(text);
  if (algorithm == device::Algorithm::kCount) {
    return error(koloInvalidArgument, "\"{}\" is no algorithm; expected one of{}", text,
                 algorithmsWhere([](const algorithms::Row&) { return true; }));
  }
  if (!isWrittenFor(algorithm, collective)) {
    return error(koloInvalidArgument, "\"{}\": there is no such algorithm for {}; expected one of{}", wish,
                 koloCollectiveName(static_cast<koloCollective_t>(collective)),
                 algorithmsWhere([&](const algorithms::Row& row) { return row.serves(collective); }));
  }
  return algorithm;
}

constexpr const char* kPreMulSumWord = "pre_mul_sum";
constexpr const char* kUserWord = "user";

// The bits of "sum+avg".
Result<std::uint32_t> parseReductions(std::string_view text) {
  std::uint32_t bits = 0;
  for (bool isLast = false; !isLast;) {
    const std::size_t end = std::min(text.find('+'), text.size());
    const std::string_view word = text.substr(0, end);
    isLast = end == text.size();
    text.remove_prefix(isLast ? end : end + 1);
    int reduction = 0;
    while (reduction < koloNumOps && word != koloRedOpName(static_cast<koloRedOp_t>(reduction))) ++reduction;
    if (reduction == koloNumOps && word == kUserWord) reduction = kUserReduction;
    if (reduction == koloNumOps && word != kPreMulSumWord) {
      std::string known;
      for (int i = 0; i < koloNumOps; ++i) known += fmt::format("{} ", koloRedOpName(static_cast<koloRedOp_t>(i)));
      return error(koloInvalidArgument, "\"{}\" is no reduction; expected some of {}{} {}, with + between them", word,
                   known, kPreMulSumWord, kUserWord);
    }
    bits |= std::uint32_t{1} << reduction;
  }
  return bits;
}

Status parseRegistration(std::string_view text, Wish& wish) {
  const algorithms::Row& row = algorithms::rowOf(wish.algorithm);
  if (wish.collective == device::Collective::kBarrier) {
    return error(koloInvalidArgument, "\"registered={}\": a barrier has no buffers", text);
  }
  if (text != "yes" && text != "no") {
    return error(koloInvalidArgument, "\"registered={}\": expected registered=yes or registered=no", text);
  }
  wish.whereRegistered = text == "yes";
  wish.whereUnregistered = !wish.whereRegistered;
  const auto worksBetweenWindows = [&](const algorithms::Row& each) {
    return device::isIn(wish.collective, each.asOneShot | each.asTwoShot);
  };
  if (wish.whereRegistered && !wish.forbid && !worksBetweenWindows(row)) {
    return error(koloInvalidArgument,
                 "\"registered=yes\": {} does not work between windows; expected one of{} for {}, or no such condition",
                 row.name, algorithmsWhere(worksBetweenWindows),
                 koloCollectiveName(static_cast<koloCollective_t>(wish.collective)));
  }
  return {};
}

// "ranks=3-": the text between two slashes.
Status parseCondition(std::string_view text, Wish& wish) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals), value = text.substr(std::min(equals + 1, text.size()));
  if (name == "op") {
    if (!device::isIn(wish.collective, device::kReducing)) {
      return error(koloInvalidArgument, "\"{}\": {} has no reduction", text,
                   koloCollectiveName(static_cast<koloCollective_t>(wish.collective)));
    }
    KOLO_ASSIGN(wish.reductions, parseReductions(value));
    return {};
  }
  if (name == "registered") return parseRegistration(value, wish);
  Range* const range = name == "bytes"      ? &wish.bytes
                       : name == "elements" ? &wish.elements
                       : name == "ranks"    ? &wish.ranks
                                            : nullptr;
  if (range == nullptr) {
    return error(koloInvalidArgument,
                 "\"{}\" is no condition; expected bytes=LOW-HIGH, elements=LOW-HIGH, ranks=LOW-HIGH, op=sum or "
                 "registered=yes",
                 text);
  }
  KOLO_ASSIGN(*range, parseRange(value, name, true));
  return {};
}

Result<Wish> parseWish(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    return error(koloInvalidArgument, "\"{}\": expected COLLECTIVE:ALGORITHM, for example all_reduce:ring", text);
  }
  Wish wish{};
  wish.collective = collectiveByName(text.substr(0, colon));
  if (!device::isIn(wish.collective, device::kPlanned)) {
    std::string known;
    for (const CollectiveRow& row : kCollectives) {
      if (row.flow != CollectiveRow::Flow::kPair) known += fmt::format(" {}", row.name);
    }
    return error(koloInvalidArgument, "\"{}\" is no collective with algorithms; expected one of{}",
                 text.substr(0, colon), known);
  }
  std::string_view rest = text.substr(colon + 1);
  if (!rest.empty() && rest.front() == '^') {
    wish.forbid = true;
    rest.remove_prefix(1);
  }
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view conditions = rest.substr(slash);
  rest = rest.substr(0, slash);
  const std::size_t at = std::min(rest.find('@'), rest.size());
  KOLO_ASSIGN(wish.algorithm, parseAlgorithm(text, rest.substr(0, at), wish.collective));
  if (at < rest.size()) {
    KOLO_ASSIGN(wish.bytes, parseRange(rest.substr(at + 1), "bytes", false));
  }
  while (!conditions.empty()) {
    conditions.remove_prefix(1);
    const std::size_t end = std::min(conditions.find('/'), conditions.size());
    KOLO_TRY(parseCondition(conditions.substr(0, end), wish));
    conditions.remove_prefix(end);
  }
  return wish;
}

}  // namespace

Result<std::vector<Wish>> parseWishes(std::string_view text) {
  std::vector<Wish> wishes;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    KOLO_ASSIGN(Wish wish, parseWish(text.substr(0, end)));
    wishes.push_back(wish);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return wishes;
}

}  // namespace kolo::planner
