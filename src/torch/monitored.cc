// A barrier that names the ranks that do not come. It goes through the store, which works whatever state the
// communicator is in, and rank 0's verdict is that of all ranks. Who waits asks whether the group has failed, too: of a
// rank that has died nothing comes any more.
#include <algorithm>
#include <chrono>
#include <cstdint>

#include "torch/backend.h"
#include "torch/signals.h"
#include "torch/without_gil.h"

namespace kolo::pytorch {
namespace {

constexpr Milliseconds kShortestLook{1}, kLongestLook{20};
constexpr Milliseconds kForVerdict{1000};  // rank 0 may come to its verdict when its time is over

using Clock = std::chrono::steady_clock;

// Looks, less and less often, until isThere() or the time is over. What the handler of a signal raises meanwhile ends
// the wait, and the group.
template <class IsThere>
bool wait(Communicator& group, Clock::time_point until, IsThere&& isThere) {
  bool found = isThere();
  for (Milliseconds nap = kShortestLook; !found && Clock::now() < until; nap = std::min(2 * nap, kLongestLook)) {
    std::this_thread::sleep_for(nap);
    if (const std::string raised = signals::look(); !raised.empty()) group.revoke(raised);
    found = isThere();
  }
  signals::endWait();
  return found;
}

// Whether it comes before the time is over, or the group has failed.
bool arrives(c10d::Store& store, const std::string& key, Clock::time_point until, Communicator& group) {
  bool isThere = false;
  (void)wait(group, until, [&] {
    const bool hasFailed = group.failure() != koloSuccess;
    isThere = store.check({key});
    return isThere || hasFailed;
  });
  return isThere;
}

// Why the group has failed; "": it has not.
std::string failureOf(const Communicator& group) {
  return group.failure() == koloSuccess ? "" : std::string(koloGetLastError(group.get()));
}

// In Gloo's words, which programs look for.
std::string verdictOn(const std::vector<int>& missing, Milliseconds timeout, const std::string& failure) {
  if (missing.empty()) return "";
  std::string ranks;
  for (const int rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  const std::string who =
      c10::str("[Rank 0]: Rank", missing.size() == 1 ? " " : "s ", ranks, " failed to pass ", "monitoredBarrier");
  return failure.empty() ? c10::str(who, " in ", timeout.count(), " ms: Rank 0 timed out in monitoredBarrier")
                         : c10::str(who, ": ", failure);
}

// Rank 0 may be the one that keeps the store, and may be about to end: it stays until the ranks that came have read its
// verdict.
void awaitReaders(c10d::Store& store, const std::string& key, int readers, Communicator& group) {
  (void)wait(group, Clock::now() + kForVerdict, [&] { return store.add(key, 0) >= readers; });
}

// Keys of a barrier that everybody has left. A store that cannot delete keeps them.
void forget(c10d::Store& store, const std::string& prefix, int size) {
  try {
    for (int rank = 1; rank < size; ++rank) store.deleteKey(prefix + std::to_string(rank));
    store.deleteKey(prefix + "verdict");
    store.deleteKey(prefix + "read");
  } catch (const std::exception&) {
  }
}

}  // namespace

void KoloBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool waitAllRanks) {
  const WithoutGil others;
  const Milliseconds timeout = deadline(options.timeout);
  const std::uint64_t number = monitoredBarriers_++;
  const auto prefixOf = [&](std::uint64_t n) {
    return "kolo/monitored/" + host_->token() + "/" + std::to_string(n) + "/";
  };
  const std::string prefix = prefixOf(number), verdictKey = prefix + "verdict";
  const auto until = Clock::now() + timeout;
  if (rank_ != 0) {
    store_->set(prefix + std::to_string(rank_), std::string("here"));
    bool said = arrives(*store_, verdictKey, until + kForVerdict, *host_);
    const std::string failure = said ? "" : failureOf(*host_);
    if (!failure.empty()) said = wait(*host_, Clock::now() + kForVerdict, [&] { return store_->check({verdictKey}); });
    const std::string verdict = said              ? store_->get_to_str(verdictKey)
                                : failure.empty() ? "rank 0 did not come in " + std::to_string(timeout.count()) + " ms"
                                                  : failure;
    if (said) store_->add(prefix + "read", 1);
    if (verdict.empty()) return;
    C10_THROW_ERROR(DistBackendError,
                    c10::str("Rank ", rank_, " successfully reached monitoredBarrier, but received errors while ",
                             "waiting for send/recv from rank 0: ", verdict));
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_ && (missing.empty() || waitAllRanks); ++rank) {
    if (!arrives(*store_, prefix + std::to_string(rank), until, *host_)) missing.push_back(rank);
  }
  const std::string verdict = verdictOn(missing, timeout, failureOf(*host_));
  if (size_ > 1) {
    store_->set(verdictKey, verdict);
    awaitReaders(*store_, prefix + "read", size_ - 1 - static_cast<int>(missing.size()), *host_);
  }
  if (number > 0) forget(*store_, prefixOf(number - 1), size_);
  if (!verdict.empty()) C10_THROW_ERROR(DistBackendError, verdict);
}

}  // namespace kolo::pytorch
