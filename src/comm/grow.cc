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
constexpr std::uint64_t kKeyOfGrowth = ~std::uint64_t{4};  // no split has such a number

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
Result<koloUniqueId> commonId(Communicator& parent, const std::vector<GrowthCall>& calls) {
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
  KOLO_ASSIGN(const std::uint32_t growth, bootstrap::growthOf(id));
  if (growth != growthOf(parent)) {
    return error(koloInvalidArgument, "the id of rank {} is not of koloCommGetUniqueId for communicator {}",
                 first - calls.begin(), parent.options().name);
  }
  return id;
}

Result<koloUniqueId> meet(Communicator& parent, int ranks, const koloUniqueId* id, const Status& mine) {
  if (parent.failed()) return parent.failure();
  const GrowthCall own{{mine.code(), mine.message().substr(0, kMostWordsOfGrowth)},
                       ranks,
                       id == nullptr ? std::string() : std::string(id->internal, sizeof id->internal)};
  // Under a key of its own, so that growing has no place among the parent's other exchanges: it may fail, or be called
  // where another rank calls something else.
  const Membership& whole = parent.membership();
  const Result<std::vector<std::string>> told =
      whole.control->allGather(mixKeys(whole.key, kKeyOfGrowth), 0, whole.members, whole.rank, links::encode(own),
                               whole.initTimeoutMs, parent.failureState().failureInterrupt().get());
  if (told.status().code() == koloInProgress) return Status(koloUnreachable, told.status().message());
  KOLO_TRY(told.status());
  std::vector<GrowthCall> calls;
  for (const std::string& each : told.value()) calls.push_back(links::decode<GrowthCall>(each));
  KOLO_TRY(mine);
  KOLO_TRY(checkAlike(parent, calls));
  return commonId(parent, calls);
}

}  // namespace

std::uint32_t growthOf(Communicator& parent) {
  const auto bits = static_cast<std::uint32_t>(mixKeys(parent.membership().key, kKeyOfGrowth) >> 50);
  return bits << 18 | static_cast<std::uint32_t>(parent.ranks());
}

Result<Owned> grow(Communicator& parent, int ranks, const koloUniqueId* id, const koloConfig_t* config) {
  Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  if (options.ok() && (config == nullptr || config->name == nullptr))
    options.value().name = parent.options().name + "/grown";
  const Result<koloUniqueId> common = withoutExceptions([&] { return meet(parent, ranks, id, options.status()); });
  if (!common.ok()) {
    // Another job's id was a mistake, of which that job is not to hear.
    const Result<std::uint32_t> growth = id != nullptr ? bootstrap::growthOf(*id) : 0;
    if (!growth.ok() || growth.value() != growthOf(parent)) return common.status();
    return bootstrap::decline(*id, parent.rank(), ranks, parent.membership().initTimeoutMs, common.status());
  }
  // Once all have joined, the new hub tells of deaths. A rank that has finished may abort the parent at once. The
  // parent's hub may report this before the new hub has told the other ranks that all have finished.
  FailureState& failures = parent.failureState();
  Result<Owned> grown = createFromId(common.value(), parent.rank(), ranks, options, failures.failureInterrupt(),
                                     failures.abortInterrupt());
  // Another rank that has heard of it may have ended the new job before.
  if (!grown.ok()) KOLO_TRY(failures.abortInterrupt()->why());
  return grown;
}

}  // namespace kolo::comm
