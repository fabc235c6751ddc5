// How bytes move: the part of a device that is called all the time.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "crc32c.h"
#include "device.h"
#include "remains.h"

namespace kolo::tcp {
namespace {

using std::chrono::milliseconds;

// Of the calls that wait for one peer, the share that looks at the others too.
constexpr unsigned kCallsPerLook = 64;
constexpr milliseconds kLookAfter{500};
// Requests of so few bytes may wait for the next call of the device, or for a longer one, and go with the others in one
// call of the kernel, and mostly in one packet; unless there are so many already. So may more bytes that have no
// signal, which nobody can use before the one that comes.
constexpr std::uint64_t kShort = 4096, kShortUnsignaled = 65536;
constexpr std::size_t kMostShort = 16;
// Rails that end one after the other belong together; those that are still open after this have lost their peer too.
constexpr milliseconds kEndTime{1000};
// How long giving back takes at most: a NIC sends what it has been given within microseconds, unless something is wrong
// with it.
constexpr milliseconds kTakeBackTime{1000};
// How long closing a device waits for peers that take nothing.
constexpr milliseconds kStall{2000};

}  // namespace

int Device::describe(Link& link, const koloTransportPut& put, const Why& why, Frame* frame) const {
  MemoryKey key{link.memory, link.bytes, 0};
  if (put.key != nullptr) std::memcpy(&key, put.key->data, sizeof key);
  if (put.bytes > 0 && (put.to > key.bytes || put.bytes > key.bytes - put.to)) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%llu bytes at offset %llu of a memory of %llu",
                    static_cast<unsigned long long>(put.bytes), static_cast<unsigned long long>(put.to),
                    static_cast<unsigned long long>(key.bytes));
  }
  *frame = {};
  frame->mark = Frame::kMark;
  frame->memory = put.bytes > 0 ? key.number : 0;
  frame->offset = put.bytes > 0 ? put.to : 0;
  frame->bytes = put.bytes;
  if (put.signalTo != KOLO_TRANSPORT_NO_SIGNAL) {
    if (put.signalTo % 8 != 0 || link.bytes < 8 || put.signalTo > link.bytes - 8) {
      return why.fail(KOLO_TRANSPORT_ERROR,
                      "a signal at offset %llu of a memory of %llu bytes, expected an aligned word inside",
                      static_cast<unsigned long long>(put.signalTo), static_cast<unsigned long long>(link.bytes));
    }
    frame->flags = Frame::kSignals;
    frame->signalMemory = link.memory;
    frame->signalOffset = put.signalTo;
    frame->signal = put.signal;
  }
  if (checksPayload_ && put.bytes > 0) {
    frame->flags |= Frame::kPayloadChecked;
    frame->payloadCrc = crc32c(0, put.from, put.bytes);
  }
  return KOLO_TRANSPORT_OK;
}

int Device::put(Link& link, const koloTransportPut& put, const Why& why) {
  if (const int code = checkProcess(party_, why); code != KOLO_TRANSPORT_OK) return code;
  Way& way = *link.way;
  if (way.isBroken) return why.fail(KOLO_TRANSPORT_LOST, "%s", way.why.c_str());
  if (isAbandoned_) return why.fail(KOLO_TRANSPORT_LOST, "its communicator has failed");
  if (put.rail >= way.rails.size()) {
    return why.fail(KOLO_TRANSPORT_ERROR, "rail %u of a link with %zu", put.rail, way.rails.size());
  }
  Frame frame;
  if (const int code = describe(link, put, why, &frame); code != KOLO_TRANSPORT_OK) return code;
  Rail& rail = *way.rails[put.rail];
  const std::uint32_t more =
      put.size >= offsetof(koloTransportPut, more) + sizeof put.more ? put.more : KOLO_TRANSPORT_NOTHING;
  const Sender::Outcome outcome = rail.sender.put(frame, put.from, &link.load, more == KOLO_TRANSPORT_LATER);
  if (outcome == Sender::Outcome::kFull) {
    return why.fail(KOLO_TRANSPORT_BUSY, "%zu requests to rank %u wait for its rail %u", Sender::kMostQueued,
                    way.peer.rank, put.rail);
  }
  // What stands in line for room in the kernel's buffers goes when there is some.
  const bool isFirst = !rail.isArmed && !rail.isAwaited;
  const bool isShort = put.bytes <= (put.signalTo == KOLO_TRANSPORT_NO_SIGNAL ? kShortUnsignaled : kShort);
  if (outcome == Sender::Outcome::kAccepted && isFirst && more != KOLO_TRANSPORT_NOTHING && isShort &&
      rail.sender.size() < kMostShort) {
    if (!std::exchange(rail.isGathering, true)) gathering_.push_back(&rail);
    return KOLO_TRANSPORT_OK;
  }
  if (outcome == Sender::Outcome::kAccepted && isFirst) (void)work(rail, false, true);
  return way.isBroken ? why.fail(KOLO_TRANSPORT_LOST, "%s", way.why.c_str()) : KOLO_TRANSPORT_OK;
}

