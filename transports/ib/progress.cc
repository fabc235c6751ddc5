// How requests get to the NICs: the part of a device that is called all the time.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "device.h"

namespace kolo::ib {
namespace {

using std::chrono::milliseconds;

// Between looks at what no completion tells: time that runs out.
constexpr milliseconds kLookAfter{100};
// Calls that find nothing before a waiting rank sleeps instead of yielding, and for how long then.
constexpr unsigned kYields = 2000;
constexpr int kNapUs = 50;
// Bytes without a signal that may wait for one, to be handed over with it.
constexpr std::uint64_t kUnsignaled = 65536;
// Ways at which nothing is under way that are looked at for packets in one call.
constexpr std::size_t kLooks = 8;

}  // namespace

int Device::describe(Link& link, const koloTransportPut& put, const Why& why, Request* request) {
  if (put.key == nullptr && put.bytes > 0 && (put.to > link.bytes || put.bytes > link.bytes - put.to)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%llu bytes at offset %llu of a memory of %llu",
                    static_cast<unsigned long long>(put.bytes), static_cast<unsigned long long>(put.to),
                    static_cast<unsigned long long>(link.bytes));
  }
  request->load = &link.load;
  request->rail = static_cast<std::uint8_t>(put.rail);
  request->from = static_cast<const unsigned char*>(put.from);
  request->bytes = put.bytes;
  request->data = link.memory;
  // What is named by a key may be a GPU's memory too, which no processor writes.
  request->isWritten = put.key != nullptr || link.isOfDevice;
  request->isOnce = put.key != nullptr && put.bytes != 0;
  if (put.key != nullptr) std::memcpy(&request->data, put.key->data, sizeof request->data);
  request->data.address += put.to;
  if (put.signalTo != KOLO_TRANSPORT_NO_SIGNAL) {
    if (put.signalTo % 8 != 0 || link.bytes < 8 || put.signalTo > link.bytes - 8) {
      return why.fail(KOLO_TRANSPORT_ERROR,
                      "a signal at offset %llu of a memory of %llu bytes, expected an aligned word inside",
                      static_cast<unsigned long long>(put.signalTo), static_cast<unsigned long long>(link.bytes));
    }
    request->hasSignal = true;
    request->isWord = link.isOfDevice;
    request->signal = put.signal;
    request->word = link.memory;
    request->word.address += put.signalTo;
  }
  request->region = static_cast<const Region*>(put.memory);
  constexpr std::size_t kEndOfMore = offsetof(koloTransportPut, more) + sizeof put.more;
  const std::uint32_t more = put.size >= kEndOfMore ? put.more : KOLO_TRANSPORT_NOTHING;
  // What is written straight to its place begins at once, unless nobody can use it before the signal that comes next.
  const bool isOfNoUse = !request->hasSignal && request->bytes <= kUnsignaled;
  request->mayWait = more != KOLO_TRANSPORT_NOTHING && (request->isShort() || isOfNoUse);
  request->isForLater = more == KOLO_TRANSPORT_LATER;
  return KOLO_TRANSPORT_OK;
}

int Device::put(Link& link, const koloTransportPut& put, const Why& why) {
  if (const int code = checkProcess(party_, why); code != KOLO_TRANSPORT_OK) return code;
  const Lock lock(work_);
  ++calls_;
  Way& way = *link.way;
  if (way.isLost) return answerLost(way, why);
  if (put.rail >= way.rails) return why.fail(KOLO_TRANSPORT_ERROR, "rail %u of a link with %u", put.rail, way.rails);
  Request request;
  if (const int code = describe(link, put, why, &request); code != KOLO_TRANSPORT_OK) return code;
  if (request.bytes == 0 && !request.hasSignal) return KOLO_TRANSPORT_OK;
  if (request.region == nullptr && !way.fitsInline(request.bytes)) {
    // Memory that nobody has registered is, for as long as the request lasts.
    Region* region = nullptr;
    const int code =
        regions_.acquire({.address = const_cast<void*>(put.from), .bytes = put.bytes}, false, why, &region);
    if (code != KOLO_TRANSPORT_OK) return code;
    request.region = region;
    request.ownsRegion = true;
  }
  const Way::Outcome outcome = way.put(request);
  activate(way);
  if (outcome == Way::Outcome::kAccepted) return way.isLost ? answerLost(way, why) : KOLO_TRANSPORT_OK;
  if (request.ownsRegion) regions_.release(const_cast<Region*>(request.region));
  if (outcome == Way::Outcome::kLost) return answerLost(way, why);
  return why.fail(KOLO_TRANSPORT_BUSY, "rail %u to rank %u has as many requests as may wait", put.rail, way.peer.rank);
}

