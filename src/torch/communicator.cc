#include "torch/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "torch/callbacks.h"
#include "torch/errors.h"
#include "torch/meeting.h"
#include "torch/signals.h"
#include "torch/without_gil.h"

namespace kolo::pytorch {
namespace {

koloConfig_t configOf(const Membership& member, const std::string& name, int device) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = timeoutMs(member.timeout);
  config.reproducible = member.settings.reproducible;
  config.algorithm = member.settings.algorithm.empty() ? nullptr : member.settings.algorithm.c_str();
  config.transports = member.settings.transports.empty() ? nullptr : member.settings.transports.c_str();
  config.name = name.c_str();
  config.device = device;
  return config;
}

// While a thread waits in Kolo. What a signal's handler raises there ends the wait, and with it the group.
void lookForSignals(void* comm) {
  const std::string raised = signals::look();
  if (!raised.empty()) (void)koloCommRevoke(static_cast<koloComm_t>(comm), raised.c_str());
}

}  // namespace

int timeoutMs(std::chrono::milliseconds timeout) {
  return static_cast<int>(std::clamp<std::int64_t>(timeout.count(), 0, std::numeric_limits<int>::max()));
}

Communicator::Communicator(koloComm_t comm, std::chrono::milliseconds timeout, std::string token, Origin origin)
    : comm_(comm), timeout_(timeout), token_(std::move(token)), root_(std::move(origin.root)),
      ranksInRoot_(std::move(origin.ranks)) {
  callbacks::enter();
  (void)koloCommSetWatch(comm, lookForSignals, comm);
}

std::shared_ptr<Communicator> Communicator::meet(const Membership& member, const std::string& key, int device) {
  const WithoutGil others;
  const auto whyInVain = [&kin = member.kin] { return deathAmong(kin); };
  Meeting meeting({*member.store, key, member.rank, member.size, member.name, member.timeout, whyInVain});
  Origin origin = findOrigin(meeting, {member.rank, member.size, member.name, member.settings.transports});
  // A group of the same name and the same members would be the same communicator.
  const std::string name = member.name + "/" + meeting.token();
  const koloConfig_t config = configOf(member, name, device);
  koloComm_t comm = nullptr;
  const koloResult_t result =
      koloCommCreateGroup(origin.root->comm(), origin.ranks.data(), member.size, nullptr, &comm, &config);
  share(origin.root, result == koloSuccess);
  std::shared_ptr<Communicator> made;
  if (result == koloSuccess)
    made = std::make_shared<Communicator>(comm, member.timeout, meeting.token(), std::move(origin));
  meeting.check(result);
  return made;
}

// A death may be known to some members alone. So they agree on who is left, too, by a bit for each.
std::pair<std::uint64_t, std::vector<int>> Communicator::agree(std::uint64_t flags) {
  const WithoutGil others;
  koloComm_t const comm = get();
  const auto agreeOn = [comm](std::uint64_t mine) {
    const koloResult_t result = koloCommAgree(comm, &mine);
    check(result == koloRemoteError ? koloSuccess : result, "kolo:agree");  // then they agree all the same
    return mine;
  };
  const int ranks = size();
  const std::uint64_t agreed = agreeOn(flags);
  std::vector<int> failed(static_cast<std::size_t>(ranks)), dead;
  int count = 0;
  check(koloCommFailedRanks(comm, failed.data(), &count), "kolo:agree");
  for (int first = 0; first < ranks; first += 64) {
    std::uint64_t living = ~std::uint64_t{0};
    for (int i = 0; i < count; ++i) {
      const int bit = failed[static_cast<std::size_t>(i)] - first;
      if (bit >= 0 && bit < 64) living &= ~(std::uint64_t{1} << bit);
    }
    living = agreeOn(living);
    for (int bit = 0; bit < 64; ++bit) {
      if ((living >> bit & 1) == 0) dead.push_back(first + bit);
    }
  }
  return {agreed, dead};
}

