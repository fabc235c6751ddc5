#include "comm/subgroups.h"

#include <algorithm>
#include <tuple>

#include "bootstrap/wire.h"
#include "comm/child.h"
#include "comm/mesh.h"
#include "links/blob.h"

namespace kolo::comm {
namespace {

constexpr std::uint64_t kKeyOfGroups = ~std::uint64_t{2};  // no color is so large
constexpr std::size_t kMostWords = 2000, kMostOffer = std::size_t{64} << 10;
// Of groups of one parent: a rank that proposes more would let the numbers begin anew.
constexpr std::uint64_t kMostGroups = std::uint64_t{1} << 48;

// What a member tells the others when they meet.
struct Arrival {
  Status verdict;          // why it cannot go on
  std::string name;        // of the group
  std::uint64_t next = 0;  // the number that it proposes
  std::uint64_t had = 0;   // of the group that it has; 0: none
  std::string offer;       // of memory (comm/child.h)
  static auto fields(auto& it) { return std::tie(it.verdict, it.name, it.next, it.had, it.offer); }
};

// One rank's part in making a group.
class Gathering {
 public:
  Gathering(Communicator& parent, const std::vector<int>& ranks, const Result<Options>& options)
      : parent_(parent), options_(options), child_(parent, 0, parent.failureState().interrupt()),
        list_(mixKeys(parent.membership().key, kKeyOfGroups)) {
    for (const int rank : ranks) list_ = mixKeys(list_, static_cast<std::uint64_t>(rank));
    child_.setMembers(ranks);
  }

  Result<NewGroup> make(std::uint64_t had) {
    Result<NewGroup> made = meetAndMake(had);
    if (made.ok()) return made;
    return error(made.status().code(), "{}: {}", describe(), made.status().message());
  }

 private:
  Result<NewGroup> meetAndMake(std::uint64_t had);
  Result<std::vector<Arrival>> meet(std::uint64_t had);
  Status check(const std::vector<Arrival>& arrivals) const;
  std::string describe() const;

  Communicator& parent_;
  const Result<Options>& options_;
  Child child_;
  std::uint64_t list_;  // follows from the parent and the list
};

Result<NewGroup> Gathering::meetAndMake(std::uint64_t had) {
  KOLO_ASSIGN(const std::vector<Arrival> arrivals, meet(had));
  if (Status wrong = check(arrivals); !wrong.ok()) {
    child_.withdraw();
    return wrong;
  }
  const bool isThere =
      had != 0 && std::all_of(arrivals.begin(), arrivals.end(), [had](const Arrival& each) { return each.had == had; });
  if (isThere) return NewGroup{nullptr, had};
  NewGroup group;
  std::vector<std::string> offers;
  for (const Arrival& each : arrivals) {
    group.number = std::max(group.number, each.next);
    offers.push_back(each.offer);
  }
  parent_.subgroups().take(group.number);
  child_.setKey(mixKeys(list_, group.number));
  KOLO_ASSIGN(group.made, undertake(child_.membership(), [&] { return child_.make(options_.value(), offers); }));
  return group;
}

// The exchange has the parent's key: the abort of the parent, or another failure of it that some rank has reported,
// ends the wait.
Result<std::vector<Arrival>> Gathering::meet(std::uint64_t had) {
  const Status& mine = options_.status();
  Arrival arrival;
  arrival.verdict = {mine.code(), mine.message().substr(0, kMostWords)};
  arrival.name = mine.ok() ? options_.value().name : "";
  arrival.next = parent_.subgroups().next();
  arrival.had = had;
  if (mine.ok() && had == 0) arrival.offer = child_.offer(options_.value(), kMostOffer);
  const Membership& members = child_.membership();
  const Result<std::vector<std::string>> told =
      members.control->allGather(parent_.membership().key, bootstrap::kPartialSequence | list_, members.members,
                                 members.rank, links::encode(arrival), members.initTimeoutMs, members.interrupt.get());
  const bool isLate = told.status().code() == koloInProgress;
  if (!told.ok()) isLate || members.isInterrupted() ? child_.leave() : child_.withdraw();
  if (isLate) return Status(koloUnreachable, told.status().message());
  KOLO_TRY(told.status());
  std::vector<Arrival> arrivals;
  for (const std::string& each : told.value()) arrivals.push_back(links::decode<Arrival>(each));
  return arrivals;
}

// Whether all members can go on, and mean the same group.
Status Gathering::check(const std::vector<Arrival>& arrivals) const {
  KOLO_TRY(options_.status());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& each = arrivals[i];
    if (!each.verdict.ok()) {
      return error(each.verdict.code(), "on rank {} of {}: {}", child_.ranks()[i], parent_.options().name,
                   each.verdict.message());
    }
    if (each.next == 0 || each.next > kMostGroups)
      return error(koloRemoteError, "rank {} of {} proposes {} as the number of its next group, expected 1 to {}",
                   child_.ranks()[i], parent_.options().name, each.next, kMostGroups);
  }
  const auto other = std::find_if(arrivals.begin(), arrivals.end(),
                                  [this](const Arrival& each) { return each.name != options_.value().name; });
  if (other == arrivals.end()) return {};
  return error(koloMismatch, "rank {} of {} calls the group \"{}\", rank {} calls it \"{}\"", parent_.rank(),
               parent_.options().name, options_.value().name,
               child_.ranks()[static_cast<std::size_t>(other - arrivals.begin())], other->name);
}

// The ranks of the job too, by which the control plane names ranks, where they are others.
std::string Gathering::describe() const {
  const std::vector<int>& ranks = child_.ranks();
  std::vector<int> jobRanks;
  for (const int rank : ranks) jobRanks.push_back(parent_.membership().jobRank(rank));
  const std::string ofTheJob =
      ranks == jobRanks ? "" : fmt::format(" (ranks {} of the job)", bootstrap::describeRanks(jobRanks));
  return fmt::format("a group of ranks {} of communicator {}{}", bootstrap::describeRanks(ranks),
                     parent_.options().name, ofTheJob);
}

}  // namespace

const Subgroups::Entry* Subgroups::find(const std::vector<int>& ranks, const Options& options) const {
  const Entry wanted{.ranks = ranks, .name = options.name, .mesh = options.mesh};
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) { return isSame(each, wanted); });
  return found != entries_.end() ? &*found : nullptr;
}

Result<Options> groupOptions(const Communicator& parent, const std::vector<int>& ranks, const std::vector<int>& mesh,
                             const char* name, const koloConfig_t* config) {
  KOLO_ASSIGN(Options options, Options::make(config, &parent.options()));
  options.mesh = mesh;
  if (name != nullptr && *name != '\0') {
    options.name = name;
  } else if (config == nullptr || config->name == nullptr) {
    options.name = fmt::format("{}[{}{}]", parent.options().name, bootstrap::describeRanks(ranks),
                               mesh.empty() ? "" : " as " + describeMesh(mesh));
  }
  return options;
}

Result<NewGroup> createGroup(Communicator& parent, const std::vector<int>& ranks, const Result<Options>& options,
                             std::uint64_t had) {
  return withoutExceptions([&] { return Gathering(parent, ranks, options).make(had); });
}

}  // namespace kolo::comm