// Sends the short requests that have been waiting for company.
bool Device::sendGathered() {
  bool hasMoved = false;
  for (Rail* const rail : std::exchange(gathering_, {})) {
    rail->isGathering = false;
    hasMoved |= work(*rail, false, true);
  }
  return hasMoved;
}

int Device::state(const Link& link, const Why& why) {
  if (const int code = checkProcess(party_, why); code != KOLO_TRANSPORT_OK) return KOLO_TRANSPORT_LOST;
  return link.way->isLost ? why.fail(KOLO_TRANSPORT_LOST, "%s", link.way->why.c_str()) : KOLO_TRANSPORT_OK;
}

bool Device::progress(int peer, int waitUs) {
  if (!party_.isOurs() || isAbandoned_) return false;
  adopt();
  bool hasMoved = gathering_.empty() ? false : sendGathered();
  const bool isOne = peer >= 0 && static_cast<std::size_t>(peer) < byRank_.size();
  if (isOne) {
    for (Way* const way : byRank_[static_cast<std::size_t>(peer)]) hasMoved |= work(*way);
  }
  if (!isOne || ++calls_ % kCallsPerLook == 0) hasMoved |= poll(0);
  if (!hasMoved && waitUs > 0) hasMoved = poll(waitUs);
  return hasMoved;
}

bool Device::work(Way& way) {
  bool hasMoved = false;
  for (const auto& rail : way.rails) {
    if (way.isLost) break;
    hasMoved |= work(*rail, true, true);
  }
  return hasMoved;
}

bool Device::work(Rail& rail, bool receives, bool sends) {
  Way& way = *rail.way;
  bool hasMoved = false;
  if (receives && !rail.hasEnded) {
    std::string wrong;
    hasMoved = way.receive(rail, scratch_, &wrong);
    if (!wrong.empty()) {
      lose(way, "it sent a frame that " + wrong);
      return true;
    }
    if (rail.hasEnded) checkEnded(way);
  }
  if (rail.sender.hasLent()) hasMoved |= rail.sender.reclaim(rail.socket.fd());
  if (sends && !way.isBroken && !rail.sender.isEmpty()) {
    hasMoved |= rail.sender.flush(rail.socket.fd());
    if (rail.sender.broken() != 0) breakDown(way, rail.sender.broken());
    if (!rail.sender.isEmpty()) await(rail);
  }
  return hasMoved;
}

// Nothing can be sent any more; what the peer sent before is still to be taken.
void Device::breakDown(Way& way, int errnum) {
  if (way.isBroken) return;
  way.isBroken = true;
  way.endedAt = Clock::now();
  way.why = fmt::format("rank {}: sending: {}", way.peer.rank, common::ErrorText(errnum).text);
  way.abandon();
}

void Device::checkEnded(Way& way) {
  const std::string reason = way.why.empty()
                                 ? "it has closed its connections: its process has ended, or has left the communicator"
                                 : "its connection ended: " + way.why;
  if (way.hasEnded()) return lose(way, reason);
  if (way.isBroken) return;
  way.isBroken = true;
  way.endedAt = Clock::now();
  way.why = fmt::format("rank {}: {}", way.peer.rank, reason);
  way.abandon();
}

void Device::await(Rail& rail) {
  if (rail.isArmed || rail.isAwaited) return;
  rail.isAwaited = true;
  blocked_.push_back(&rail);
}

