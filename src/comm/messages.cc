#include "comm/messages.h"

#include <algorithm>
#include <cstring>

#include "base/caller.h"
#include "base/datatypes.h"
#include "comm/requests.h"
#include "comm/turn.h"
#include "common/clock.h"
#include "device/copy_short.h"
#include "executor/host/reduce.h"

namespace kolo::comm {

using device::MessageKind;
using device::MessageLine;

Messages::Messages(const Setup& setup)
    : setup_(setup), peers_(setup.peers), layout_(setup.layout), windows_(setup.windows),
      pairs_(static_cast<std::size_t>(layout_.ranks)),
      eagerBytes_(std::min<std::uint64_t>(layout_.slotBytes, kEagerBytes)),
      calls_(reinterpret_cast<const device::Counter*>(peers_.arena() + layout_.callAt(0))) {
  for (int peer = 0; peer < layout_.ranks; ++peer) {
    if (peer == setup_.rank) continue;
    silent_.push_back(peer);
    Pair& pair = pairs_[static_cast<std::size_t>(peer)];
    const ArenaLayout::Part in = layout_.part(peers_.arena() + layout_.partAt(peer));
    pair.peer = peer;
    pair.in = in.lane;
    pair.inEager = in.eagerSlots;
    pair.inStream = in.streamSlots;
  }
}

void Messages::aim(Ends& ends) {
  const ArenaLayout::Part out = layout_.part(peers_.partAt(ends.peer));
  ends.isPosted = peers_[ends.peer].isPosted();
  ends.rails = setup_.traffic.railsTo(ends.peer);
  // A chunk by a posted link costs a signal, and another for the credit: the fewer the better.
  ends.chunkBytes = ends.isPosted ? layout_.slotBytes : std::min<std::uint64_t>(layout_.slotBytes, kStreamChunkBytes);
  ends.out = out.lane;
  ends.asleep = ends.isPosted ? nullptr : &setup_.boards.of(ends.peer).asleep;
  ends.outEager = out.eagerSlots;
  ends.outStream = out.streamSlots;
}

// Before the first word to a peer. False: it cannot be reached. Nothing more is done then (broken_), unless the peer
// has left: a wait for it finds that, and what it sent before is there all the same.
bool Messages::open(Pair& pair) {
  if (isStuck()) return false;
  device::Fault fault = setup_.traffic.open(pair.peer);
  if (fault.kind == device::Fault::kNone) {
    aim(pair);
    activate(pair.peer);
    fault = call(pair.peer);
  }
  if (!setup_.boards.hasLeft(pair.peer)) broken_ = fault;
  return fault.kind == device::Fault::kNone;
}

device::Fault Messages::call(int peer) {
  for (executor::WaitState state;;) {
    Status called = peers_.set(peer, layout_.callAt(setup_.rank), 1);  // [call] before the first line
    if (called.ok()) return {};
    const device::Fault fault = called.code() == koloInProgress ? setup_.traffic.checkWait(peer, state, true, nowNs())
                                                                : setup_.traffic.lost(peer, std::move(called));
    if (setup_.boards.hasLeft(peer)) return {};  // it listens no more
    if (fault.kind != device::Fault::kNone) return fault;
  }
}

void Messages::activate(int peer) {
  if (std::erase(silent_, peer) != 0) active_.push_back(peer);
}

// Takes in the peers that have begun to send.
void Messages::listen() {
  for (std::size_t i = 0; i < silent_.size();) {
    if (device::loadAcquire(calls_[silent_[i]]) != 0) {  // [call]
      activate(silent_[i]);
    } else {
      ++i;
    }
  }
}

void Messages::end(Request* request, Status status) {
  --unfinished_;
  setup_.requests.ended(*request, std::move(status));
  if (unfinished_ == 0 && settled_ != nullptr) (void)std::exchange(settled_, nullptr)->end({});
}

void Messages::endLost(Request& request, const Status& why) {
  std::uint64_t known = 0;
  forEach([&](Request&, int) { ++known; });
  if (known < unfinished_) end(&request, why);
}

void Messages::start(const Message& message, Request& request, bool isAlone) {
  const std::uint64_t bytes = message.count * elementBytes(message.datatype);
  const auto datatype = static_cast<std::uint8_t>(message.datatype);
  ++unfinished_;
  if (message.isSend) {
    Send send{static_cast<const unsigned char*>(message.send), bytes, message.peer, message.tag, datatype, &request};
    if (message.peer == setup_.rank) {
      sendToSelf(send);
    } else {
      Pair& pair = pairs_[static_cast<std::size_t>(message.peer)];
      if (!pair.sends.empty() || !startSend(pair, send, isAlone ? device::More::kNothing : device::More::kSoon))
        pair.sends.push_back(send);
    }
    return;
  }
  const Receive receive{static_cast<unsigned char*>(message.recv),
                        bytes,
                        message.peer,
                        message.tag,
                        datatype,
                        message.strict,
                        message.status,
                        &request};
  const auto match = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& arrived) {
    return accepts(receive, arrived.peer, arrived.tag);
  });
  if (match == unexpected_.end()) {
    receives_.push_back(receive);
    return;
  }
  const Unexpected arrived = std::move(*match);
  unexpected_.erase(match);
  deliver(receive, arrived);
}

