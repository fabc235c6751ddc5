#include <algorithm>

#include "algorithms/catalogue.h"
#include "algorithms/names.h"
#include "base/settings.h"
#include "planner/planner.h"

namespace kolo::planner {
namespace {

Result<std::uint64_t> parseBound(std::string_view text, std::uint64_t fallback) {
  if (text.empty()) return fallback;
  KOLO_ASSIGN(const std::int64_t bytes, settings::parseBytes(text));
  return static_cast<std::uint64_t>(bytes);
}

template <class Condition>
std::string algorithmsWhere(Condition condition) {
  std::string names;
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    if (condition(row)) names += fmt::format(" {}", row.name);
  }
  return names;
}

Result<Wish> parseWish(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    return error(koloInvalidArgument, "\"{}\": expected COLLECTIVE:ALGORITHM, for example all_reduce:ring", text);
  }
  Wish wish{};
  wish.collective = collectiveByName(text.substr(0, colon));
  if (wish.collective == device::Collective::kCount || wish.collective == device::Collective::kSendRecv) {
    return error(koloInvalidArgument,
                 "\"{}\" is no collective with algorithms; expected all_reduce, reduce, broadcast, "
                 "all_gather, reduce_scatter, all_to_all, gather, scatter or barrier",
                 text.substr(0, colon));
  }
  std::string_view rest = text.substr(colon + 1);
  if (!rest.empty() && rest.front() == '^') {
    wish.forbid = true;
    rest.remove_prefix(1);
  }
  const std::size_t at = std::min(rest.find('@'), rest.size());
  wish.algorithm = algorithmByName(rest.substr(0, at));
  if (wish.algorithm == device::Algorithm::kCount) {
    return error(koloInvalidArgument, "\"{}\" is no algorithm; expected one of{}", rest.substr(0, at),
                 algorithmsWhere([](const algorithms::Row&) { return true; }));
  }
  if (!isWrittenFor(wish.algorithm, wish.collective)) {
    return error(koloInvalidArgument, "\"{}\": there is no such algorithm for {}; expected one of{}", text,
                 text.substr(0, colon),
                 algorithmsWhere([&](const algorithms::Row& row) { return row.serves(wish.collective); }));
  }
  if (at < rest.size()) {
    const std::string_view range = rest.substr(at + 1);
    const std::size_t dash = range.find('-');
    if (dash == std::string_view::npos) {
      return error(koloInvalidArgument, "\"{}\": expected a range of bytes LOW-HIGH such as 64K-1M, 1M- or -64K",
                   range);
    }
    const Result<std::uint64_t> low = parseBound(range.substr(0, dash), 0);
    const Result<std::uint64_t> high = parseBound(range.substr(dash + 1), UINT64_MAX);
    if (!low.ok() || !high.ok() || low.value() > high.value()) {
      return error(koloInvalidArgument, "\"{}\": expected a range of bytes LOW-HIGH such as 64K-1M, 1M- or -64K",
                   range);
    }
    wish.low = low.value();
    wish.high = high.value();
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
