#include "device.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace kolo::tcp {
namespace {

using connect::Decision;
using std::chrono::milliseconds;

// How long a dialler waits for the connections that its peer is making.
constexpr milliseconds kPatience{200};
// Lending pages to the kernel costs about what copying this many bytes does; and it spares a core only on networks of
// such a speed, in Mbit/s, for what is received on this host is copied anyway.
constexpr std::uint64_t kLendFrom = 64 << 10;
constexpr std::int64_t kLendSpeed = 25000;
// A peer that cannot be reached may be able to reach this one: it is given so long to dial.
constexpr milliseconds kGrace{1000};

}  // namespace

int Device::open(const koloTransportHost& host, koloTransportBlob* address, const Why& why) {
  constexpr std::size_t kEndOfLog = offsetof(koloTransportHost, log) + sizeof host.log;
  if (host.size >= kEndOfLog) log_ = host.log;
  checksPayload_ = connect::settingOf(host, "KOLO_TCP_CHECKSUM") == "1";
  if (const std::string bytes(connect::settingOf(host, "KOLO_TEST_TCP_ZEROCOPY_BYTES")); !bytes.empty())
    lendFrom_ = std::atoll(bytes.c_str());
  epoll_ = network::Socket(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return why.fail(KOLO_TRANSPORT_ERROR, "opening an epoll: %s", common::ErrorText(errno).text);
  }
  byRank_.resize(static_cast<std::size_t>(std::max(host.ranks, 1)));
  const std::string sockets(connect::settingOf(host, "KOLO_TCP_SOCKETS"));
  const connect::Wishes wishes{"kolo transport tcp", connect::settingOf(host, "KOLO_TCP_INTERFACES"),
                               connect::settingOf(host, "KOLO_PORT_RANGE"), std::atoi(sockets.c_str())};
  const int code = connect::openParty(host, wishes, this, &party_, why);
  if (code == KOLO_TRANSPORT_OK) common::toBlob(party_.address, address);
  return code;
}

Device::~Device() {
  const bool isOurs = party_.isOurs();
  if (isOurs) connect::closeParty(party_);
  if (isOurs && !isAbandoned_) finish();
}

// ---- the listener's thread

Decision Device::decide(const connect::Caller& caller) {
  const Lock lock(lock_);
  const auto known = known_.find(caller.device);
  const bool isSelf = caller.device == connect::keyOf(party_.address.device);
  if (known != known_.end() && !isSelf && !known->second->isStale()) return Decision::kHave;
  const bool isCrossing = dialling_ == caller.device && !isSelf;
  if (isCrossing && connect::keyOf(party_.address.device) < caller.device) return Decision::kMineFirst;
  ++accepting_[caller.device];
  return Decision::kTaken;
}

void Device::arrive(const connect::Caller& caller, std::vector<network::Socket> rails) {
  std::unique_ptr<Way> way = makeWay(caller, std::move(rails));
  const Lock lock(lock_);
  know(std::move(way));
  if (--accepting_[caller.device] == 0) accepting_.erase(caller.device);
  changed_.notify_all();
}

void Device::giveUp(const connect::Caller& caller) {
  const Lock lock(lock_);
  if (--accepting_[caller.device] == 0) accepting_.erase(caller.device);
  changed_.notify_all();
}

void Device::log(int level, const char* line) {
  if (log_ != nullptr) log_(level, line);
}

// ---- ways

std::unique_ptr<Way> Device::makeWay(const connect::Caller& peer, std::vector<network::Socket> rails) {
  auto way = std::make_unique<Way>();
  way->peer = peer;
  way->silenceMs = party_.silenceMs;
  for (network::Socket& socket : rails) {
    prepare(socket, party_.silenceMs);
    const std::uint64_t lends = lendFrom(socket);
    way->rails.push_back(std::make_unique<Rail>(way.get(), std::move(socket), memories_));
    way->rails.back()->sender.lendFrom(lends);
  }
  return way;
}

std::uint64_t Device::lendFrom(const network::Socket& socket) const {
  std::uint64_t bytes = lendFrom_ >= 0 ? static_cast<std::uint64_t>(lendFrom_) : kLendFrom;
  if (lendFrom_ < 0) {
    const network::Place* const place = connect::placeOf(party_, socket);
    const bool pays =
        place != nullptr && place->made == network::Made::kHardware && place->speed >= network::speedClass(kLendSpeed);
    if (!pays) bytes = Sender::kNever;
  }
  const int yes = 1;
  if (bytes != Sender::kNever && setsockopt(socket.fd(), SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) != 0)
    bytes = Sender::kNever;
  return bytes;
}