bool Messages::accepts(const Receive& receive, int peer, int tag) const {
  return (receive.peer == KOLO_ANY_SOURCE || receive.peer == peer) &&
         (receive.tag == tag || (receive.tag == KOLO_ANY_TAG && tag >= 0));
}

// Status and errors of a message that has found its receive.
Status Messages::arrived(const Receive& receive, int peer, int tag, std::uint8_t datatype, std::uint64_t bytes) {
  if (receive.status != nullptr) {
    const std::size_t size = elementBytes(static_cast<koloDataType_t>(receive.datatype));
    *receive.status = {peer, tag, std::min(bytes, receive.capacity) / size};
  }
  const auto words = [](std::uint8_t type, std::uint64_t length) {
    const auto as = static_cast<koloDataType_t>(type);
    return fmt::format("count {} of {}", length / elementBytes(as), koloDataTypeName(as));
  };
  if (receive.strict && (bytes != receive.capacity || datatype != receive.datatype)) {
    return error(koloMismatch, "rank {} sent {}, rank {} receives {}", peer, words(datatype, bytes), setup_.rank,
                 words(receive.datatype, receive.capacity));
  }
  if (bytes > receive.capacity) {
    return error(koloTruncated, "rank {} sent {} with tag {}, rank {} has room for {}", peer, words(datatype, bytes),
                 tag, setup_.rank, words(receive.datatype, receive.capacity));
  }
  return {};
}

void Messages::deliver(const Receive& receive, const Unexpected& message) {
  inHand_ = receive.request;
  Status status = arrived(receive, message.peer, message.tag, message.datatype, message.bytes);
  const std::uint64_t bytes = std::min(message.bytes, receive.capacity);
  if (!message.isRequest) {
    if (bytes != 0) std::memcpy(receive.data, message.data.data(), bytes);
    end(std::exchange(inHand_, nullptr), std::move(status));
    return;
  }
  Pair& pair = pairs_[static_cast<std::size_t>(message.peer)];
  const bool canRead = !pair.isPosted && pair.out != nullptr;
  const device::Offer input = canRead ? offerOf(message.source) : device::Offer::kNothing;
  if (pathOf(false, input, device::Offer::kNothing) != device::Path::kPeerReads) {
    pair.answers.push_back(clear(pair, receive, message, std::move(status)));
  } else {
    std::optional<Status> taken = takeInPlace(pair, receive, message, bytes);
    if (!taken.has_value()) {
      receives_.push_back(receive);  // it ends with what ends the communicator
      inHand_ = nullptr;
      return;
    }
    pair.answers.push_back({MessageKind::kDone, message.id});
    end(std::exchange(inHand_, nullptr), status.ok() ? std::move(*taken) : std::move(status));
  }
  ++unanswered_;
  writeAnswers(message.peer);
}

// Out of the sender's memory. Nothing: the sender had its buffer back, perhaps before it was read. Then the receive
// does not end before this rank knows why the sender gave up, which is what it ends with.
std::optional<Status> Messages::takeInPlace(Pair& pair, const Receive& receive, const Unexpected& message,
                                            std::uint64_t bytes) {
  const device::WindowRef& at = message.source;
  bool isRead = true;
  if (at.index == 0) {
    isRead = setup_.traffic.read(pair.peer, receive.data, at.offset, bytes);
  } else if (const unsigned char* const source = setup_.traffic.placeIn(pair.peer, at, bytes); source != nullptr) {
    executor::copy(receive.data, source, bytes, bytes >= setup_.streamingBytes);
  } else {
    broken_ = setup_.reasons.distrust(
        pair.peer,
        fmt::format("a message of {} bytes at offset {} of window {}, where it has registered no such memory",
                    message.bytes, at.offset, at.index - 1));
    return std::nullopt;
  }
  if (setup_.traffic.mayHaveChanged(pair.peer)) {
    doubted_ = pair.peer;
    return std::nullopt;
  }
  return isRead ? Status() : setup_.reasons.messageUnread(pair.peer);
}

