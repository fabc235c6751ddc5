#include "comm/messages.h"

#include <algorithm>
#include <cstring>

#include "base/datatypes.h"
#include "comm/communicator.h"
#include "device/copy_short.h"
#include "executor/host/reduce.h"

namespace kolo::comm {

using device::MessageKind;
using device::MessageLine;

Messages::Messages(Communicator& owner, const ArenaLayout& layout, Peers& peers, Windows& windows)
    : owner_(owner), peers_(peers), layout_(layout), windows_(windows), pairs_(static_cast<std::size_t>(layout.ranks)),
      eagerBytes_(std::min<std::uint64_t>(layout.slotBytes, kEagerBytes)),
      calls_(reinterpret_cast<const device::Counter*>(peers.arena() + layout.callAt(0))) {
  const int rank = owner.rank();
  for (int peer = 0; peer < layout.ranks; ++peer) {
    if (peer == rank) continue;
    silent_.push_back(peer);
    Pair& pair = pairs_[static_cast<std::size_t>(peer)];
    const ArenaLayout::Part in = layout.part(peers.arena() + layout.partAt(peer));
    pair.peer = peer;
    pair.in = in.lane;
    pair.inEager = in.eagerSlots;
    pair.inStream = in.streamSlots;
  }
}

void Messages::aim(Pair& pair) {
  const ArenaLayout::Part out = layout_.part(peers_.partAt(pair.peer));
  pair.isPosted = peers_[pair.peer].isPosted();
  pair.rails = owner_.railsTo(pair.peer);
  // A chunk by a posted link costs a signal, and another for the credit: the fewer the better.
  pair.chunkBytes = pair.isPosted ? layout_.slotBytes : std::min<std::uint64_t>(layout_.slotBytes, kStreamChunkBytes);
  pair.out = out.lane;
  pair.outEager = out.eagerSlots;
  pair.outStream = out.streamSlots;
}

// Before the first word to a peer. False: it cannot be reached, and nothing more is done.
bool Messages::open(Pair& pair) {
  if (broken_.kind == device::Fault::kNone) broken_ = owner_.open(pair.peer);
  if (broken_.kind != device::Fault::kNone) return false;
  aim(pair);
  activate(pair.peer);
  broken_ = call(pair.peer);
  return broken_.kind == device::Fault::kNone;
}

device::Fault Messages::call(int peer) {
  for (executor::WaitState state;;) {
    Status called = peers_.set(peer, layout_.callAt(owner_.rank()), 1);   // [call] before the first line
    if (called.ok()) return {};
    const device::Fault fault = called.code() == koloInProgress ? owner_.checkWait(peer, state, true) : owner_.lost(peer, std::move(called));
    if (fault.kind != device::Fault::kNone) return fault;
  }
}

// What was to be put straight by the link that is lost, and has not all arrived, goes by chunks now, behind all that has been cleared
// before: the peer, which no longer heeds the old clearances, has them in the same order.
device::Fault Messages::beginAgain(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  if (pair.out == nullptr) return {};
  if (device::Fault fault = call(peer); fault.kind != device::Fault::kNone) return fault;
  for (auto next = pair.arriving.begin(), end = pair.arriving.end(); next != end;) {
    const auto stream = next++;
    if (stream->registration == nullptr || isCurrent(pair, stream->clearance)) continue;
    stream->registration.reset();
    stream->clearance = {};
    pair.answers.push_back({MessageKind::kClear, stream->id, std::min(stream->bytes, stream->capacity)});
    ++unanswered_;
    pair.arriving.splice(pair.arriving.end(), pair.arriving, stream);
  }
  return {};
}

void Messages::activate(int peer) {
  if (std::erase(silent_, peer) != 0) active_.push_back(peer);
}

// Takes in those who have begun to send.
void Messages::listen() {
  for (std::size_t i = 0; i < silent_.size();) {
    if (device::loadAcquire(calls_[silent_[i]]) != 0) {   // [call]
      activate(silent_[i]);
    } else {
      ++i;
    }
  }
}

// ---- posted links

void Messages::post(const Pair& pair, const device::Post& post) {
  if (broken_.kind == device::Fault::kNone) broken_ = owner_.post(pair.peer, post);
}

// As Exchange::signal. REQUIRES: open.
void Messages::signal(Pair& pair, device::Counter& counter, std::uint64_t value, device::Post request) {
  device::storeRelease(counter, value);
  if (!pair.isPosted) return;
  request.counter = &counter;
  request.value = value;
  post(pair, request);
}

// Lines or slots of the peer's have been read. As Exchange::credit: if it needs them, this rank has yet to receive what they are for.
void Messages::credit(Pair& pair, device::Counter& counter, std::uint64_t value) {
  device::storeRelease(counter, value);
  if (pair.isPosted) post(pair, {.counter = &counter, .value = value, .more = device::More::kLater});
}

void Messages::publishSlot(Pair& pair, const unsigned char* slot, std::uint64_t bytes) {
  if (pair.isPosted) post(pair, {0, slot, bytes, nullptr, 0});
}

void Messages::note(Status status) {
  if (failed_.ok() && !status.ok()) failed_ = std::move(status);
}

void Messages::start(const Message& message, bool isAlone) {
  const auto held = owner_.holdLinks();
  const std::uint64_t bytes = message.count * elementBytes(message.datatype);
  const auto datatype = static_cast<std::uint8_t>(message.datatype);
  ++unfinished_;
  if (message.isSend) {
    Send send{static_cast<const unsigned char*>(message.send), bytes, message.peer, message.tag, datatype};
    if (message.peer == owner_.rank()) {
      sendToSelf(send);
    } else {
      Pair& pair = pairs_[static_cast<std::size_t>(message.peer)];
      if (!pair.sends.empty() || !startSend(pair, send, isAlone ? device::More::kNothing : device::More::kSoon)) pair.sends.push_back(send);
    }
    return;
  }
  const Receive receive{static_cast<unsigned char*>(message.recv), bytes, message.peer, message.tag, datatype,
                        message.strict, message.status};
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
         (receive.tag == KOLO_ANY_TAG || receive.tag == tag);
}

// Status and errors of a message that has found its receive.
void Messages::arrived(const Receive& receive, int peer, int tag, std::uint8_t datatype, std::uint64_t bytes) {
  if (receive.status != nullptr) {
    const std::size_t size = elementBytes(static_cast<koloDataType_t>(receive.datatype));
    *receive.status = {peer, tag, std::min(bytes, receive.capacity) / size};
  }
  const auto words = [](std::uint8_t type, std::uint64_t length) {
    const auto as = static_cast<koloDataType_t>(type);
    return fmt::format("count {} of {}", length / elementBytes(as), koloDataTypeName(as));
  };
  if (receive.strict && (bytes != receive.capacity || datatype != receive.datatype)) {
    note(error(koloMismatch, "rank {} sent {}, rank {} receives {}", peer, words(datatype, bytes), owner_.rank(),
               words(receive.datatype, receive.capacity)));
  } else if (bytes > receive.capacity) {
    note(error(koloTruncated, "rank {} sent {} with tag {}, rank {} has room for {}", peer, words(datatype, bytes), tag,
               owner_.rank(), words(receive.datatype, receive.capacity)));
  }
}

void Messages::deliver(const Receive& receive, const Unexpected& message) {
  arrived(receive, message.peer, message.tag, message.datatype, message.bytes);
  const std::uint64_t bytes = std::min(message.bytes, receive.capacity);
  if (!message.isRequest) {
    if (bytes != 0) std::memcpy(receive.data, message.data.data(), bytes);
    --unfinished_;
    return;
  }
  Pair& pair = pairs_[static_cast<std::size_t>(message.peer)];
  if (pair.isPosted || (message.source.index == 0 && message.source.offset == 0)) {
    pair.answers.push_back(clear(pair, receive, message));
  } else {
    if (!takeInPlace(pair, receive, message, bytes)) return;
    pair.answers.push_back({MessageKind::kDone, message.id});
    --unfinished_;
  }
  ++unanswered_;
  writeAnswers(message.peer);
}

// Out of the sender's memory. False: the sender had its buffer back, perhaps before it was read. Then the receive does not end before this rank knows
// why the sender gave up, which is what it ends with.
bool Messages::takeInPlace(Pair& pair, const Receive& receive, const Unexpected& message, std::uint64_t bytes) {
  const device::WindowRef& at = message.source;
  bool isRead = true;
  if (at.index == 0) {
    isRead = owner_.read(pair.peer, receive.data, at.offset, bytes);
  } else {
    const unsigned char* const source = windows_.tableOf(pair.peer)[at.index - 1] + at.offset;
    executor::copy(receive.data, source, bytes, bytes >= owner_.streamingBytes());
  }
  if (owner_.mayHaveChanged(pair.peer)) {
    doubted_ = pair.peer;
    return false;
  }
  if (!isRead) note(owner_.readFailure(pair.peer));
  return true;
}

void Messages::sendToSelf(const Send& send) {
  --unfinished_;
  const auto match = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Receive& receive) { return accepts(receive, send.peer, send.tag); });
  Unexpected message{send.peer, send.tag, send.datatype, send.bytes, {}, false, 0, {}};
  message.data.assign(send.data, send.data + send.bytes);
  if (match == receives_.end()) {
    unexpected_.push_back(std::move(message));
    return;
  }
  const Receive receive = *match;
  receives_.erase(match);
  deliver(receive, message);
}

