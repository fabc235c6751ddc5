#include "comm/child.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/log.h"
#include "base/settings.h"
#include "comm/parts.h"

namespace kolo::comm {

struct Child::Offer {
  std::uint64_t blockAt;
  std::string agreement;  // settings that have to be alike
  std::string around;

  static auto fields(auto& it) { return std::tie(it.blockAt, it.agreement, it.around); }
};

bool sharesMemory(Communicator& parent, const std::vector<int>& ranks) {
  const std::shared_ptr<Share>& share = parent.share();
  if (share == nullptr) return false;
  for (const int rank : ranks) {
    if (rank == parent.rank()) continue;
    const Status opened = parent.peers().open(rank);
    const int inPool = share->poolRanks()[static_cast<std::size_t>(rank)];
    const std::string why = opened.ok() ? share->pool()->whyNotShared(inPool) : opened.message();
    if (why.empty()) continue;
    log::info("communicator {} shares no memory: {}", parent.options().name, why);
    return false;
  }
  return true;
}

Child::Child(Communicator& parent, std::uint64_t key, const std::shared_ptr<bootstrap::Interrupt>& interrupt)
    : parent_(parent) {
  const Membership& whole = parent.membership();
  membership_.control = whole.control;
  membership_.initTimeoutMs = whole.initTimeoutMs;
  membership_.key = key;
  membership_.interrupt = interrupt;
  membership_.rank = parent.rank();  // until its own is known
}

void Child::setMembers(std::vector<int> ranks) {
  ranks_ = std::move(ranks);
  for (const int rank : ranks_) membership_.members.push_back(parent_.membership().jobRank(rank));
  const auto own = std::find(ranks_.begin(), ranks_.end(), parent_.rank());
  membership_.rank = static_cast<int>(own - ranks_.begin());
}

std::string Child::offer(const Options& options, std::size_t most) {
  const std::shared_ptr<Pool> pool = parent_.share() != nullptr ? parent_.share()->pool() : nullptr;
  const bool isAlike = pool != nullptr && options.device < 0 && options.transports == pool->transports();
  if (!isAlike || !sharesMemory(parent_, ranks_)) return {};
  const ArenaLayout layout =
      ArenaLayout::make(membership_.ranks(), static_cast<std::uint64_t>(settings::integer("KOLO_STAGING_BYTES")));
  std::vector<int> poolRanks;
  for (const int rank : ranks_) poolRanks.push_back(parent_.share()->poolRanks()[static_cast<std::size_t>(rank)]);
  share_ = Share::take(pool, poolRanks, membership_.rank, layout);
  if (share_ == nullptr) return {};
  peers_ = Peers::over(pool->peers(), pool, poolRanks, membership_.rank, staging(layout, membership_.rank));
  membership_.family = pool->family();
  const Offer mine{share_->at(), options.agreement(layout), tellSurroundings(*peers_)};
  std::string text = links::encode(mine);
  share_->publish();
  if (text.size() <= most) return text;
  withdraw();
  return {};
}

void Child::withdraw() {
  if (share_ != nullptr) share_->cancel();
  share_.reset();
  membership_.family = 0;
}

void Child::leave() {
  if (share_ == nullptr) return;
  share_->ownBulletin().leave();
  device::storeRelease(reinterpret_cast<links::Board*>(share_->ownArena())->left, 1);  // [left]
}

// All members see the same offers. So none uses the blocks if this one does not.
Result<Owned> Child::make(const Options& options, const std::vector<std::string>& offers) {
  const bool areShared =
      !offers.empty() && std::none_of(offers.begin(), offers.end(), [](const auto& each) { return each.empty(); });
  if (areShared) return makeOver(options, offers);
  withdraw();
  return Communicator::create(std::move(membership_), options);
}

// Errors: the members' settings differ, or a block does not lie where blocks can. All members see that alike.
Status Child::agree(const std::vector<Offer>& offers) const {
  std::vector<std::uint64_t> places;
  const std::string& mine = offers[static_cast<std::size_t>(membership_.rank)].agreement;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].agreement != mine) {
      return error(koloMismatch, "settings differ: rank {} has {}, rank {} has {}", membership_.rank, mine, rank,
                   offers[rank].agreement);
    }
    places.push_back(offers[rank].blockAt);
  }
  return share_->place(places);
}

Result<Owned> Child::makeOver(const Options& options, const std::vector<std::string>& texts) {
  std::vector<Offer> offers;
  std::transform(texts.begin(), texts.end(), std::back_inserter(offers), links::decode<Offer>);
  if (Status agreed = agree(offers); !agreed.ok()) {
    withdraw();
    return agreed;
  }
  std::vector<std::string> around;
  for (const Offer& each : offers) around.push_back(each.around);
  for (int rank = 0; rank < membership_.ranks(); ++rank) peers_->setArena(rank, share_->arena(rank));
  return Communicator::createOver(std::move(share_), std::move(peers_), std::move(membership_), options, around);
}

}  // namespace kolo::comm