void Messages::sendToSelf(const Send& send) {
  const auto match = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Receive& receive) { return accepts(receive, send.peer, send.tag); });
  Unexpected message{send.peer, send.tag, send.datatype, send.bytes, {}, false, 0, {}};
  message.data.assign(send.data, send.data + send.bytes);
  end(send.request, {});
  if (match == receives_.end()) {
    unexpected_.push_back(std::move(message));
    return;
  }
  const Receive receive = *match;
  forget(match);
  deliver(receive, message);
}

bool Messages::progressPair(int peer, bool readsAll) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  const bool wrote = !pair.answers.empty() && writeAnswers(peer);
  const bool read = readLines(peer, readsAll);
  if (isStuck()) return wrote || read;
  const bool took = !pair.arriving.empty() && readChunks(peer);
  const bool gave = !pair.cleared.empty() && writeChunks(peer);
  const bool sent = !pair.sends.empty() && writeSends(peer);
  if (!pair.leaving.empty()) release(pair);
  return wrote || read || took || gave || sent;
}

bool Messages::goOn() {
  const bool moved = progress(true);
  endOverdue();
  return moved;
}

bool Messages::progress(bool readsAll) {
  if (isStuck()) return false;
  setup_.requests.takePost();
  // To look for what one peer sends costs less than to look for what anybody does.
  bool moved = setup_.traffic.posts() && setup_.traffic.progress(unfinished_ == 1 ? waitedFor() : -1);
  if (!silent_.empty()) listen();
  const std::size_t count = active_.size(), begin = first_;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (begin + i) % count;
    const Pair& pair = pairs_[static_cast<std::size_t>(active_[at])];
    const std::uint64_t before = pair.linesRead;
    moved = progressPair(pair.peer, readsAll) || moved;
    if (pair.linesRead != before)
      first_ = (at + 1) % count;  // the peer read last comes last: a receive from any source is fair
  }
  return moved;
}

// For messages of errors: somebody without whom this rank cannot go on; -1: anybody.
int Messages::waitedFor() const {
  if (doubted_ >= 0) return doubted_;
  if (!receives_.empty()) return receives_.front().peer;
  for (const int peer : active_) {
    const Pair& pair = pairs_[static_cast<std::size_t>(peer)];
    if (!pair.sends.empty() || !pair.asked.empty() || !pair.arriving.empty() || !pair.answers.empty() ||
        !pair.leaving.empty())
      return peer;
  }
  return -1;
}

bool Messages::needsCare() const {
  if (setup_.failure.isSet()) return unfinished_ != 0;
  if (unfinished_ != 0 || unanswered_ != 0 || isStuck()) return true;
  if (!setup_.traffic.posts()) return false;
  const auto held = setup_.traffic.hold();
  return !peers_.isFlushed();
}

Status Messages::attend(Request& request, const Aside* aside, std::int64_t untilNs) {
  const auto held = setup_.traffic.hold();
  executor::WaitState state;
  executor::Polling polling = setup_.waiter.polling();
  // Answers still to be written are somebody else's progress: this rank does not leave before they are out.
  while (!request.isOver() || unanswered_ != 0 || broken_.kind == device::Fault::kCorrupt) {
    if (setup_.traffic.posts()) polling.polls = setup_.traffic.looks();
    else polling.polls = state.naps ? 1 : setup_.waiter.polling().polls;
    if (polling.until([&] { return progress(false); })) {
      state = {};
      if (setup_.traffic.posts()) request.moved();  // a transport does not tell for which request it moves data
      if (aside != nullptr && aside->isBorrowed()) return {};  // its holder may be waiting for it
      continue;
    }
    const std::int64_t now = nowNs();
    if ((aside != nullptr && aside->isWanted()) || now >= untilNs) return {};
    if (state.startedNs == 0) state.checkedNs = state.saidNs = now;
    state.startedNs = request.waitsSince(now);
    const int peer = waitedFor();
    const device::Fault fault =
        broken_.kind != device::Fault::kNone ? broken_ : setup_.traffic.checkMessages(peer, state, now);
    if (fault.kind != device::Fault::kNone) return giveUp(fault, peer);
    endOverdue();
  }
  setup_.waiter.end();
  if (setup_.traffic.posts()) {
    if (const device::Fault fault = setup_.traffic.flush(true); fault.kind != device::Fault::kNone)
      return giveUp(fault, peers_.unflushed());
  }
  return {};
}