koloUniqueId Communicator::makeGrowthId() {
  const WithoutGil others;
  koloUniqueId id{};
  check(koloCommGetUniqueId(get(), &id), "kolo:growth_id");
  return id;
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int>& excluded, const Membership& member) {
  const WithoutGil others;
  const koloConfig_t config = configOf(member, member.name, KOLO_HOST);
  koloComm_t comm = nullptr;
  const koloResult_t result = koloCommShrink(get(), excluded.data(), static_cast<int>(excluded.size()), &comm, &config);
  std::shared_ptr<Communicator> made;
  // The ranks that shrink leave out the dead, also those that torch does not know of.
  const int expected = size() - static_cast<int>(excluded.size());
  int ranks = 0;
  if (result == koloSuccess && (koloCommCount(comm, &ranks) != koloSuccess || ranks != expected)) {
    koloCommAbort(comm);
    C10_THROW_ERROR(DistBackendError, "kolo:shrink: a rank that is not excluded has died: " + std::to_string(expected) +
                                          " ranks were to be left, and " + std::to_string(ranks) + " are");
  }
  if (result == koloSuccess) {
    Origin origin{root_.load(), {}};
    for (int rank = 0; rank < static_cast<int>(ranksInRoot_.size()); ++rank) {
      const bool stays = std::count(excluded.begin(), excluded.end(), rank) == 0;
      if (stays) origin.ranks.push_back(ranksInRoot_[static_cast<std::size_t>(rank)]);
    }
    made = std::make_shared<Communicator>(comm, member.timeout, token_ + "-" + std::to_string(++shrinks_),
                                          std::move(origin));
  }
  check(result, "kolo:shrink");
  return made;
}

koloComm_t Communicator::get() const {
  koloComm_t const comm = comm_.load(std::memory_order_acquire);
  if (comm == nullptr) [[unlikely]] {
    C10_THROW_ERROR(DistBackendError, "kolo: the process group was shut down or aborted");
  }
  return comm;
}

int Communicator::rank() const {
  int rank = -1;
  check(koloCommUserRank(get(), &rank), "kolo:rank");
  return rank;
}

int Communicator::size() const {
  int size = -1;
  check(koloCommCount(get(), &size), "kolo:size");
  return size;
}

koloResult_t Communicator::failure() const {
  koloComm_t const comm = comm_.load(std::memory_order_acquire);
  koloResult_t failure = koloSuccess;
  if (comm == nullptr || koloCommGetAsyncError(comm, &failure) != koloSuccess) return koloAborted;
  return failure;
}

// The root's failure tells the first death alone, so it is told only where there is no other.
std::string Communicator::deathAmong(const Kin& members) {
  const std::shared_ptr<Root> root = members.of != nullptr ? members.of->root_.load() : nullptr;
  if (root == nullptr) return {};
  const std::vector<int>& known = members.of->ranksInRoot_;
  const auto isOfAnother = [&](int rank) { return static_cast<std::size_t>(rank) >= known.size(); };
  if (std::any_of(members.ranks.begin(), members.ranks.end(), isOfAnother)) return {};  // numbers of another world
  const std::vector<int> failed = root->failedRanks();
  for (std::size_t i = 0; i < members.ranks.size(); ++i) {
    const int rank = members.ranks[i];
    const int inRoot = known[static_cast<std::size_t>(rank)];
    if (!std::binary_search(failed.begin(), failed.end(), inRoot)) continue;
    const std::string who = c10::str("rank ", i, " of the group (rank ", rank, " of ", members.name, ") has died");
    return failed.size() == 1 ? who + ": " + koloGetLastError(root->comm()) : who;
  }
  return {};
}

// A child that was forked has no handles: Kolo refuses what it tries to end.
void Communicator::end() { endBy(koloCommDestroy); }

void Communicator::abort() { endBy(koloCommAbort); }

// In the handler of a signal that a wait of this communicator's runs, Kolo refuses to end it: that comes later.
void Communicator::endBy(koloResult_t (*function)(koloComm_t)) {
  koloComm_t const comm = comm_.exchange(nullptr, std::memory_order_acq_rel);
  if (comm == nullptr) return;
  const WithoutGil others;
  if (function(comm) == koloInvalidUsage) {
    comm_.store(comm, std::memory_order_release);
  } else {
    callbacks::leave();
    root_.store(nullptr);
  }
}

void Communicator::revoke(const std::string& reason) {
  koloComm_t const comm = comm_.load(std::memory_order_acquire);
  if (comm != nullptr) (void)koloCommRevoke(comm, reason.c_str());
}

Deadline::Deadline(std::chrono::milliseconds wanted, const Communicator& communicator) {
  if (wanted == communicator.timeout()) [[likely]]
    return;
  set_ = koloSetTimeout(timeoutMs(wanted)) == koloSuccess;
}

}  // namespace kolo::pytorch