// ---- writing

// A free line at the peer, or nullptr.
MessageLine* Messages::nextLine(Pair& pair) {
  if (pair.out == nullptr && !open(pair)) return nullptr;   // the first word to this peer
  const std::uint64_t number = pair.linesWritten + 1;
  if (number > pair.linesCredited + device::kMessageLines) {
    pair.linesCredited = device::loadAcquire(pair.in->linesTaken);  // [line credit]
    if (number > pair.linesCredited + device::kMessageLines) return nullptr;
  }
  return &pair.out->lines[number % device::kMessageLines];
}

void Messages::publishLine(Pair& pair, device::More more) {
  ++pair.linesWritten;
  MessageLine& line = pair.out->lines[pair.linesWritten % device::kMessageLines];
  // [line] the line's other fields, and an eager chunk announced by it
  signal(pair, line.number, pair.linesWritten, {.data = &line.bytes, .bytes = sizeof line - sizeof line.number, .more = more});
}

// A free slot of one kind at the peer, or nullptr.
unsigned char* Messages::nextSlot(const Flow& flow, const device::Counter& taken, unsigned char* slots) const {
  const std::uint64_t number = flow.written + 1;
  if (number > layout_.slots && device::loadAcquire(taken) < number - layout_.slots) return nullptr;  // [data credit]
  return slots + number % layout_.slots * layout_.slotBytes;
}

