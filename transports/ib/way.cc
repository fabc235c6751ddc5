#include "way.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kolo::ib {
namespace {

using std::chrono::milliseconds;

// Of one rail, beyond what is under way.
constexpr std::size_t kMostWaiting = 256;
// How long the peer may take to close a lane: its service thread does that at once, if the process runs.
constexpr milliseconds kClosingTime{10000};
// A port may be down for a moment; another lane is taken at once, but the last one is not given up so soon.
constexpr milliseconds kDownTime{3000};
// Without the connection, writes tell whether the peer lives.
constexpr milliseconds kTryTime{1000};

// Requests that may wait for others do so until there are so many.
constexpr std::size_t kMostHeld = 16;
// The buffers of a lane that is closed come back at once, or the NIC does not do as it should. It is a driver's thread
// that brings them back for NICs that are software, and a busy machine lets that thread wait.
constexpr milliseconds kLastTime{10000};

constexpr const char* kRefused = "posting a request was refused";

bool sameWord(const Request& a, const Request& b) { return std::memcmp(&a.word, &b.word, sizeof a.word) == 0; }

// Errors that another way would not cure: the request itself is wrong, here or there. IBV_WC_LOC_QP_OP_ERR is not one
// of them: it says that the queue pair could not do its work, as Soft-RoCE's cannot when its port has just gone down.
bool isOfRequest(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_RDD_VIOL_ERR:
    case IBV_WC_MW_BIND_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_OP_ERR: return true;
    default: return false;
  }
}

}  // namespace

// Rails go by the lanes in turn.
void Way::start() {
  rails_.resize(rails);
  for (std::size_t i = 0; i < rails_.size(); ++i) rails_[i].lane = i % lanes.size();
}

bool Way::fitsInline(std::uint64_t bytes) const {
  return std::all_of(lanes.begin(), lanes.end(), [&](const auto& lane) { return lane->fitsInline(bytes); });
}

std::size_t Way::openLanes() const {
  return static_cast<std::size_t>(
      std::count_if(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->isOpen; }));
}

Way::Outcome Way::put(const Request& request) {
  if (rails_.empty()) start();
  if (isLost) return Outcome::kLost;
  Rail& rail = rails_[request.rail];
  Lane& lane = *lanes[rail.lane];
  if (rail.waiting.empty() && !request.mayWait && lane.isOpen && lane.add(request)) {
    ++request.load->unfinished;
    if (!lane.send()) fail(lane, kRefused);
    return Outcome::kAccepted;
  }
  if (rail.waiting.size() >= kMostWaiting) {
    (void)pollLane(lane);
    (void)pump(rail);
    if (isLost) return Outcome::kLost;
    if (rail.waiting.size() >= kMostWaiting) return Outcome::kBusy;
  }
  ++request.load->unfinished;
  if (!request.isForLater) ++request.load->queued;
  rail.waiting.pushBack(request);
  if (!request.mayWait || rail.waiting.size() >= kMostHeld) (void)pump(rail);
  return Outcome::kAccepted;
}

bool Way::isIdle() const {
  if (isLost) return hasTakenLast_;
  return std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->isIdle(); }) &&
         std::all_of(rails_.begin(), rails_.end(), [](const Rail& rail) { return rail.waiting.empty(); });
}

bool Way::poll() {
  bool hasMoved = false;
  for (const auto& lane : lanes) {
    if (isLost || !lane->isOpen) continue;
    hasMoved = pollLane(*lane) || hasMoved;
    if (lane->isOpen) lane->wantCompletion(marker);
  }
  return hasMoved;
}

// The service may have taken them from the NIC; those of a lane that is closed are still to be.
bool Way::hasPackets() const {
  return closings_.load(std::memory_order_acquire) != 0 ||  // [closing]
         std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->packets().hasArrived(); });
}