// REQUIRES: lock_ held
void Device::know(std::unique_ptr<Way> way) {
  const Way& its = *way;
  known_[its.peer.device] = way.get();
  arrived_.push_back(std::move(way));
  hasArrived_.store(true, std::memory_order_release);  // [tcp arrival]
  // Last, for the other thread may see an event at once.
  for (const auto& rail : its.rails) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = rail.get();
    (void)epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, rail->socket.fd(), &event);
  }
}

// What the listener's thread has brought becomes this thread's.
void Device::adopt() {
  if (!hasArrived_.load(std::memory_order_acquire)) return;  // [tcp arrival]
  const Lock lock(lock_);
  for (std::unique_ptr<Way>& way : arrived_) {
    if (way->peer.rank < byRank_.size()) byRank_[way->peer.rank].push_back(way.get());
    ways_.push_back(std::move(way));
  }
  arrived_.clear();
  hasArrived_.store(false, std::memory_order_relaxed);
}

Way* Device::findWay(const connect::IdKey& peer) {
  adopt();
  for (const auto& way : ways_) {
    if (way->peer.device == peer && !way->isLost && !way->isBroken) return way.get();
  }
  return nullptr;
}

int Device::connectTo(const connect::Address& peer, const Why& why, Way** found) {
  const connect::IdKey id = connect::keyOf(peer.device);
  const Clock::time_point deadline = Clock::now() + milliseconds(party_.timeoutMs);
  const auto arrives = [&](Clock::time_point until) {
    Lock lock(lock_);
    changed_.wait_until(lock, std::min(until, deadline), [&] { return known_.contains(id) && hasArrived_; });
    lock.unlock();
    return (*found = findWay(id)) != nullptr;
  };
  while ((*found = findWay(id)) == nullptr) {
    {
      Lock lock(lock_);
      if (hasArrived_) continue;
      if (accepting_.contains(id)) {
        lock.unlock();
        if (arrives(Clock::now() + kPatience)) break;
        lock.lock();
      }
      dialling_ = id;
    }
    connect::Dialled dialled;
    const int code = connect::dial(party_, peer, deadline, why, &dialled);
    std::unique_ptr<Way> way;
    const bool isTaken = code == KOLO_TRANSPORT_OK && dialled.decision == Decision::kTaken;
    if (isTaken) way = makeWay({id, peer.rank}, std::move(dialled.rails));
    {
      const Lock lock(lock_);
      dialling_.reset();
      if (isTaken) know(std::move(way));
    }
    if (isTaken) continue;
    if (arrives(Clock::now() + (code == KOLO_TRANSPORT_OK ? kPatience : kGrace))) break;
    if (code != KOLO_TRANSPORT_OK) return code;
    if (Clock::now() < deadline) continue;
    return connect::failUncalled(why, peer.rank);
  }
  return KOLO_TRANSPORT_OK;
}

void Device::lose(Way& way, const std::string& why) {
  if (way.isLost) return;
  way.isLost = way.isBroken = true;
  way.why = fmt::format("rank {}: {}", way.peer.rank, why);
  way.abandon();
  const auto isOfWay = [&](const Rail* rail) { return rail->way == &way; };
  std::erase_if(blocked_, isOfWay);
  std::erase_if(gathering_, isOfWay);
  const Lock lock(lock_);
  if (const auto at = known_.find(way.peer.device); at != known_.end() && at->second == &way) known_.erase(at);
  for (const auto& rail : way.rails) rail->socket.close();
}

// ---- memories and links

// A payload that is half there would go on into memory that may be anything by now. The way is lost with the frame's
// end, not at once: what this rank has sent by it is on its way still, and if the device is closed next, the peer is to
// have it.
void Device::deregister(std::uint64_t memory) {
  memories_.remove(memory);
  for (const auto& way : ways_) {
    for (const auto& rail : way->rails) rail->parser.forget(memory);
  }
}

int Device::openLink(const connect::Address& peer, std::uint64_t memory, std::uint64_t bytes, const Why& why,
                     Link** opened) {
  Way* way = nullptr;
  const int code = connectTo(peer, why, &way);
  if (code != KOLO_TRANSPORT_OK) return code;
  links_.push_back(std::make_unique<Link>(Link{way, memory, bytes, {}}));
  *opened = links_.back().get();
  return KOLO_TRANSPORT_OK;
}

void Device::closeLink(Link* link) {
  if (party_.isOurs() && !link->way->isLost) {
    for (const auto& rail : link->way->rails) rail->sender.release(&link->load);
  }
  std::erase_if(links_, [&](const auto& one) { return one.get() == link; });
}

}  // namespace kolo::tcp