bool Messages::writeAnswers(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.answers.empty()) {
    MessageLine* line = nextLine(pair);
    if (line == nullptr) break;
    const Answer& answer = pair.answers.front();
    line->kind = answer.kind;
    line->id = answer.id;
    line->bytes = answer.bytes;
    line->tag = static_cast<std::int32_t>(answer.clearance.reroutes);
    line->clearance.number = answer.clearance.number;
    std::memcpy(line->clearance.key, answer.clearance.key.data, sizeof line->clearance.key);
    publishLine(pair);
    pair.answers.pop_front();
    --unanswered_;
    moved = true;
  }
  return moved;
}

bool Messages::isRead(const Send& send) const {
  return send.bytes > device::kInlineBytes && send.bytes >= owner_.singleCopyBytes();
}

// False if it has to wait for a line or a slot.
bool Messages::startSend(Pair& pair, Send& send, device::More more) {
  MessageLine* line = nextLine(pair);
  if (line == nullptr) return false;
  const device::WindowRef window =
      send.bytes > device::kInlineBytes && !pair.isPosted ? windows_.find(send.data, send.bytes) : device::WindowRef{};
  // A copy through a slot costs two passes: long data in a window is better fetched.
  const bool eager =
      send.bytes <= eagerBytes_ && (window.index == 0 || send.bytes <= kEagerWindowBytes) && !isRead(send);
  line->bytes = send.bytes;
  line->tag = send.tag;
  line->datatype = send.datatype;
  line->window = 0;
  if (send.bytes <= device::kInlineBytes) {
    line->kind = MessageKind::kInline;
    device::copyShort(line->payload, send.data, static_cast<std::uint32_t>(send.bytes));
    --unfinished_;
  } else if (eager) {
    unsigned char* slot = nextSlot(pair.eager, pair.in->eagerTaken, pair.outEager);
    if (slot == nullptr) return false;
    executor::copy(slot, send.data, send.bytes, false);
    publishSlot(pair, slot, send.bytes);
    ++pair.eager.written;
    line->kind = MessageKind::kEager;
    --unfinished_;
  } else {
    line->kind = MessageKind::kRequest;
    line->id = send.id = ++pair.requests;
    if (pair.isPosted) {
      line->window = windows_.isKnown(send.data, send.bytes, *peers_[pair.peer].device) ? 1 : 0;
      line->offset = 0;
    } else {
      line->window = static_cast<std::uint8_t>(window.index <= 255 ? window.index : 0);
      line->offset = line->window != 0 ? window.offset : isRead(send) ? reinterpret_cast<std::uint64_t>(send.data) : 0;
    }
    pair.asked.push_back(send);
  }
  publishLine(pair, more);
  return true;
}