bool Way::work(bool byCore) {
  if (isLost) return byCore && !hasTakenLast_ && takeLast();
  bool hasMoved = byCore && take();
  for (Rail& rail : rails_) {
    if (!isLost && !rail.waiting.empty()) hasMoved = pump(rail) || hasMoved;
  }
  for (const auto& lane : lanes) {
    if (!isLost && lane->isOpen && !lane->isClosing() && !lane->giveBack()) fail(*lane, kRefused);
  }
  return hasMoved;
}

bool Way::pump(Rail& rail) {
  Lane& lane = *lanes[rail.lane];
  bool hasMoved = false;
  while (lane.isOpen && !rail.waiting.empty() && lane.add(rail.waiting.front())) {
    const Request& first = rail.waiting.front();
    if (first.load != nullptr && !first.isForLater) --first.load->queued;
    rail.waiting.popFront();
    hasMoved = true;
  }
  if (hasMoved && !lane.send()) fail(lane, kRefused);
  return hasMoved;
}

// ---- what has come

// Carries out the packets that have come. Packets of lanes that are closed go first, in the order in which they were
// closed: what the peer repeats by another lane says that what came by this one is in place, and its signals are newer.
// The peer repeats nothing before it has heard that the lane is closed, which is said after closing() is set [closing];
// so if a packet that was repeated has been taken from the NIC, as it has by poll(), before this is asked, then the
// lane is seen to be closing here, and all its buffers come back: with a packet, or flushed.
bool Way::take() {
  bool hasMoved = false, isHeldUp = false;
  for (Lane* const lane : closedLanes()) {  // [closing]
    if (!lane->packets().isDrained()) hasMoved = pollLane(*lane) || hasMoved;
    hasMoved = takeFrom(*lane) || hasMoved;
    if (hasTakenLast_) return true;
    isHeldUp = !lane->packets().isDrained();
    if (isHeldUp) break;
  }
  if (!isHeldUp || hasMoved) heldUpSince_ = {};
  else if (heldUpSince_ == Clock::time_point{}) heldUpSince_ = Clock::now();
  else if (!isLost && Clock::now() > heldUpSince_ + kLastTime)
    lose("the buffers of a queue pair that has ended do not come back");
  for (const auto& lane : lanes) {
    if (isLost || isHeldUp || lane->isClosing()) continue;
    hasMoved = takeFrom(*lane) || hasMoved;
  }
  return hasMoved;
}

std::vector<Lane*> Way::closedLanes() const {
  std::vector<Lane*> closed;
  if (closings_.load(std::memory_order_acquire) == 0) return closed;  // [closing]
  for (const auto& lane : lanes) {
    if (lane->isClosing()) closed.push_back(lane.get());
  }
  std::sort(closed.begin(), closed.end(), [](const Lane* a, const Lane* b) { return a->closing() < b->closing(); });
  return closed;
}

void Way::close(Lane& lane) { lane.close(closings_.fetch_add(1, std::memory_order_acq_rel) + 1); }

bool Way::takeFrom(Lane& lane) {
  Packets& packets = lane.packets();
  const bool hasAny = packets.hasArrived();
  for (; packets.hasArrived(); packets.pop()) {
    if (carryOut(lane.port().nic, packets.front())) continue;
    lose("it has written to memory that is not registered here, or not any more");
    forgetLast();
    break;
  }
  return hasAny;
}

// False: a record is none, or names memory that is not the peers'.
bool Way::carryOut(std::size_t nic, const Packets::Packet& packet) {
  if (packet.bytes > kPacketBytes) return false;
  for (std::uint32_t at = 0; at < packet.bytes;) {
    Record record;
    if (packet.bytes - at < sizeof record) return false;
    std::memcpy(&record, packet.data + at, sizeof record);
    if (record.bytes > kShortBytes || Record::room(record.bytes) > packet.bytes - at) return false;
    if (record.bytes != 0) {
      if (!regions_.mayWrite(nic, record.key, record.to, record.bytes)) return false;
      std::memcpy(reinterpret_cast<void*>(record.to), packet.data + at + sizeof record, record.bytes);
    }
    if (record.word != 0) {
      if (record.word % 8 != 0 || !regions_.mayWrite(nic, record.wordKey, record.word, sizeof record.value))
        return false;
      // Behind these bytes, and all that was carried out or written before: a reader of the word acquires them.
      __atomic_store_n(reinterpret_cast<std::uint64_t*>(record.word), record.value, __ATOMIC_RELEASE);
    }
    at += Record::room(record.bytes);
  }
  return true;
}

