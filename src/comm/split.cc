// Split. On one host the ranks exchange what is needed through shared memory, and the new communicator uses links and
// memory that the old one has (links/pool.h); else it is made as the first one was.
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "base/settings.h"
#include "bootstrap/wire.h"
#include "comm/parts.h"
#include "comm/undertake.h"
#include "common/clock.h"

namespace kolo::comm {
namespace {

constexpr int kPolls = 2000;                  // of a rank that has a core of its own, before it lets others run
constexpr std::int64_t kYieldingNs = 50'000;  // for which a rank lets others run and looks again; then it sleeps
constexpr int kSleepUs = 10'000;              // after which it looks whether its communicator has failed
constexpr std::size_t kMostReasonBytes = 2000;

// Of the two exchanges of each split.
std::uint64_t exchangeNumber(std::uint64_t child, int step) { return 2 * child - 1 + static_cast<std::uint64_t>(step); }

// How a rank of the parent waits for the others.
class PatientWait {
 public:
  PatientWait(Communicator& parent, const std::vector<Bulletin*>& bulletins, std::uint64_t number)
      : parent_(parent), bulletins_(bulletins), number_(number),
        polls_(parent.ranks() <= parent.waiter().cores() ? kPolls : 0) {}

  Result<int> operator()() {
    if (parent_.failed()) return parent_.failure();
    if (++rounds_ <= polls_) return 0;
    const std::int64_t now = nowNs();
    if (startedNs_ == 0) startedNs_ = now;
    const std::int64_t waited = now - startedNs_;
    const int limitMs = parent_.membership().initTimeoutMs;
    if (limitMs > 0 && waited > limitMs * std::int64_t{1'000'000}) return explain(limitMs);
    if (waited > kYieldingNs) return kSleepUs;
    sched_yield();
    return 0;
  }

 private:
  Status explain(int limitMs) const {
    const std::vector<int> missing = absentees(bulletins_, number_);
    return error(koloTimeout, "waited {} ms (KOLO_INIT_TIMEOUT_MS) for {} {} to split communicator {}", limitMs,
                 missing.size() == 1 ? "rank" : "ranks", bootstrap::describeRanks(missing), parent_.options().name);
  }

  Communicator& parent_;
  const std::vector<Bulletin*>& bulletins_;
  const std::uint64_t number_;
  const int polls_;
  int rounds_ = 0;
  std::int64_t startedNs_ = 0;
};

// What a rank of the new communicator offers to the others.
struct PartOffer {
  bool isReady = false;  // to use the pool
  std::uint64_t at = 0;  // where its block is
  std::string agreement;
  std::string around;

  std::string encode() const {
    BlobWriter writer;
    writer.put(static_cast<std::uint8_t>(isReady)).put(at).putText(agreement).putText(around);
    return writer.text();
  }
  static PartOffer decode(std::string_view text) {
    BlobReader reader(text);
    PartOffer offer;
    offer.isReady = reader.get<std::uint8_t>() == 1;
    offer.at = reader.get<std::uint64_t>();
    offer.agreement = reader.getText();
    offer.around = reader.getText();
    return offer;
  }
};

// One rank's part in a split.
class Split {
 public:
  Split(Communicator& parent, int color, int key, std::uint64_t child, std::shared_ptr<Share> share)
      : parent_(parent), color_(color), key_(key), child_(child), share_(std::move(share)) {
    membership_.rank = parent.rank();
    if (share_ == nullptr) return;
    bulletins_ = share_->bulletins();
    family_ = share_->pool()->family();
  }

  std::uint64_t key() const {
    return mixKeys(mixKeys(parent_.membership().key, child_), static_cast<std::uint64_t>(color_));
  }
  // Of the new communicator, as far as it is known.
  const int& rank() const { return membership_.rank; }
  const std::uint64_t& family() const { return family_; }

  Result<Owned> make(const Result<Options>& asked, bool isNamed) {
    Result<Options> options = asked;
    KOLO_TRY(findGroup(options.status()));
    if (options.ok() && !isNamed) options.value().name = fmt::format("{}/{}", parent_.options().name, color_);
    if (share_ != nullptr) return makeShared(options);
    KOLO_TRY(verdict_);
    if (color_ == KOLO_SPLIT_NOCOLOR) return Owned();
    return Communicator::create(std::move(membership_), options.value());
  }

 private:
  Result<std::vector<std::string>> tell(int step, std::string_view mine) {
    if (share_ == nullptr) return parent_.membership().allGather(mine);
    const std::uint64_t number = exchangeNumber(child_, step);
    return exchange(bulletins_, parent_.rank(), number, mine, PatientWait(parent_, bulletins_, number));
  }
  Status findGroup(const Status& mine);
  Result<Owned> makeShared(const Result<Options>& options);
  PartOffer offer(const Options& options);
  Status agree(const std::vector<PartOffer>& offers);
  Result<Owned> makeOver(const Options& options, const std::vector<PartOffer>& offers);