bool Messages::writeSends(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.sends.empty() && startSend(pair, pair.sends.front())) {
    pair.sends.pop_front();
    moved = true;
  }
  return moved;
}

// Chunks of cleared requests, in the order of clearance, which is the order in which the receiver expects them.
bool Messages::writeChunks(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.cleared.empty()) {
    const auto send = std::find_if(pair.asked.begin(), pair.asked.end(),
                                   [&](const Send& one) { return one.id == pair.cleared.front().id; });
    if (const Clearance& to = pair.cleared.front().to; to.number != 0) {
      const bool isOld = !isCurrent(pair, to);   // another will come
      if (!isOld && !putSome(pair, *send, pair.cleared.front())) break;
      if (!isOld && !to.endsByAnswer) {
        pair.asked.erase(send);
        ++pair.leaving;
      }
      pair.cleared.pop_front();
      moved = true;
      continue;
    }
    unsigned char* slot = nextSlot(pair.stream, pair.in->chunksTaken, pair.outStream);
    if (slot == nullptr) break;
    const std::uint64_t bytes = std::min<std::uint64_t>(pair.chunkBytes, send->bytes - send->sent);
    executor::copy(slot, send->data + send->sent, bytes, false);
    const auto rail = static_cast<std::uint32_t>(++pair.stream.written % pair.rails);
    signal(pair, pair.out->chunks[rail], pair.stream.written, {.rail = rail, .data = slot, .bytes = bytes});  // [data]
    send->sent += bytes;
    moved = true;
    if (send->sent == send->bytes) {
      pair.asked.erase(send);
      pair.cleared.pop_front();
      --unfinished_;
    }
  }
  return moved;
}

// ---- reading

void Messages::answered(Pair& pair, const MessageLine& line) {
  if (line.kind == MessageKind::kClear) {
    Cleared cleared{line.id, line.bytes, {{}, line.clearance.number, static_cast<std::uint64_t>(line.tag), endsByAnswer(pair)}};
    std::memcpy(cleared.to.key.data, line.clearance.key, sizeof cleared.to.key.data);
    pair.cleared.push_back(cleared);
    return;
  }
  std::erase_if(pair.asked, [&](const Send& send) { return send.id == line.id; });
  --unfinished_;
}

void Messages::takeMessage(int peer, const MessageLine& line) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  const bool isRequest = line.kind == MessageKind::kRequest;
  const unsigned char* data = line.kind == MessageKind::kEager
                                  ? pair.inEager + (pair.eager.read + 1) % layout_.slots * layout_.slotBytes
                                  : line.payload;
  const auto match = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Receive& receive) { return accepts(receive, peer, line.tag); });
  if (match != receives_.end() && !isRequest) {
    // The common case: straight from the line or the slot into the user's buffer.
    arrived(*match, peer, line.tag, line.datatype, line.bytes);
    const std::uint64_t bytes = std::min(line.bytes, match->capacity);
    if (line.kind == MessageKind::kInline) {
      device::copyShort(match->data, data, static_cast<std::uint32_t>(bytes));
    } else {
      executor::copy(match->data, data, bytes, false);
    }
    receives_.erase(match);
    --unfinished_;
  } else {
    Unexpected message{peer, line.tag, line.datatype, line.bytes, {}, isRequest, line.id, {}};
    if (isRequest) message.source = {line.offset, line.window};
    if (!isRequest) message.data.assign(data, data + line.bytes);
    if (match == receives_.end()) {
      unexpected_.push_back(std::move(message));
    } else {
      const Receive receive = *match;
      receives_.erase(match);
      deliver(receive, message);
    }
  }
  if (line.kind == MessageKind::kEager) {
    credit(pair, pair.out->eagerTaken, ++pair.eager.read);  // [data credit]
  }
}

