// Split. All ranks of the parent take part in two exchanges: one of colors and keys, and one of what each offers to the
// ranks of its color (comm/child.h). On one host, where nothing keeps any rank from the others' memory, the exchanges
// go through shared memory: the parent's bulletins. All ranks see in the first exchange of the parent, which goes
// through the control plane, whether that is so.
#include <sched.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>

#include "base/settings.h"
#include "bootstrap/wire.h"
#include "comm/child.h"
#include "comm/parts.h"
#include "common/clock.h"

namespace kolo::comm {
namespace {

constexpr int kPolls = 2000;                  // of a rank that has a core of its own, before it lets others run
constexpr std::int64_t kYieldingNs = 50'000;  // for which a rank lets others run and looks again; then it sleeps
constexpr int kSleepUs = 10'000;              // after which it looks whether its communicator has failed
constexpr std::size_t kMostReasonBytes = 2000;

// Of the two exchanges of each split.
std::uint64_t exchangeNumber(std::uint64_t child, int step) { return 2 * child - 1 + static_cast<std::uint64_t>(step); }

// What a rank says first.
struct Call {
  int color = KOLO_SPLIT_NOCOLOR, key = 0;
  Status verdict;        // why it cannot go on
  bool isReady = false;  // to exchange texts by bulletins
  static auto fields(auto& it) { return std::tie(it.color, it.key, it.verdict, it.isReady); }
};

std::uint64_t keyOf(Communicator& parent, std::uint64_t child, int color) {
  return mixKeys(mixKeys(parent.membership().key, child), static_cast<std::uint64_t>(color));
}

// One rank's part in a split.
class Split {
 public:
  Split(Communicator& parent, int color, int key, std::uint64_t number)
      : parent_(parent), color_(color), key_(key), number_(number),
        child_(parent, keyOf(parent, number, color), parent.failureState().interrupt()) {}

  const Membership& membership() const { return child_.membership(); }

  Result<Owned> make(Result<Options> options, bool isNamed) {
    KOLO_TRY(meet(options.status()));
    if (options.ok() && !isNamed) options.value().name = fmt::format("{}/{}", parent_.options().name, color_);
    const bool isMember = color_ != KOLO_SPLIT_NOCOLOR;
    std::vector<std::string> all, offers;
    if (areOnBulletins()) {
      const bool isReady = isMember && verdict_.ok();
      KOLO_ASSIGN(all, tell(1, isReady ? child_.offer(options.value(), Bulletin::kTextBytes) : ""));
      for (const int rank : child_.ranks()) offers.push_back(std::move(all[static_cast<std::size_t>(rank)]));
    }
    KOLO_TRY(verdict_);
    if (!isMember) return Owned();
    return child_.make(options.value(), offers);
  }

 private:
  bool areOnBulletins() const { return parent_.share() != nullptr && parent_.share()->isPlaced(); }
  Status meet(const Status& mine);
  Result<std::vector<std::string>> tell(int step, std::string_view mine);
  Status whyNotYet(const std::vector<Bulletin*>& bulletins, std::uint64_t number, std::int64_t waitedNs) const;
  bool isReadyForBulletins() const;

  Communicator& parent_;
  const int color_, key_;
  const std::uint64_t number_;  // of the split
  Child child_;
  Status verdict_;  // why some rank of the parent cannot go on
};

Result<std::vector<std::string>> Split::tell(int step, std::string_view mine) {
  if (!areOnBulletins()) return parent_.membership().allGather(mine);
  const std::vector<Bulletin*> bulletins = parent_.share()->bulletins();
  const std::uint64_t number = exchangeNumber(number_, step);
  int polls = parent_.ranks() <= parent_.waiter().cores() ? kPolls : 0;
  std::int64_t startedNs = 0;
  return exchange(bulletins, parent_.rank(), number, mine, [&]() -> Result<int> {
    if (parent_.failed()) return parent_.failure();
    if (polls-- > 0) return 0;
    polls = 0;
    const std::int64_t now = nowNs();
    if (startedNs == 0) startedNs = now;
    KOLO_TRY(whyNotYet(bulletins, number, now - startedNs));
    if (now - startedNs > kYieldingNs) return kSleepUs;
    sched_yield();
    return 0;
  });
}

// Errors: this rank has waited for too long.
Status Split::whyNotYet(const std::vector<Bulletin*>& bulletins, std::uint64_t number, std::int64_t waitedNs) const {
  const int limitMs = parent_.membership().initTimeoutMs;
  if (limitMs <= 0 || waitedNs <= limitMs * std::int64_t{1'000'000}) return {};
  const std::vector<int> missing = absentees(bulletins, number);
  return error(koloTimeout, "waited {} ms (KOLO_INIT_TIMEOUT_MS) for {} {} to split communicator {}", limitMs,
               missing.size() == 1 ? "rank" : "ranks", bootstrap::describeRanks(missing), parent_.options().name);
}

bool Split::isReadyForBulletins() const {
  if (areOnBulletins() || parent_.ranks() > Pool::kMostRanks) return areOnBulletins();
  std::vector<int> all(static_cast<std::size_t>(parent_.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return sharesMemory(parent_, all);
}

// The ranks that give the same color, and whether a rank of the parent, this one included, has said that it cannot go
// on.
Status Split::meet(const Status& mine) {
  const Status reason(mine.code(), mine.message().substr(0, kMostReasonBytes));
  const Call own{color_, key_, reason, isReadyForBulletins()};
  const Result<std::vector<std::string>> told = tell(0, links::encode(own));
  if (!areOnBulletins() && parent_.share() != nullptr && parent_.membership().isUnanswered) {
    // The others may have decided to meet on bulletins, and this rank does not know.
    const Status& why = told.status();
    parent_.failureState().fail({why.code(), parent_.membership().jobRank(parent_.rank()),
                                 fmt::format("on rank {}: {}", parent_.rank(), why.message())});
  }
  KOLO_TRY(told.status());
  std::vector<Call> calls;
  std::transform(told.value().begin(), told.value().end(), std::back_inserter(calls), links::decode<Call>);
  std::vector<std::pair<int, int>> group;  // (key, parent's rank)
  bool areAllReady = true;
  verdict_ = mine;
  for (int rank = 0; rank < parent_.ranks(); ++rank) {
    const Call& call = calls[static_cast<std::size_t>(rank)];
    if (call.color == color_) group.emplace_back(call.key, rank);
    areAllReady = areAllReady && call.isReady;
    if (verdict_.ok() && !call.verdict.ok())
      verdict_ = error(call.verdict.code(), "on rank {}: {}", rank, call.verdict.message());
  }
  std::sort(group.begin(), group.end());
  std::vector<int> ranks;
  for (const auto& [key, rank] : group) ranks.push_back(rank);
  child_.setMembers(std::move(ranks));
  if (areAllReady && !areOnBulletins()) parent_.share()->placeFirst();
  return {};
}

}  // namespace

Result<Owned> split(Communicator& parent, int color, int key, const koloConfig_t* config) {
  const std::uint64_t number = ++parent.children().splits;
  const Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  const bool isNamed = config != nullptr && config->name != nullptr;
  Result<Owned> made = withoutExceptions([&] {
    Split split(parent, color, key, number);
    return undertake(split.membership(), [&] { return split.make(options, isNamed); });
  });
  // Ranks of the parent that are not to be in this communicator wait for this one, too.
  const std::shared_ptr<Share>& share = parent.share();
  if (!made.ok() && share != nullptr) share->ownBulletin().giveUp(exchangeNumber(number, 1), made.status());
  return made;
}

}  // namespace kolo::comm