bool Way::takeLast() {
  if (hasTakenLast_) return true;
  if (take()) lastCameAt_ = Clock::now();
  const bool isDrained =
      std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->packets().isDrained(); });
  hasTakenLast_ = hasTakenLast_ || isDrained || Clock::now() > lastCameAt_ + kLastTime;
  return hasTakenLast_;
}

// ---- completions

void Way::finish(const Request& request) {
  if (request.load != nullptr) --request.load->unfinished;
  if (request.ownsRegion) regions_.release(const_cast<Region*>(request.region));
}

bool Way::pollLane(Lane& lane) {
  const Lane::Polled polled = lane.poll([this](const Request& request) { finish(request); });
  if (polled.status != IBV_WC_SUCCESS && lane.isOpen && !isLost) failBy(lane, polled.status);
  return polled.hasMoved;
}

// ---- failover

int Way::indexOf(const Lane& lane) const {
  return static_cast<int>(
      std::find_if(lanes.begin(), lanes.end(), [&](const auto& one) { return one.get() == &lane; }) - lanes.begin());
}

void Way::failBy(Lane& lane, ibv_wc_status status) {
  const char* const text = drivers::verbs().value()->statusText(status);
  if (!isOfRequest(status)) return fail(lane, text);
  lose(fmt::format("{}: a write ended with \"{}\": it was refused as it is, so that no other way would help",
                   lane.port().name, text));
}

void Way::fail(Lane& lane, const std::string& what) {
  if (!lane.isOpen || isLost) return;
  lane.isOpen = false;
  close(lane);
  const int index = indexOf(lane);
  story_ += fmt::format("{}lane {} by {}: {}", story_.empty() ? "" : "; ", index, lane.port().name, what);
  sayClosed(static_cast<std::size_t>(index));
  if (openLanes() == 0) return lose(fmt::format("no way is left: {}", story_));
  if (lane.carriesOnce())
    return lose(fmt::format("{}, with bytes on their way to a user's buffer, which are not sent twice", story_));
  failedAt_ = Clock::now();
  saidMask_ = 0;  // what was said may have been on this very lane
  sayClosedByWrite();
  if (isLost) return;
  if (log != nullptr) {
    log(1, fmt::format("transport ib: rank {}: lane {} by {} failed ({}); its rails go by another one", peer.rank,
                       index, lane.port().name, what)
               .c_str());
  }
  if (lane.isClosedThere.load(std::memory_order_acquire)) moveRails(static_cast<std::size_t>(index));  // [closed]
}

// REQUIRES: both ends have closed the lane.
void Way::moveRails(std::size_t from) {
  Lane& lane = *lanes[from];
  if (lane.isMoved || isLost) return;
  if (rails_.empty()) start();
  lane.isMoved = true;
  const std::vector<Request> underWay = lane.takeUnderWay();
  std::size_t next = from;
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (rail.lane != from) continue;
    do next = (next + 1) % lanes.size();
    while (!lanes[next]->isOpen);
    rail.lane = next;
    std::vector<Request> its;
    std::copy_if(underWay.begin(), underWay.end(), std::back_inserter(its),
                 [&](const Request& request) { return request.rail == i; });
    replay(rail, its);
  }
  for (Rail& rail : rails_) {
    if (!isLost) pump(rail);
  }
}