bool Messages::readLines(int peer, bool readsAll) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (readsAll || unfinished_ != 0) {
    const MessageLine& line = pair.in->lines[(pair.linesRead + 1) % device::kMessageLines];
    if (device::loadAcquire(line.number) != pair.linesRead + 1) break;  // [line]
    if (pair.out == nullptr && !open(pair)) break;   // the peer is to be told what has been read
    ++pair.linesRead;
    moved = true;
    if (line.kind == MessageKind::kClear || line.kind == MessageKind::kDone) {
      answered(pair, line);
    } else {
      takeMessage(peer, line);
    }
    // Every fourth line is told, so that a line costs the writer no second miss; twelve are always free to be written.
    if (pair.linesRead % 4 == 0) credit(pair, pair.out->linesTaken, pair.linesRead);  // [line credit]
  }
  return moved;
}

bool Messages::readChunks(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.arriving.empty()) {
    if (pair.arriving.front().registration != nullptr) {
      if (!readLanded(pair)) break;
      moved = true;
      continue;
    }
    const std::uint64_t next = pair.stream.read + 1;
    if (device::loadAcquire(pair.in->chunks[next % pair.rails]) < next) break;  // [data]
    Stream& stream = pair.arriving.front();
    const unsigned char* chunk = pair.inStream + next % layout_.slots * layout_.slotBytes;
    const std::uint64_t bytes = std::min<std::uint64_t>(pair.chunkBytes, stream.bytes - stream.arrived);
    if (stream.arrived < stream.capacity) {
      executor::copy(stream.data + stream.arrived, chunk, std::min(bytes, stream.capacity - stream.arrived),
                     stream.bytes >= owner_.streamingBytes());
    }
    stream.arrived += bytes;
    credit(pair, pair.out->chunksTaken, ++pair.stream.read);  // [data credit]
    moved = true;
    if (stream.arrived == stream.bytes) {
      pair.arriving.pop_front();
      --unfinished_;
    }
  }
  return moved;
}

// ---- long messages by posted links: straight from the sender's buffer into the receiver's

// The answer to a request: to put it into the receive buffer itself, if both ends can have that at no cost; else to send chunks.
Messages::Answer Messages::clear(Pair& pair, const Receive& receive, const Unexpected& message) {
  Answer answer{MessageKind::kClear, message.id, std::min(message.bytes, receive.capacity)};
  Stream stream{receive.data, receive.capacity, message.bytes, message.id};
  if (pair.isPosted && answer.bytes != 0) answer.clearance = clearStraight(pair, stream, answer.bytes, message.source.index != 0);
  pair.arriving.push_back(std::move(stream));
  return answer;
}

// isKnownThere: the sender's transport knows the memory that it is to read.
Messages::Clearance Messages::clearStraight(Pair& pair, Stream& stream, std::uint64_t bytes, bool isKnownThere) {
  transport::Device& device = *peers_[pair.peer].device;
  if (!device.registersCheaply()) {
    // What has been put to the user's memory is not repeated: a link of several rails would be lost with one of them (transports/ib/way.h).
    const bool isSafe = pair.rails == 1 || owner_.mayReroute();
    if (!isSafe || !isKnownThere || !windows_.isKnown(stream.data, bytes, device)) return {};
  }
  auto registration = device.registerMemory({sizeof(koloTransportMemory), stream.data, bytes, -1, 0, koloMemoryHost});
  if (!registration.ok()) return {};
  const auto key = registration.value()->key();
  if (!key.ok()) return {};
  stream.registration = registration.take();
  stream.clearance = {key.value(), ++pair.straight, peers_[pair.peer].reroutes, endsByAnswer(pair)};
  return stream.clearance;
}

