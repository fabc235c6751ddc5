#include "gpu/proxy.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/quiet_thread.h"
#include "common/clock.h"

namespace kolo::gpu {
namespace {

using device::Fault;
using device::PostRequest;
using device::PostRing;

constexpr std::uint64_t kRoundsAwake = 64;          // rounds in which nothing moved, until it sleeps in the transport
constexpr int kNapUs = 50;                          // there: what a request may have to wait;
constexpr std::uint64_t kRoundsOfShortNaps = 4000;  // after so many rounds, a fifth of a second,
constexpr int kLongNapUs = 1000;                    // it may wait longer: a peer is late, or only a graph may launch
constexpr std::int64_t kLookNs = 10'000'000;        // between two looks at links and kernels
constexpr std::int64_t kPatienceNs = 500'000'000;   // until a lost link counts, or a goodbye (gpu/departures.h)

}  // namespace

Proxy::Proxy(Setup setup)
    : setup_(std::move(setup)), taken_(setup_.rings.size()), goodbyes_(static_cast<std::size_t>(setup_.peers->ranks())),
      goneNs_(goodbyes_.size()), given_(setup_.rings.size()), thread_(startQuietly([this] { work(); })) {}

Proxy::~Proxy() { end(); }

void Proxy::end() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void Proxy::expect(unsigned channels, bool again) {
  {
    const std::lock_guard lock(mutex_);
    for (unsigned channel = 0; channel < channels && !again; ++channel) ++given_[channel];
    again_ = again_ || again;
    ++news_;
  }
  changed_.notify_all();
}

void Proxy::finish(int timeoutMs) {
  std::unique_lock lock(mutex_);
  leaving_ = true;
  ++news_;
  changed_.notify_all();
  (void)changed_.wait_for(lock, std::chrono::milliseconds(timeoutMs), [this] { return ended_; });
  lock.unlock();
  stop();
}

void Proxy::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_.store(true, std::memory_order_relaxed);
    ++news_;
  }
  changed_.notify_all();
}

std::optional<Fault> Proxy::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

Status Proxy::lossOf(int peer) const {
  const std::lock_guard lock(mutex_);
  const auto at = losses_.find(peer);
  return at != losses_.end() ? at->second.why : Status();
}

// ---- the thread