// Puts them before what waits: all bytes, then the newest value of each signal. The bytes are written: if the peer has
// had them, it may have shown that, and what is put next to the same place is perhaps written, and would find its first
// bytes overwritten again when a packet is carried out.
void Way::replay(Rail& rail, const std::vector<Request>& requests) const {
  const std::vector<Request> waiting = rail.waiting.takeAll();
  for (Request request : requests) {
    if (request.bytes == 0) continue;
    request.load = nullptr;
    request.ownsRegion = request.hasSignal = request.isWord = false;
    request.isWritten = true;
    rail.waiting.pushBack(request);
  }
  for (auto at = requests.begin(); at != requests.end(); ++at) {
    if (at->load == nullptr) continue;  // a word of the transport's own, or bytes that are repeated a second time
    Request request = *at;
    request.bytes = 0;
    const bool isNewest = request.hasSignal && std::none_of(std::next(at), requests.end(), [&](const Request& later) {
                            return later.hasSignal && sameWord(later, request);
                          });
    // One without a signal still tells when the bytes before it have arrived.
    if (!isNewest) {
      request.word = marker;
      request.isWord = true;
    }
    request.hasSignal = true;
    ++request.load->queued;
    request.isForLater = false;
    rail.waiting.pushBack(request);
  }
  for (const Request& request : waiting) rail.waiting.pushBack(request);
}

void Way::lookAfter(Clock::time_point now) {
  if (isLost) return;
  bool isOneUp = false, isWaiting = false;
  // Before what its end says: a peer that goes for want of a way has said so of its lanes.
  const bool isAlone = hasEnded.load(std::memory_order_acquire);  // [ended]
  hearClosedByWrite();
  for (const auto& lane : lanes) {
    if (lane->isOpen && lane->isClosedThere.load(std::memory_order_acquire))
      fail(*lane, "the peer has closed it");  // [closed]
    if (isLost) return;
  }
  for (const auto& lane : lanes)
    isOneUp = isOneUp || (lane->isOpen && !lane->port().isDown.load(std::memory_order_relaxed));
  if (isAlone) {
    const std::string before = story_.empty() ? "" : "; before that: " + story_;
    return lose(isOneUp ? "it has closed its connection: its process has ended, or has left the communicator" + before
                        : portsDown());
  }
  if (isSilent.load(std::memory_order_acquire)) tryLife(now);  // [ended]
  for (std::size_t i = 0; i < lanes.size() && !isLost; ++i) {
    Lane& lane = *lanes[i];
    if (!lane.isOpen && lane.isClosedThere.load(std::memory_order_acquire)) {  // [closed]
      moveRails(i);
    } else if (lane.isOpen && isOneUp && lane.port().isDown.load(std::memory_order_relaxed)) {
      fail(lane, "its port is down");
    }
    isWaiting = isWaiting || (!lane.isOpen && !lane.isMoved);
  }
  if (!isLost) sayClosedByWrite();
  if (isLost) return;
  if (!isWaiting) failedAt_ = {};
  if (isOneUp) downSince_ = {};
  else if (downSince_ == Clock::time_point{}) downSince_ = now;
  if (downSince_ != Clock::time_point{} && now > downSince_ + kDownTime) {
    lose(portsDown());
  } else if (failedAt_ != Clock::time_point{} && now > failedAt_ + kClosingTime) {
    lose(fmt::format("{}; the peer does not answer", story_));
  }
}

std::string Way::portsDown() const {
  std::string text = "no way is left: " + story_;
  for (const auto& lane : lanes) {
    if (lane->isOpen) text += fmt::format("{}{} is down", text.back() == ' ' ? "" : "; ", lane->port().name);
  }
  return text;
}

