// Growing. The ranks of the parent tell each other the id, which one of them has made, in an exchange of the parent.
// They and the new processes then join a job of that id, with a hub of its own, as if they all came with it: the parent
// has no part in that, and goes on.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "comm/factory.h"
#include "comm/parts.h"

namespace kolo::comm {
namespace {

constexpr std::size_t kMostWordsOfGrowth = 2000;

// What a rank of the parent says to the others.
struct GrowthCall {
  Status verdict;  // why it cannot go on
  std::int32_t ranks = 0;
  std::string id{};  // "": another rank has it
  static auto fields(auto& it) { return std::tie(it.verdict, it.ranks, it.id); }
};

Status checkAlike(const Communicator& parent, const std::vector<GrowthCall>& calls) {
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const GrowthCall& each = calls[rank];
    if (!each.verdict.ok()) return error(each.verdict.code(), "on rank {}: {}", rank, each.verdict.message());
    if (each.ranks != calls.front().ranks) {
      return error(koloMismatch, "the ranks of communicator {} disagree on nranks: rank 0 gives {}, rank {} gives {}",
                   parent.options().name, calls.front().ranks, rank, each.ranks);
    }
  }
  return {};
}

// The id that all go by: alike on all ranks of the parent.
Result<koloUniqueId> commonId(const Communicator& parent, const std::vector<GrowthCall>& calls) {
  const auto hasId = [](const GrowthCall& each) { return !each.id.empty(); };
  const auto first = std::find_if(calls.begin(), calls.end(), hasId);
  if (first == calls.end()) {
    return error(koloInvalidArgument, "no rank of communicator {} gives an id, expected one of koloCommGetUniqueId",
                 parent.options().name);
  }
  const auto other =
      std::find_if(first, calls.end(), [&](const GrowthCall& each) { return hasId(each) && each.id != first->id; });
  if (other != calls.end()) {
    return error(koloMismatch, "ranks {} and {} of communicator {} give different ids", first - calls.begin(),
                 other - calls.begin(), parent.options().name);
  }
  koloUniqueId id{};
  if (first->id.size() != sizeof id.internal)
    return error(koloRemoteError, "the id of rank {} has {} bytes", first - calls.begin(), first->id.size());
  std::copy(first->id.begin(), first->id.end(), id.internal);
  KOLO_ASSIGN(const int oldRanks, bootstrap::oldRanksOf(id));
  if (oldRanks != parent.ranks()) {
    return error(koloInvalidArgument,
                 "the id of rank {} is not of koloCommGetUniqueId for communicator {} or one of as many ranks",
                 first - calls.begin(), parent.options().name);
  }
  return id;
}

Result<koloUniqueId> meet(Communicator& parent, int ranks, const koloUniqueId* id, const Status& mine) {
  if (parent.failed()) return parent.failure();
  const GrowthCall own{{mine.code(), mine.message().substr(0, kMostWordsOfGrowth)},
                       ranks,
                       id == nullptr ? std::string() : std::string(id->internal, sizeof id->internal)};
  KOLO_ASSIGN(const std::vector<std::string> told, parent.membership().allGather(links::encode(own)));
  std::vector<GrowthCall> calls;
  for (const std::string& each : told) calls.push_back(links::decode<GrowthCall>(each));
  KOLO_TRY(mine);
  KOLO_TRY(checkAlike(parent, calls));
  return commonId(parent, calls);
}

}  // namespace

Result<Owned> grow(Communicator& parent, int ranks, const koloUniqueId* id, const koloConfig_t* config) {
  Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  if (options.ok() && (config == nullptr || config->name == nullptr))
    options.value().name = parent.options().name + "/grown";
  const Result<koloUniqueId> common = withoutExceptions([&] { return meet(parent, ranks, id, options.status()); });
  if (!common.ok()) {
    if (id == nullptr) return common.status();
    const int limitMs = parent.membership().initTimeoutMs;
    return bootstrap::decline(*id, parent.rank(), ranks, limitMs, common.status());
  }
  return createFromId(common.value(), parent.rank(), ranks, options, parent.failureState().interrupt());
}

}  // namespace kolo::comm