  Communicator& parent_;
  const int color_, key_;
  const std::uint64_t child_;
  const std::shared_ptr<Share> share_;  // the parent's; null: nothing is shared
  std::vector<Bulletin*> bulletins_;
  Status verdict_;            // why some rank of the parent cannot go on
  std::vector<int> group_;    // the parent's ranks that form the new communicator, in its order
  Membership membership_;     // of that
  std::uint64_t family_ = 0;  // of those that use the pool
  std::shared_ptr<Share> childShare_;
  std::unique_ptr<Peers> peers_;
};

// The ranks that give the same color, and whether a rank of the parent, this one included, has said that it cannot go
// on.
Status Split::findGroup(const Status& mine) {
  BlobWriter writer;
  writer.put(color_)
      .put(key_)
      .put(static_cast<std::int32_t>(mine.code()))
      .putText(std::string_view(mine.message()).substr(0, kMostReasonBytes));
  KOLO_ASSIGN(const std::vector<std::string> blobs, tell(0, writer.text()));
  std::vector<std::pair<int, int>> group;  // (key, parent's rank)
  verdict_ = mine;
  for (int rank = 0; rank < parent_.ranks(); ++rank) {
    BlobReader reader(blobs[static_cast<std::size_t>(rank)]);
    const int color = reader.get<int>(), key = reader.get<int>();
    if (color == color_) group.emplace_back(key, rank);
    const auto code = reader.get<std::int32_t>();
    if (code != koloSuccess && verdict_.ok())
      verdict_ = error(failureCode(code), "on rank {}: {}", rank, reader.getText());
  }
  std::sort(group.begin(), group.end());
  const Membership& whole = parent_.membership();
  membership_.control = whole.control;
  membership_.initTimeoutMs = whole.initTimeoutMs;
  membership_.key = key();
  for (std::size_t i = 0; i < group.size(); ++i) {
    const int rank = group[i].second;
    group_.push_back(rank);
    membership_.members.push_back(whole.members[static_cast<std::size_t>(rank)]);
    if (rank == parent_.rank()) membership_.rank = static_cast<int>(i);
  }
  return {};
}

// All ranks of the parent come here, also those without a color, and if there will be no communicator: the exchanges
// are the parent's, and a rank that left one out would overwrite what the others still read.
Result<Owned> Split::makeShared(const Result<Options>& asked) {
  const bool isMember = color_ != KOLO_SPLIT_NOCOLOR;
  const PartOffer mine = isMember && verdict_.ok() ? offer(asked.value()) : PartOffer();
  if (childShare_ != nullptr) childShare_->publish();
  KOLO_ASSIGN(const std::vector<std::string> texts, tell(1, mine.encode()));
  KOLO_TRY(verdict_);
  if (!isMember) return Owned();
  std::vector<PartOffer> offers;
  for (const int rank : group_) offers.push_back(PartOffer::decode(texts[static_cast<std::size_t>(rank)]));
  // All members see the same offers. So none uses the blocks if this one does not.
  const bool areReady = std::all_of(offers.begin(), offers.end(), [](const PartOffer& each) { return each.isReady; });
  const Status agreed = areReady ? agree(offers) : Status();
  if (areReady && agreed.ok()) return makeOver(asked.value(), offers);
  if (childShare_ != nullptr) childShare_->cancel();
  childShare_.reset();
  KOLO_TRY(agreed);
  family_ = 0;
  return Communicator::create(std::move(membership_), asked.value());
}

// Not ready: the options are not those of the pool, or it has no room.
PartOffer Split::offer(const Options& options) {
  const std::shared_ptr<Pool>& pool = share_->pool();
  if (options.device >= 0 || options.transports != pool->transports()) return {};
  const ArenaLayout layout =
      ArenaLayout::make(membership_.ranks(), static_cast<std::uint64_t>(settings::integer("KOLO_STAGING_BYTES")));
  std::vector<int> poolRanks;
  for (const int rank : group_) poolRanks.push_back(share_->poolRanks()[static_cast<std::size_t>(rank)]);
  childShare_ = Share::take(pool, poolRanks, membership_.rank, layout);
  if (childShare_ == nullptr) return {};
  peers_ = Peers::over(pool->peers(), pool, poolRanks, membership_.rank, staging(layout, membership_.rank));
  PartOffer mine;
  mine.isReady = true;
  mine.at = childShare_->offset();
  mine.agreement = options.agreement(layout);
  mine.around = tellSurroundings(*peers_);
  if (Bulletin::fits(mine.encode())) return mine;
  childShare_.reset();
  return {};
}

// Whether the members' settings are alike, and their blocks lie where blocks can.
Status Split::agree(const std::vector<PartOffer>& offers) {
  std::vector<std::uint64_t> offsets;
  const std::string& mine = offers[static_cast<std::size_t>(membership_.rank)].agreement;
  for (std::size_t i = 0; i < offers.size(); ++i) {
    if (offers[i].agreement != mine) {
      return error(koloMismatch, "settings differ: rank {} has {}, rank {} has {}", membership_.rank, mine, i,
                   offers[i].agreement);
    }
    offsets.push_back(offers[i].at);
  }
  return childShare_->place(offsets);
}

Result<Owned> Split::makeOver(const Options& options, const std::vector<PartOffer>& offers) {
  std::vector<std::string> around;
  for (const PartOffer& each : offers) around.push_back(each.around);
  for (int rank = 0; rank < membership_.ranks(); ++rank) peers_->setArena(rank, childShare_->arena(rank));
  membership_.family = family_;
  return Communicator::createOver(std::move(childShare_), std::move(peers_), std::move(membership_), options, around);
}

}  // namespace

Result<Owned> split(Communicator& parent, int color, int key, const koloConfig_t* config) {
  const std::uint64_t child = parent.nextChild();
  const Result<Options> options = withoutExceptions([&] { return Options::make(config, &parent.options()); });
  const bool isNamed = config != nullptr && config->name != nullptr;
  KOLO_ASSIGN(const std::shared_ptr<Share> share, parent.share(child));
  Result<Owned> made = withoutExceptions([&] {
    Split split(parent, color, key, child, share);
    return undertake(parent.membership().control, split.key(), split.rank(), split.family(),
                     [&] { return split.make(options, isNamed); });
  });
  // Ranks of the parent that are not to be in this communicator wait for this one, too.
  if (!made.ok() && share != nullptr) share->ownBulletin().giveUp(exchangeNumber(child, 1), made.status());
  return made;
}

}  // namespace kolo::comm