// What the peer had sent is taken first: the core may give the way up for another one, by which a peer that has gone
// sends nothing again.
int Device::answerLost(Way& way, const Why& why) {
  if (way.takeLast()) return why.fail(KOLO_TRANSPORT_LOST, "%s", way.why.c_str());
  return why.fail(KOLO_TRANSPORT_BUSY, "what rank %u sent last is being taken", way.peer.rank);
}

void Device::activate(Way& way) {
  if (way.isIdle() || std::exchange(way.isActive, true)) return;
  active_.push_back(&way);
  service_->rouse();
}

int Device::state(const Link& link, const Why& why) {
  if (const int code = checkProcess(party_, why); code != KOLO_TRANSPORT_OK) return KOLO_TRANSPORT_LOST;
  const Lock lock(work_);
  if (hasNews_.load(std::memory_order_relaxed)) lookAfter();
  // What had come before is taken first.
  return link.way->isLost && link.way->takeLast() ? why.fail(KOLO_TRANSPORT_LOST, "%s", link.way->why.c_str())
                                                  : KOLO_TRANSPORT_OK;
}

Load Device::loadOf(const Link& link) {
  const Lock lock(work_);
  return link.load;
}

bool Device::progress(int peer, int waitUs) {
  if (!isOurs()) return false;
  bool hasMoved;
  {
    const Lock lock(work_);
    ++calls_;
    hasMoved = workAll(true, peer);
  }
  if (hasMoved) idle_ = 0;
  else if (waitUs > 0) rest(waitUs);
  return hasMoved;
}

// Packets may come by any way: that of the rank that is waited for is looked at in each call, the others in turn.
bool Device::workAll(bool byCore, int peer) {
  if (hasNews_.load(std::memory_order_relaxed)) lookAfter();
  bool hasMoved = false, isOneIdle = false;
  const auto look = [&](Way& way) {
    if (way.isActive || way.isLost) return;
    const bool hasPolled = way.poll();
    if (!hasPolled && !way.hasPackets()) return;
    hasMoved = way.work(byCore) || hasPolled || hasMoved;
    activate(way);
  };
  Way* const first =
      peer >= 0 && static_cast<std::size_t>(peer) < byRank_.size() ? byRank_[static_cast<std::size_t>(peer)] : nullptr;
  if (first != nullptr) look(*first);
  for (std::size_t i = 0; i < std::min(kLooks, ways_.size()); ++i) {
    Way* const way = ways_[nextWay_++ % ways_.size()].get();
    if (way != first) look(*way);
  }
  for (Way* const way : active_) {
    hasMoved = (!way->isLost && way->poll()) || hasMoved;
    hasMoved = way->work(byCore) || hasMoved;
    if (!way->isIdle()) continue;
    way->isActive = false;
    isOneIdle = true;
  }
  if (isOneIdle) std::erase_if(active_, [](const Way* way) { return !way->isActive; });
  return hasMoved;
}

void Device::lookAfter() {
  (void)hasNews_.exchange(false, std::memory_order_acquire);  // [ib news]
  adopt();
  const Clock::time_point now = Clock::now();
  lookedAfter_ = now;
  for (const auto& way : ways_) {
    const bool wasLost = way->isLost;
    way->lookAfter(now);
    if (way->isLost && !wasLost) forget(*way);
    activate(*way);
  }
}

// What has come is asked of the NIC, and no descriptor tells of it, so that these calls must be short. Yielding leaves
// the core to threads that have something to do. On a machine with a core for each rank there are none, and the next
// look comes at once. After some thousand looks in vain nobody notices a nap of a twentieth of a millisecond.
void Device::rest(int waitUs) {
  {
    const Lock lock(work_);
    if (Clock::now() > lookedAfter_ + kLookAfter) lookAfter();
  }
  if (++idle_ < kYields) {
    sched_yield();
    return;
  }
  const timespec nap{0, std::min(waitUs, kNapUs) * 1000L};
  nanosleep(&nap, nullptr);
}

// Until the load is carried out, or, without one, all that was accepted; or is lost, or the time is over.
void Device::drain(const Load* load) {
  const Clock::time_point deadline = Clock::now() + milliseconds(party_.closingMs());
  for (unsigned round = 0;; ++round) {
    {
      const Lock lock(work_);
      if (load != nullptr && load->unfinished == 0) return;
      ++calls_;
      if (workAll(true, -1)) round = 0;
      if (active_.empty() || Clock::now() > deadline) return;
    }
    if (round > 100) rest(kNapUs);
  }
}

}  // namespace kolo::ib