void Device::arm(Rail& rail, bool wants) {
  if (rail.isArmed == wants) return;
  rail.isArmed = wants;
  epoll_event event{};
  event.events = wants ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = &rail;
  (void)epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, rail.socket.fd(), &event);
}

bool Device::poll(int waitUs) {
  for (Rail* const rail : blocked_) {
    rail->isAwaited = false;
    if (!rail->sender.isEmpty()) arm(*rail, true);
  }
  blocked_.clear();
  epoll_event events[32];
  const timespec wait{waitUs / 1000000, waitUs % 1000000 * 1000L};
  const int count = epoll_pwait2(epoll_.fd(), events, std::size(events), &wait, nullptr);
  adopt();  // events may be of ways that have just arrived
  bool hasMoved = false;
  for (int i = 0; i < count; ++i) {
    Rail& rail = *static_cast<Rail*>(events[i].data.ptr);
    if (rail.way->isLost) continue;
    const bool mayRead = (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0;
    hasMoved |= work(rail, mayRead, (events[i].events & EPOLLOUT) != 0);
    if (!rail.way->isLost && rail.sender.isEmpty()) arm(rail, false);
  }
  lookAfter();
  return hasMoved;
}

bool Device::takeRest(Way& way) {
  bool hasMoved = false;
  for (const auto& rail : way.rails) hasMoved |= !way.isLost && work(*rail, true, false);
  return hasMoved;
}

// Now and then: what no event tells.
void Device::lookAfter() {
  const Clock::time_point now = Clock::now();
  if (now < lookedAfter_ + kLookAfter) return;
  lookedAfter_ = now;
  for (const auto& way : ways_) {
    // What the peer sent before is taken first, if this thread has not been here for a while.
    if (!way->isLost && way->isBroken && now > way->endedAt + kEndTime && !takeRest(*way)) lose(*way, way->why);
    if (way->isLost) continue;
    const int silenceMs = way->silenceMs;
    const auto silent = std::find_if(way->rails.begin(), way->rails.end(),
                                     [&](const auto& rail) { return isSilent(rail->socket, silenceMs); });
    if (silent == way->rails.end()) continue;
    lose(*way,
         fmt::format("its host has not answered for {} ms (KOLO_SILENCE_MS); it is down, or the network between is",
                     silenceMs));
  }
}

// Bytes are sent and received in calls of this device only, and those do nothing from here on. What the kernel has
// taken still goes; but what it has been lent it would go on reading.
void Device::abandon() {
  isAbandoned_ = true;
  if (!party_.isOurs()) return;
  for (const auto& way : ways_) {
    if (way->isLost) continue;
    const bool hasLent =
        std::any_of(way->rails.begin(), way->rails.end(), [](const auto& rail) { return rail->sender.hasLent(); });
    for (const auto& rail : way->rails) {
      if (hasLent) takeBack(*rail);
    }
    if (hasLent) lose(*way, "its communicator has failed");
    else way->abandon();
  }
}

// The kernel forgets the connection, and what was to be sent by it; it gives back what it was lent when no packet that
// it has made of it is under way any more.
void Device::takeBack(Rail& rail) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(rail.socket.fd(), &nobody, sizeof nobody);
  const Clock::time_point deadline = Clock::now() + kTakeBackTime;
  while (rail.sender.hasLent() && Clock::now() < deadline) {
    if (!rail.sender.reclaim(rail.socket.fd())) std::this_thread::sleep_for(milliseconds(1));
  }
}

// Waits until the peers' kernels have everything, as long as that gets on. The rest is not waited for here.
void Device::finish() {
  const Clock::time_point deadline = Clock::now() + milliseconds(party_.closingMs());
  Clock::time_point giveUpAt = Clock::now() + kStall;
  adopt();
  std::uint64_t before = 0;
  for (int round = 0; Clock::now() < std::min(deadline, giveUpAt); ++round) {
    std::uint64_t left = 0;
    for (const auto& way : ways_) left += way->drain(scratch_);
    if (left == 0) return;
    if (std::exchange(before, left) != left) giveUpAt = Clock::now() + kStall;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(50 << std::min(round, 6), 2000)));
  }
  for (auto& way : ways_) {
    if (way->drain(scratch_) != 0) Remains::keep(std::move(way), milliseconds(party_.closingMs()));
  }
}

}  // namespace kolo::tcp
