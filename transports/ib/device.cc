#include "device.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

namespace kolo::ib {
namespace {

constexpr char kPurpose[] = "kolo transport ib";

}  // namespace

int Device::open(const koloTransportHost& host, koloTransportBlob* address, const Why& why) {
  logTo(host);
  settings_ = readSettings(host);
  if (const int code = openMember(host, kPurpose, &party_, why); code != KOLO_TRANSPORT_OK) return code;
  if (const int code = nics_.open(settings_, why); code != KOLO_TRANSPORT_OK) return code;
  if (const int code = makeProbes(why); code != KOLO_TRANSPORT_OK) return code;
  home_.emplace(Home{nics_, regions_, settings_, probeRoom_.data(), probes_->target(), logger()});
  service_.reset(new Service(*home_, *this));
  if (const int errnum = host.ranks > 1 ? service_->start() : 0; errnum != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "starting a thread: %s", ErrorText(errnum).text);
  }
  const connect::Wishes wishes{kPurpose, connect::settingOf(host, "KOLO_TCP_INTERFACES"),
                               connect::settingOf(host, "KOLO_PORT_RANGE"), 1};
  const int code = connect::openParty(host, wishes, this, &party_, why);
  if (code == KOLO_TRANSPORT_OK) toBlob(party_.address, address);
  return code;
}

int Device::makeProbes(const Why& why) {
  probeRoom_.resize(kProbeBytes * static_cast<std::size_t>(std::max(party_.ranks, 1)) + kProbeBytes);
  // Aligned to a word, as vectors are.
  return regions_.acquire({.address = probeRoom_.data(), .bytes = probeRoom_.size()}, true, why, &probes_);
}

// A NIC with several ports has what they have together.
int Device::tellNics(std::span<koloTransportNic> nics) {
  std::size_t count = 0;
  for (const Nic& nic : nics_.all()) {
    std::uint64_t megabits = 0;
    for (const auto& port : nics_.ports()) {
      if (&nics_.of(*port) == &nic && port->address.isFar == 0) megabits += port->megabits;
    }
    if (megabits == 0 || count == nics.size()) continue;
    nics[count] = {};
    nic.name.copy(nics[count].name, sizeof nics[count].name - 1);
    nics[count++].megabits = megabits;
  }
  return static_cast<int>(count);
}

Device::~Device() {
  connect::closeParty(party_);
  drain(nullptr);
  if (service_ != nullptr) service_->stop();
  (void)takeArrived();  // ways are of the NICs, which end before the connector
  ways_.clear();
  if (probes_ != nullptr) regions_.release(probes_);
}

// ---- the listener's and the service's threads

void Device::arrive(const connect::Caller& caller, std::vector<network::Socket> rails) {
  if (caller.rank < static_cast<std::uint32_t>(party_.ranks)) service_->answer(caller, std::move(rails.front()));
  else giveUp(caller);
}

void Device::greeted(const connect::Caller& peer, std::unique_ptr<Way> way) { accept(peer, std::move(way)); }

// While the core calls, the thread keeps its tick: to wake it for each message would cost a system call.
bool Device::hasWork() {
  const Lock lock(work_);
  return !active_.empty() || wasCalled_ || seenCalls_ != calls_;
}

// Unless the core is at it, which then looks after what no completion tells.
void Device::workInstead() {
  const Lock lock(work_);
  wasCalled_ = std::exchange(seenCalls_, calls_) != calls_;
  if (wasCalled_) return hasNews();
  (void)workAll(false, -1);
  lookAfter();
}

void Device::hasNews() { hasNews_.store(true, std::memory_order_release); }  // [ib news]

// ---- ways

void Device::hasArrived(Way&) { hasNews(); }

// What the other threads have brought becomes this thread's.
void Device::adopt() {
  byRank_.resize(static_cast<std::size_t>(party_.ranks));
  for (std::unique_ptr<Way>& way : takeArrived()) {
    byRank_[way->peer.rank] = way.get();
    ways_.push_back(std::move(way));
  }
}

Way* Device::findWay(const connect::IdKey& peer) {
  const Lock lock(work_);
  adopt();
  for (const auto& way : ways_) {
    way->lookAfter(Clock::now());
    if (way->isLost) forget(*way);
    else if (way->peer.device == peer) return way.get();
  }
  return nullptr;
}

int Device::makeWay(const connect::Caller& to, const connect::Address& peer, std::vector<network::Socket> rails,
                    Clock::time_point deadline, const Why& why, std::unique_ptr<Way>* way) {
  Greeting greeting(*home_, to, std::move(rails.front()), true);
  for (;;) {
    switch (greeting.advance()) {
      case Greeting::Outcome::kDone:
        *way = greeting.takeWay();
        service_->watch(way->get());
        return KOLO_TRANSPORT_OK;
      case Greeting::Outcome::kFailed:
        return why.fail(KOLO_TRANSPORT_UNREACHABLE, "rank %u (process %u): %s", peer.rank, peer.pid,
                        greeting.story().c_str());
      case Greeting::Outcome::kGoesOn: break;
    }
    const Clock::time_point now = Clock::now();
    if (now > deadline || greeting.isOld(now)) {
      return why.fail(KOLO_TRANSPORT_UNREACHABLE,
                      "rank %u (process %u) was reached, but takes too long to make queue pairs: %s", peer.rank,
                      peer.pid, greeting.story().c_str());
    }
    pollfd one{greeting.fd(), greeting.awaits(), 0};
    (void)poll(&one, 1, greeting.isTrying() ? 1 : 100);
  }
}

// ---- links

int Device::openLink(const connect::Address& peer, const Link& wanted, const Why& why, Link** opened) {
  Way* way = nullptr;
  const int code = connectTo(peer, why, &way);
  if (code != KOLO_TRANSPORT_OK) return code;
  const Lock lock(work_);
  links_.push_back(std::make_unique<Link>(wanted));
  links_.back()->way = way;
  *opened = links_.back().get();
  return KOLO_TRANSPORT_OK;
}

// What was accepted still goes; the core, which closes a link, may free what its requests are read from.
void Device::closeLink(Link* link) {
  if (!isOurs()) return;
  drain(&link->load);
  const Lock lock(work_);
  if (link->load.unfinished != 0) link->way->lose("the link was closed, and its last requests did not arrive in time");
  std::erase_if(links_, [&](const auto& one) { return one.get() == link; });
}

void Device::abandon() {
  if (!isOurs()) return;
  const Lock lock(work_);
  adopt();
  for (const auto& way : ways_) abandon(*way, "its communicator has failed");
}

// All lanes are closed when this returns.
void Device::abandonLink(Link& link) {
  if (!isOurs()) return;
  const Lock lock(work_);
  abandon(*link.way, "this rank has abandoned it for another transport");
}

void Device::abandon(Way& way, const char* why) {
  way.lose(why);
  way.forgetLast();
  forget(way);
}

int Device::registerRegion(const Range& range, const Why& why, Region** region) {
  const Lock lock(work_);
  return regions_.acquire(range, true, why, region);
}

Target Device::relax(Region& region) {
  const Lock lock(work_);
  regions_.relax(region);
  return region.relaxedTarget();
}

// The last to use it waits for all: which requests read it is not worth knowing. Requests that read a part of what
// stays registered may go on.
void Device::deregister(Region* region) {
  if (!isOurs()) return;
  if (region->users == 1 && region->whole == nullptr) drain(nullptr);
  const Lock lock(work_);
  regions_.release(region);
}

}  // namespace kolo::ib