// The lanes are closed first: no NIC reads or writes this rank's memory any more for this peer's sake.
void Way::lose(const std::string& reason) {
  if (isLost) return;
  isLost = true;
  lastCameAt_ = Clock::now();
  why = fmt::format("rank {}: {}", peer.rank, reason);
  const auto drop = [this](const std::vector<Request>& requests) {
    for (const Request& request : requests) {
      if (request.load != nullptr) *request.load = {};
      if (request.ownsRegion) regions_.release(const_cast<Region*>(request.region));
    }
  };
  for (const auto& lane : lanes) {
    lane->isOpen = false;
    close(*lane);
    drop(lane->takeUnderWay());
  }
  for (Rail& rail : rails_) drop(rail.waiting.takeAll());
  for (std::size_t i = 0; i < lanes.size(); ++i) sayClosed(i);
  (void)shutdown(talk_.fd(), SHUT_RDWR);  // the peer loses it too
}

// ---- the connection

// From either thread, and once: the device's thread says it for a lane that fails here, the service's in answer to the
// peer.
void Way::sayClosed(std::size_t lane) {
  if (lanes[lane]->isClosingSaid.exchange(true)) return;
  Message message{};
  message.kind = Kind::kClosed;
  message.lane = static_cast<std::uint8_t>(lane);
  prove(message, peer.key);
  const std::lock_guard lock(talkLock_);
  talk_.say(message);
  (void)talk_.flush();  // some hundred bytes on a connection that carries nothing else: there is room
}

Way::Heard Way::hear() {
  for (;;) {
    Message message;
    {
      const std::lock_guard lock(talkLock_);
      if (!talk_.hear(sizeof message)) {
        const int failed = talk_.failed();
        const bool isOfNetwork =
            failed == ETIMEDOUT || failed == EHOSTUNREACH || failed == ENETUNREACH || failed == ENETDOWN;
        return failed == 0 ? Heard::kGoesOn : isOfNetwork ? Heard::kSilent : Heard::kEnded;
      }
      talk_.copyHeard(&message);
      talk_.forget();
    }
    if (!isProven(message, peer.key) || message.kind != Kind::kClosed || message.lane >= lanes.size())
      return Heard::kEnded;
    Lane& lane = *lanes[message.lane];
    close(lane);  // before it is said, for the peer then repeats what it has sent
    sayClosed(message.lane);
    lane.isClosedThere.store(
        true, std::memory_order_release);  // [closed] what the peer still had on its way has come, or never will
  }
}

// Says by writes, too, which lanes are closed, if a lane is left.
void Way::sayClosedByWrite() {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < lanes.size(); ++i) mask |= lanes[i]->isOpen ? 0 : std::uint64_t{1} << i;
  if (mask != saidMask_ && postTo(closedThere, (theirNonce & ~kClosedBits) | mask)) saidMask_ = mask;
}

void Way::hearClosedByWrite() {
  const std::uint64_t word = __atomic_load_n(closedHere, __ATOMIC_ACQUIRE);
  if (((word ^ ownNonce) & ~kClosedBits) != 0) return;  // nothing yet, or of a way before this one
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if ((word >> i & 1) == 0 || lanes[i]->isClosedThere.load(std::memory_order_relaxed)) continue;
    close(*lanes[i]);
    lanes[i]->isClosedThere.store(true, std::memory_order_release);  // [closed]
  }
}

// A write is acknowledged as long as the peer's process has its queue pairs.
void Way::tryLife(Clock::time_point now) {
  if (now < triedAt_ + kTryTime) return;
  triedAt_ = now;
  (void)postTo(marker, 0);
}

// By the first lane that has room; false: none has.
bool Way::postTo(const Target& word, std::uint64_t value) {
  for (const auto& lane : lanes) {
    if (!lane->isOpen || !lane->hasRoomForWord()) continue;
    if (!lane->sendWord(word, value)) fail(*lane, kRefused);
    return true;
  }
  return false;
}

bool Way::isStale() { return hasEnded.load(std::memory_order_acquire) || network::hasEnded(talk_.fd()); }  // [ended]

}  // namespace kolo::ib
