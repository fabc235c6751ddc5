#include "comm/subgroups.h"

#include <algorithm>

#include "bootstrap/wire.h"
#include "comm/mesh.h"
#include "comm/undertake.h"
#include "links/blob.h"

namespace kolo::comm {
namespace {

constexpr std::uint64_t kKeyOfGroups = ~std::uint64_t{2};  // no color is so large
constexpr std::uint64_t kFamilyOfItsOwn = 0;
constexpr std::size_t kMostWords = 2000;
// Of groups of one parent: a rank that proposes more would let the numbers begin anew.
constexpr std::uint64_t kMostGroups = std::uint64_t{1} << 48;

// What a member tells the others when they meet.
struct Arrival {
  std::int32_t code = koloSuccess;  // koloSuccess, or why it cannot go on
  std::string reason;
  std::string name;        // of the group
  std::uint64_t next = 0;  // the number that it proposes
  std::uint64_t had = 0;   // of the group that it has; 0: none

  std::string encode() const { return BlobWriter().put(code).putText(reason).putText(name).put(next).put(had).text(); }
  static Arrival decode(std::string_view text) {
    BlobReader reader(text);
    Arrival arrival;
    arrival.code = reader.get<std::int32_t>();
    arrival.reason = reader.getText();
    arrival.name = reader.getText();
    arrival.next = reader.get<std::uint64_t>();
    arrival.had = reader.get<std::uint64_t>();
    return arrival;
  }
};

// One rank's part in making a group.
class Gathering {
 public:
  Gathering(Communicator& parent, const std::vector<int>& ranks, const Result<Options>& options)
      : parent_(parent), ranks_(ranks), options_(options) {
    const Membership& whole = parent.membership();
    membership_.control = whole.control;
    membership_.initTimeoutMs = whole.initTimeoutMs;
    list_ = mixKeys(whole.key, kKeyOfGroups);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == parent.rank()) membership_.rank = static_cast<int>(i);
      membership_.members.push_back(whole.members[static_cast<std::size_t>(ranks[i])]);
      list_ = mixKeys(list_, static_cast<std::uint64_t>(ranks[i]));
    }
    jobRanks_ = membership_.members;
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
  const std::vector<int>& ranks_;
  const Result<Options>& options_;
  Membership membership_;  // of the group; it takes it over
  std::vector<int> jobRanks_;
  std::uint64_t list_ = 0;  // follows from the parent and the list
};

Result<NewGroup> Gathering::meetAndMake(std::uint64_t had) {
  KOLO_ASSIGN(const std::vector<Arrival> arrivals, meet(had));
  KOLO_TRY(check(arrivals));
  const bool isThere =
      had != 0 && std::all_of(arrivals.begin(), arrivals.end(), [had](const Arrival& each) { return each.had == had; });
  if (isThere) return NewGroup{nullptr, had};
  NewGroup group;
  for (const Arrival& each : arrivals) group.number = std::max(group.number, each.next);
  parent_.subgroups().take(group.number);
  membership_.key = mixKeys(list_, group.number);
  const std::uint64_t key = membership_.key;
  const int rank = membership_.rank;
  KOLO_ASSIGN(group.made, undertake(parent_.membership().control, key, rank, kFamilyOfItsOwn,
                                    [&] { return Communicator::create(std::move(membership_), options_.value()); }));
  return group;
}

// The exchange has the parent's key: the abort of the parent, or another failure of it that some rank has reported,
// ends the wait.
Result<std::vector<Arrival>> Gathering::meet(std::uint64_t had) {
  const Status& mine = options_.status();
  Arrival arrival;
  arrival.code = mine.code();
  arrival.reason = mine.message().substr(0, kMostWords);
  arrival.name = mine.ok() ? options_.value().name : "";
  arrival.next = parent_.subgroups().next();
  arrival.had = had;
  const Result<std::vector<std::string>> told =
      membership_.control->allGather(parent_.membership().key, bootstrap::kPartialSequence | list_, membership_.members,
                                     membership_.rank, arrival.encode(), membership_.initTimeoutMs);
  if (told.status().code() == koloInProgress) return Status(koloUnreachable, told.status().message());
  KOLO_TRY(told.status());
  std::vector<Arrival> arrivals;
  for (const std::string& each : told.value()) arrivals.push_back(Arrival::decode(each));
  return arrivals;
}

// Whether all members can go on, and mean the same group.
Status Gathering::check(const std::vector<Arrival>& arrivals) const {
  KOLO_TRY(options_.status());
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& each = arrivals[i];
    if (each.code != koloSuccess)
      return error(failureCode(each.code), "on rank {} of {}: {}", ranks_[i], parent_.options().name, each.reason);
    if (each.next == 0 || each.next > kMostGroups)
      return error(koloRemoteError, "rank {} of {} proposes {} as the number of its next group, expected 1 to {}",
                   ranks_[i], parent_.options().name, each.next, kMostGroups);
  }
  const auto other = std::find_if(arrivals.begin(), arrivals.end(),
                                  [this](const Arrival& each) { return each.name != options_.value().name; });
  if (other == arrivals.end()) return {};
  return error(koloMismatch, "rank {} of {} calls the group \"{}\", rank {} calls it \"{}\"", parent_.rank(),
               parent_.options().name, options_.value().name,
               ranks_[static_cast<std::size_t>(other - arrivals.begin())], other->name);
}

// The ranks of the job too, by which the control plane names ranks, where they are others.
std::string Gathering::describe() const {
  const std::string ofTheJob =
      ranks_ == jobRanks_ ? "" : fmt::format(" (ranks {} of the job)", bootstrap::describeRanks(jobRanks_));
  return fmt::format("a group of ranks {} of communicator {}{}", bootstrap::describeRanks(ranks_),
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