void Proxy::work() {
  while (!stopped_.load(std::memory_order_relaxed)) {
    std::unique_lock lock(mutex_);
    const std::uint64_t news = news_;
    const bool leaves = leaving_,
               expects =
                   isExpected();  // before the rings are looked at: what has ended has written all it will [ended]
    lock.unlock();
    const bool moved = takeRequests();
    if (setup_.peers->progress(-1, 0) || moved) {
      idleRounds_ = 0;
    } else if (const bool empty = isEmpty(); empty && leaves && sayGoodbye()) {
      break;
    } else if (empty && !leaves && !expects) {
      look();  // what kernels have found before they ended
      lock.lock();
      changed_.wait(lock, [&] { return news_ != news; });
      idleRounds_ = 0;
      continue;
    } else {
      rest();
    }
    if (nowNs() - lookedNs_ >= kLookNs) look();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// Whether blocks may write requests. REQUIRES: the mutex.
bool Proxy::isExpected() const {
  for (std::size_t channel = 0; channel < given_.size(); ++channel) {
    if (device::loadAcquire(setup_.rings[channel].ended) < given_[channel]) return true;  // [ended]
  }
  return again_;
}

// Whether there is nothing to carry out, or to settle.
bool Proxy::isEmpty() {
  for (std::size_t channel = 0; channel < taken_.size(); ++channel) {
    const std::uint64_t number = taken_[channel] + 1;
    if (device::loadAcquire(setup_.rings[channel].places[number % device::kPostPlaces].number) == number)
      return false;  // [post]
  }
  const std::lock_guard lock(mutex_);
  const bool waits = std::any_of(losses_.begin(), losses_.end(), [](const auto& loss) {
    return !loss.second.isSettled && loss.second.request.has_value();
  });
  return !waits && setup_.peers->isFlushed();
}

bool Proxy::takeRequests() {
  bool moved = false;
  for (std::size_t channel = 0; channel < taken_.size(); ++channel) moved = takeFrom(channel) || moved;
  return moved;
}

// What a channel asks, as far as the transport has room.
bool Proxy::takeFrom(std::size_t channel) {
  PostRing& ring = setup_.rings[channel];
  const std::uint64_t before = taken_[channel];
  for (;;) {
    const std::uint64_t number = taken_[channel] + 1;
    const PostRequest& request = ring.places[number % device::kPostPlaces];
    if (device::loadAcquire(request.number) != number || !handOn(request)) break;  // [post]
    taken_[channel] = number;
    device::storeRelease(ring.taken, number);  // [taken]
  }
  return taken_[channel] != before;
}

// False: the transport has no room.
bool Proxy::handOn(const PostRequest& request) {
  const int peer = static_cast<int>(request.peer);
  if (lossOf(peer).ok()) {
    const unsigned char* const mirror = setup_.peers->partAt(peer);
    Status accepted =
        setup_.peers->put(peer, {request.rail, request.bytes != 0 ? mirror + request.dataAt : nullptr, request.bytes,
                                 reinterpret_cast<const device::Counter*>(mirror + request.counterAt), request.value});
    if (accepted.ok()) return true;
    if (accepted.code() == koloInProgress) return false;
    lose(peer, std::move(accepted));
  }
  refuse(request);
  return true;
}

// ---- what is lost

void Proxy::lose(int peer, Status why) {
  const std::lock_guard lock(mutex_);
  losses_.try_emplace(peer, Loss{std::move(why), nowNs(), std::nullopt, false});
}

// The request is for a peer to which the link is lost.
void Proxy::refuse(const PostRequest& request) {
  const std::lock_guard lock(mutex_);
  Loss& loss = losses_[static_cast<int>(request.peer)];
  if (loss.request.has_value()) return;
  loss.request = Fault{.kind = Fault::kLost,
                       .peer = static_cast<int>(request.peer),
                       .mine = request.word,
                       .mineCount = request.count,
                       .number = request.operation};
  loss.isSettled = false;
}

void Proxy::settleLosses() {
  const std::lock_guard lock(mutex_);
  for (auto& [peer, loss] : losses_) {
    if (loss.isSettled) continue;
    const bool left = setup_.departures->hasGone(peer);  // then it needed nothing any more
    if (!left && lookedNs_ - loss.sinceNs < kPatienceNs) continue;
    loss.isSettled = true;
    if (left) continue;
    setup_.departures->tellKernels(peer, device::kLinkLost);
    if (!fault_.has_value()) fault_ = loss.request;
  }
}

// All that the peer sent had been written when its goodbye was; after a while it is in place, wherever that is.
void Proxy::lookForGoodbye(int peer) {
  std::int64_t& since = goneNs_[static_cast<std::size_t>(peer)];
  if (!setup_.departures->hasGone(peer)) return;
  if (since == 0) since = lookedNs_;
  if (lookedNs_ - since >= kPatienceNs) setup_.departures->tellKernels(peer, device::kPeerLeft);
}

// At the links, what has been lost, and the kernels.
void Proxy::look() {
  lookedNs_ = nowNs();
  for (int rank = 0; rank < setup_.peers->ranks(); ++rank) {
    if (!isPosted(rank)) continue;
    lookForGoodbye(rank);
    if (!lossOf(rank).ok()) continue;
    if (Status state = setup_.peers->state(rank); !state.ok()) lose(rank, std::move(state));
  }
  settleLosses();
  if (setup_.kernelsGaveUp() || fault().has_value()) setup_.onFault();
}

// ---- rest, and the end

void Proxy::rest() {
  ++idleRounds_;
  if (idleRounds_ < kRoundsAwake) {
    sched_yield();
    return;
  }
  setup_.peers->progress(-1, idleRounds_ < kRoundsOfShortNaps ? kNapUs : kLongNapUs);
}

// True when all peers have been told, or cannot be.
bool Proxy::sayGoodbye() {
  for (int rank = 0; rank < setup_.peers->ranks(); ++rank) {
    if (!isPosted(rank)) continue;
    const std::uint32_t rails = (*setup_.peers)[rank].link->rails();
    for (std::uint32_t& rail = goodbyes_[static_cast<std::size_t>(rank)]; rail < rails && lossOf(rank).ok(); ++rail) {
      if (setup_.departures->say(rank, rail).code() == koloInProgress) return false;
    }
  }
  return setup_.peers->isFlushed();
}

}  // namespace kolo::gpu