// A part for each rail, and on each the number of the message. False: the transport has no room for more.
bool Messages::putSome(Pair& pair, const Send& send, Cleared& to) {
  constexpr std::uint64_t kGrain = 4096;
  const std::uint64_t share = (to.bytes / pair.rails + kGrain - 1) / kGrain * kGrain;
  for (; to.rail < pair.rails; ++to.rail) {
    const std::uint64_t begin = std::min(to.bytes, share * to.rail);
    const std::uint64_t end = to.rail + 1 == pair.rails ? to.bytes : std::min(to.bytes, begin + share);
    const device::Counter& counter = pair.out->landed[to.rail];
    const Status accepted =
        peers_.put(pair.peer, {to.rail, send.data + begin, end - begin, &counter, to.to.number}, to.to.key, begin);   // [landed]
    if (accepted.code() == koloInProgress) return false;
    if (!accepted.ok()) {
      broken_ = owner_.lost(pair.peer, accepted);
      return false;
    }
  }
  return true;
}

bool Messages::readLanded(Pair& pair) {
  const Stream& stream = pair.arriving.front();
  for (std::uint32_t rail = 0; rail < pair.rails; ++rail) {
    if (device::loadAcquire(pair.in->landed[rail]) < stream.clearance.number) return false;  // [landed]
  }
  if (stream.clearance.endsByAnswer) {
    pair.answers.push_back({MessageKind::kDone, stream.id});
    ++unanswered_;
  }
  pair.arriving.pop_front();
  --unfinished_;
  writeAnswers(pair.peer);
  return true;
}

// Ends the sends whose data nobody reads any more. REQUIRES: there are some that have been put.
void Messages::release(Pair& pair) {
  if (peers_.unfinished(pair.peer) != 0) return;
  unfinished_ -= pair.leaving;
  pair.leaving = 0;
}

bool Messages::progressPair(int peer, bool readsAll) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  const bool wrote = !pair.answers.empty() && writeAnswers(peer);
  const bool read = readLines(peer, readsAll);
  const bool took = !pair.arriving.empty() && readChunks(peer);
  const bool gave = !pair.cleared.empty() && writeChunks(peer);
  const bool sent = !pair.sends.empty() && writeSends(peer);
  if (pair.leaving != 0) release(pair);
  return wrote || read || took || gave || sent;
}

bool Messages::progress(bool readsAll) {
  if (broken_.kind != device::Fault::kNone || doubted_ >= 0) return false;
  // To look for what one peer sends costs less than to look for what anybody does.
  bool moved = owner_.posts() && owner_.progress(unfinished_ == 1 ? waitedFor() : -1);
  if (!silent_.empty()) listen();
  const std::size_t count = active_.size(), begin = first_;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (begin + i) % count;
    const Pair& pair = pairs_[static_cast<std::size_t>(active_[at])];
    const std::uint64_t before = pair.linesRead;
    moved = progressPair(pair.peer, readsAll) || moved;
    if (pair.linesRead != before) first_ = (at + 1) % count;   // whoever was read last comes last: a receive from any source is fair
  }
  return moved;
}

// For messages of errors: somebody without whom this rank cannot go on; -1: anybody.
int Messages::waitedFor() const {
  if (doubted_ >= 0) return doubted_;
  if (!receives_.empty()) return receives_.front().peer;
  for (const int peer : active_) {
    const Pair& pair = pairs_[static_cast<std::size_t>(peer)];
    if (!pair.sends.empty() || !pair.asked.empty() || !pair.arriving.empty() || !pair.answers.empty() || pair.leaving != 0) return peer;
  }
  return -1;
}

Status Messages::finish() {
  const auto held = owner_.holdLinks();
  executor::WaitState state;
  executor::Polling polling = owner_.polling();
  // Answers still to be written are somebody else's progress: this rank may not leave before they are out.
  while (unfinished_ != 0 || unanswered_ != 0) {
    if (owner_.posts()) polling.polls = owner_.looks();
    if (polling.until([&] { return progress(false); })) {
      state = {};
      continue;
    }
    const int peer = waitedFor();
    const device::Fault fault = broken_.kind != device::Fault::kNone ? broken_ : owner_.checkMessages(peer, state);
    if (fault.kind != device::Fault::kNone) return owner_.giveUpMessages(fault, peer);
  }
  owner_.endWait();
  if (owner_.posts()) {
    if (const device::Fault fault = owner_.flush(true); fault.kind != device::Fault::kNone) return owner_.giveUpMessages(fault, peers_.unflushed());
  }
  return std::exchange(failed_, Status());
}

}  // namespace kolo::comm
