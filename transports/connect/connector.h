// A device's connections to those of its peers: of two that dial each other at once, one connection is left, and a rank
// that cannot reach its peer waits for the peer to reach it.
//
// Thread safety: connectTo() and takeArrived() are called by the core's thread, the rest by any. Invariant: the lock
// guards which ways there are, and who is dialling. Lock order: the listener's before this one.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "dial.h"

namespace kolo::connect {

// Way has `peer`, a Caller, and isStale(): the peer has closed it.
template <class Way>
class Connector : protected Callee {
 protected:
  using Lock = std::unique_lock<std::mutex>;

  explicit Connector(Party& party) : party_(party) {}
  ~Connector() = default;

  void logTo(const koloTransportHost& host) {
    constexpr std::size_t kEndOfLog = offsetof(koloTransportHost, log) + sizeof host.log;
    if (host.size >= kEndOfLog) log_ = host.log;
  }
  void log(int level, const char* line) final {
    if (log_ != nullptr) log_(level, line);
  }
  void (*logger() const)(int, const char*) { return log_; }

  Decision decide(const Caller& caller) final {
    const Lock lock(lock_);
    const auto known = known_.find(caller.device);
    const IdKey own = keyOf(party_.address.device);
    const bool isSelf = caller.device == own;
    if (known != known_.end() && !isSelf && !known->second->isStale()) return Decision::kHave;
    if (dialling_ == caller.device && !isSelf && own < caller.device) return Decision::kMineFirst;
    ++accepting_[caller.device];
    return Decision::kTaken;
  }
  void giveUp(const Caller& caller) final { accept(caller, nullptr); }
  // What became of a caller that was taken; nullptr: nothing.
  void accept(const Caller& caller, std::unique_ptr<Way> way) {
    const Lock lock(lock_);
    if (way != nullptr) know(std::move(way));
    const auto accepting = accepting_.find(caller.device);
    if (--accepting->second == 0) accepting_.erase(accepting);
    changed_.notify_all();
  }

  // What has been brought since the last call.
  std::vector<std::unique_ptr<Way>> takeArrived() {
    const Lock lock(lock_);
    return std::exchange(arrived_, {});
  }
  // A way by which nothing is sent any more.
  void forget(const Way& way) {
    const Lock lock(lock_);
    if (const auto at = known_.find(way.peer.device); at != known_.end() && at->second == &way) known_.erase(at);
  }

  // *found: the way to the peer, which is made if there is none. As dial().
  int connectTo(const Address& peer, const Why& why, Way** found) {
    using std::chrono::milliseconds;
    // How long a dialler waits for the way that its peer is making.
    constexpr milliseconds kPatience{200};
    // A peer that cannot be reached may be able to reach this one: it is given so long to dial.
    constexpr milliseconds kGrace{1000};
    const IdKey id = keyOf(peer.device);
    const Clock::time_point deadline = Clock::now() + milliseconds(party_.timeoutMs);
    while ((*found = findWay(id)) == nullptr) {
      if (!startToDial(id)) {
        if (arrives(id, kPatience, deadline) || Clock::now() < deadline) continue;
        return why.fail(KOLO_TRANSPORT_ERROR, "rank %u takes too long", peer.rank);
      }
      bool isTaken = false;
      const int code = dialOnce(id, peer, deadline, why, &isTaken);
      if (isTaken && code == KOLO_TRANSPORT_OK) continue;
      if (arrives(id, code == KOLO_TRANSPORT_OK ? kPatience : isTaken ? milliseconds(0) : kGrace, deadline)) continue;
      if (code != KOLO_TRANSPORT_OK) return code;
      if (Clock::now() >= deadline) return failUncalled(party_, why, peer.rank);
    }
    return KOLO_TRANSPORT_OK;
  }

 private:
  // The way to that device by which requests may be sent, of those that have arrived, too; those that are over are
  // forgotten.
  virtual Way* findWay(const IdKey& peer) = 0;
  // From connections that the peer has taken.
  virtual int makeWay(const Caller& to, const Address& peer, std::vector<Socket> rails, Clock::time_point deadline,
                      const Why& why, std::unique_ptr<Way>* way) = 0;
  // With the lock held: the way will be among those that takeArrived() gives.
  virtual void hasArrived(Way& way) = 0;

  // As dial(); and *isTaken says whether the peer has taken the connections. REQUIRES: startToDial().
  int dialOnce(const IdKey& id, const Address& peer, Clock::time_point deadline, const Why& why, bool* isTaken) {
    struct Dialling {
      Connector& self;
      ~Dialling() {
        const Lock lock(self.lock_);
        self.dialling_.reset();
      }
    } const dialling{*this};
    Dialled dialled;
    std::unique_ptr<Way> way;
    int code = dial(party_, peer, deadline, why, &dialled);
    *isTaken = code == KOLO_TRANSPORT_OK && dialled.decision == Decision::kTaken;
    if (*isTaken)
      code = makeWay({id, peer.rank, dialled.key, cipherBetween(party_.address, peer)}, peer, std::move(dialled.rails),
                     deadline, why, &way);
    const Lock lock(lock_);
    if (way != nullptr) know(std::move(way));
    return code;
  }

  void know(std::unique_ptr<Way> way) {  // with the lock held; known and arrived, or neither
    Way& its = *way;
    arrived_.reserve(arrived_.size() + 1);
    known_[its.peer.device] = &its;
    arrived_.push_back(std::move(way));
    hasArrived(its);
  }
  // Not while there is a way, or the peer is making one.
  bool startToDial(const IdKey& id) {
    const Lock lock(lock_);
    if (known_.contains(id) || accepting_.contains(id)) return false;
    dialling_ = id;
    return true;
  }
  // Whether there is a way. A peer that is making one has until the deadline.
  bool arrives(const IdKey& id, std::chrono::milliseconds patience, Clock::time_point deadline) {
    const Clock::time_point until = std::min(Clock::now() + patience, deadline);
    Lock lock(lock_);
    while (!known_.contains(id) && Clock::now() < (accepting_.contains(id) ? deadline : until))
      changed_.wait_until(lock, std::min(deadline, Clock::now() + std::chrono::milliseconds(20)));
    return known_.contains(id);
  }

  Party& party_;
  void (*log_)(int, const char*) = nullptr;
  std::mutex lock_;  // the rest
  std::condition_variable changed_;
  std::map<IdKey, Way*> known_;  // the newest way to each peer, unless it is over
  std::vector<std::unique_ptr<Way>> arrived_;
  std::map<IdKey, int> accepting_;  // they are connecting to this rank just now
  std::optional<IdKey> dialling_;
};

}  // namespace kolo::connect