bool Messages::look(executor::WaitState& state) {
  const auto held = setup_.traffic.hold();
  const WithTimeout none(0);  // each request has its own
  if (progress(false)) {
    state = {};
    return true;
  }
  const int peer = waitedFor();
  const device::Fault fault =
      broken_.kind != device::Fault::kNone ? broken_ : setup_.traffic.checkMessages(peer, state, nowNs(), false);
  if (fault.kind != device::Fault::kNone) {
    (void)giveUp(fault, peer);
  } else {
    endOverdue();
  }
  return false;
}

// A request whose time is over ends the communicator. Any thread may find out.
void Messages::endOverdue() {
  if (unfinished_ == 0 || setup_.failure.isSet()) return;
  const std::optional<Overdue> late = overdue(nowNs());
  if (!late) return;
  const WithTimeout its(late->timeoutMs);
  (void)giveUp({device::Fault::kTimeout, late->peer, 0, 0}, late->peer);
}

// function(request, peer) for all that is under way.
template <class Function>
void Messages::forEach(const Function& function) const {
  if (inHand_ != nullptr) function(*inHand_, doubted_);
  for (const Receive& receive : receives_) function(*receive.request, receive.peer);
  for (const Pair& pair : pairs_) {
    for (const Send& send : pair.sends) function(*send.request, pair.peer);
    for (const Send& send : pair.asked) function(*send.request, pair.peer);
    for (const Stream& stream : pair.arriving) function(*stream.request, pair.peer);
    for (Request* const request : pair.leaving) function(*request, pair.peer);
  }
}

// The first of those whose time is over. Looked at every now and then.
std::optional<Messages::Overdue> Messages::overdue(std::int64_t now) {
  constexpr std::int64_t kInterval = 10'000'000;
  if (now - scannedNs_ < kInterval) return {};
  scannedNs_ = now;
  std::optional<Overdue> first;
  forEach([&](Request& request, int peer) {
    const int limitMs = request.timeoutMs() >= 0 ? request.timeoutMs() : setup_.timeoutMs;
    const std::int64_t since = request.waitsSince(now);
    if (first || limitMs == 0 || now - since <= limitMs * std::int64_t{1'000'000}) return;
    setup_.waiter.say(peer, true, since, now);
    first = {peer, request.timeoutMs()};
  });
  return first;
}

Status Messages::settle() {
  {
    const auto held = setup_.traffic.hold();
    while (progress(false)) {  // what has come is received
    }
  }
  std::deque<Receive> unmatched;
  if (!isStuck()) unmatched = std::exchange(receives_, {});
  for (const Receive& receive : unmatched) {
    end(receive.request,
        error(koloAborted, "communicator {} was ended on rank {} before a message came for this receive", setup_.name,
              setup_.rank));
  }
  Request last(1);
  if (isIdle()) {
    (void)last.end({});
  } else {
    settled_ = &last;
  }
  const WithTimeout none(0);  // each request has its own
  Status status = attend(last, nullptr, INT64_MAX);
  settled_ = nullptr;
  return status;
}

void Messages::endAll(const Status& why) {
  const auto held = setup_.traffic.hold();
  endAllHere(why);
}

// With the links held.
void Messages::endAllHere(const Status& why) {
  if (goesStraight()) peers_.abandon();
  const auto endEach = [&](auto& those) {
    while (!those.empty()) {
      Request* const request = those.back().request;
      those.pop_back();
      end(request, why);
    }
  };
  unanswered_ = 0;
  for (Pair& pair : pairs_) {
    pair.cleared.clear();
    pair.answers.clear();
    endEach(pair.sends);
    endEach(pair.asked);
    endEach(pair.arriving);
    for (; !pair.leaving.empty(); pair.leaving.pop_back()) end(pair.leaving.back(), why);
  }
  endEach(receives_);
  if (inHand_ != nullptr) end(std::exchange(inHand_, nullptr), why);
}

// The callers have their buffers back: nobody reads or writes them any more, or it does not count
// (device::mayHaveChanged). With the links held.
Status Messages::giveUp(const device::Fault& fault, int peer) {
  Status why = withoutExceptions([&] { return setup_.conclusions.ofMessages(fault, peer); });
  if (!setup_.failure.isSet()) setup_.failure.fail({why, -1});  // there was no memory for the reason
  setup_.traffic.releaseBuffers();  // behind that, for peers that find the mark wait for the reason
  endAllHere(why);
  return why;
}

}  // namespace kolo::comm
