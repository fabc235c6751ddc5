// The lines and slots of messages: what a rank writes for its peers, and what it makes of what they have written.
//
// A line lies in memory that its peer may write at any time, and comes over networks that alter bytes. So it is copied
// once, checked against what is known of the peer, and used from the copy (problemWith). What is wrong with a line ends
// the communicator; it never leads outside of a buffer.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/datatypes.h"
#include "collectives/copy_policy.h"
#include "comm/messages.h"
#include "device/copy_short.h"
#include "executor/host/reduce.h"

namespace kolo::comm {

using device::MessageKind;
using device::MessageLine;
using device::Offer;
using device::Path;

namespace {

// All but the payload of a short message, which is data: it is copied once, from where it is.
MessageLine copyOf(const MessageLine& place) {
  constexpr std::size_t kWords = sizeof(MessageLine) / sizeof(device::Counter);
  const auto* const words = reinterpret_cast<const device::Counter*>(&place);
  std::array<std::uint64_t, kWords> copied{};
  for (std::size_t i = 1; i < kWords; ++i) copied[i] = device::loadRelaxed(words[i]);
  return std::bit_cast<MessageLine>(copied);
}

bool isAnswer(const MessageLine& line) { return line.kind == MessageKind::kClear || line.kind == MessageKind::kDone; }

}  // namespace

// ---- posted links

void Messages::post(const Ends& ends, const device::Post& post) {
  if (broken_.kind == device::Fault::kNone) broken_ = setup_.traffic.post(ends.peer, post);
}

// As Exchange::signal. REQUIRES: open.
void Messages::signal(const Ends& ends, device::Counter& counter, std::uint64_t value, device::Post request) {
  device::storeRelease(counter, value);
  if (!ends.isPosted) return executor::wakeIfAsleep(*ends.asleep);
  request.counter = &counter;
  request.value = value;
  post(ends, request);
}

// Lines or slots of the peer's have been read. As credit() of device/slots.h: if it needs them, this rank has yet to
// receive what they are for. A peer that has gone needs none.
void Messages::credit(const Ends& ends, device::Counter device::MessageLane::*counter, std::uint64_t value) {
  if (ends.out == nullptr) return;
  signal(ends, ends.out->*counter, value, {.more = device::More::kLater});
}

void Messages::publishSlot(const Ends& ends, const unsigned char* slot, std::uint64_t bytes) {
  if (ends.isPosted) post(ends, {0, slot, bytes, nullptr, 0});
}

// ---- writing

// A free line at the peer, or nullptr.
MessageLine* Messages::nextLine(Pair& pair) {
  if (pair.out == nullptr && !open(pair)) return nullptr;  // the first word to this peer
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
  signal(pair, line.number, pair.linesWritten,
         {.data = &line.bytes, .bytes = sizeof line - sizeof line.number, .more = more});
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
    if (line == nullptr && setup_.boards.hasLeft(peer)) {  // it has no request any more
      unanswered_ -= pair.answers.size();
      pair.answers.clear();
      return true;
    }
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

// Where the receiver may read a message, if that pays: a copy through a slot costs two passes, so long data in a window
// is better fetched.
device::WindowRef Messages::sourceOf(const Pair& pair, const Send& send) const {
  if (send.bytes <= device::kInlineBytes || pair.isPosted) return {};
  const device::WindowRef window = windows_.find(send.data, send.bytes);
  const bool isRead = send.bytes >= setup_.singleCopyBytes && setup_.traffic.offersMemory();
  const bool fitsLine = window.index <= std::numeric_limits<decltype(MessageLine::window)>::max();
  if (window.index != 0 && fitsLine && (isRead || send.bytes > std::min(eagerBytes_, collectives::kEagerWindowBytes)))
    return window;
  return isRead ? device::WindowRef{reinterpret_cast<std::uint64_t>(send.data), 0} : device::WindowRef{};
}

// False if it has to wait for a line or a slot.
bool Messages::startSend(Pair& pair, Send& send, device::More more) {
  MessageLine* line = nextLine(pair);
  if (line == nullptr) return false;
  const device::WindowRef source = sourceOf(pair, send);
  const bool isEager = !isOffered(offerOf(source)) && send.bytes <= eagerBytes_;
  bool isDone = true;  // the buffer is the caller's again
  const Offer input = isEager ? Offer::kInSlots : offerOf(source);
  line->bytes = send.bytes;
  line->tag = send.tag;
  line->datatype = send.datatype;
  line->window = 0;
  if (pathOf(send.bytes <= device::kInlineBytes, input, Offer::kNothing) == Path::kInline) {
    line->kind = MessageKind::kInline;
    device::copyShort(line->payload, send.data, static_cast<std::uint32_t>(send.bytes));
  } else if (isEager) {
    unsigned char* slot = nextSlot(pair.eager, pair.in->eagerTaken, pair.outEager);
    if (slot == nullptr) return false;
    executor::copy(slot, send.data, send.bytes, false);
    publishSlot(pair, slot, send.bytes);
    ++pair.eager.written;
    line->kind = MessageKind::kEager;
  } else {
    line->kind = MessageKind::kRequest;
    line->id = send.id = ++pair.requests;
    if (pair.isPosted) {
      line->window = windows_.isKnown(send.data, send.bytes, *peers_[pair.peer].device) ? 1 : 0;
      line->offset = 0;
    } else {
      line->window = static_cast<std::uint8_t>(source.index);
      line->offset = source.offset;
      send.isOffered = isOffered(input);
    }
    pair.asked.push_back(send);
    isDone = false;
  }
  publishLine(pair, more);
  if (isDone) end(send.request, {});
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

std::vector<Messages::Send>::iterator Messages::findAsked(Pair& pair, std::uint32_t id) {
  return std::find_if(pair.asked.begin(), pair.asked.end(), [&](const Send& one) { return one.id == id; });
}

// Chunks of cleared requests, in the order of clearance, which is the order in which the receiver expects them.
bool Messages::writeChunks(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.cleared.empty()) {
    const auto send = findAsked(pair, pair.cleared.front().id);
    if (pair.cleared.front().to.isPut()) {
      if (!putStraight(pair, *send)) break;
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
    send->request->moved();
    moved = true;
    if (send->sent == send->bytes) {
      Request* const request = send->request;
      pair.asked.erase(send);
      pair.cleared.pop_front();
      end(request, {});
    }
  }
  return moved;
}

// ---- reading

// Of a message's line, or of an answer's: nullptr, or what it cannot say.
const char* Messages::problemWith(Pair& pair, const MessageLine& line) {
  if (isAnswer(line)) return problemWithAnswer(pair, line);
  if (line.datatype >= koloNumDatatypes) return "an unknown datatype";
  if (line.tag == KOLO_ANY_TAG) return "a negative tag";
  switch (line.kind) {
    case MessageKind::kInline: return line.bytes <= device::kInlineBytes ? nullptr : "more bytes than the line holds";
    case MessageKind::kEager: return line.bytes <= eagerBytes_ ? nullptr : "more bytes than a slot holds";
    case MessageKind::kRequest:
      return line.id == pair.requestsRead + 1 ? nullptr : "a request's number that is not the next";
    default: return "an unknown kind";
  }
}

// A request is answered once, as its sender has offered. What was cleared for a link that has been replaced is cleared
// anew.
const char* Messages::problemWithAnswer(Pair& pair, const MessageLine& line) {
  const auto send = findAsked(pair, line.id);
  if (send == pair.asked.end()) return "the number of a request that waits for no answer";
  const bool isCleared = send->clearedTo.has_value();
  if (line.kind == MessageKind::kDone) {
    const bool hasBeenPut = isCleared && send->clearedTo->endsByAnswer && send->hasBeenPut;
    return hasBeenPut || (!isCleared && send->isOffered)
               ? nullptr
               : "the number of a request whose data the receiver has not had";
  }
  const bool mayBeAnew = isCleared && send->clearedTo->isPut() && !isCurrent(pair, *send->clearedTo);
  if (isCleared && !mayBeAnew) return "the number of a request that has been cleared before";
  if (line.bytes > send->bytes) return "more bytes than the request that it clears";
  if (line.clearance.number != 0 && !pair.isPosted) return "a key for memory that is mapped";
  return nullptr;
}

void Messages::answered(Pair& pair, const MessageLine& line) {
  const auto send = findAsked(pair, line.id);
  if (line.kind == MessageKind::kDone) {
    Request* const request = send->request;
    pair.asked.erase(send);
    end(request, {});
    return;
  }
  Clearance to{{}, line.clearance.number, static_cast<std::uint64_t>(line.tag), endsByAnswer(pair)};
  std::memcpy(to.key.data, line.clearance.key, sizeof to.key.data);
  std::erase_if(pair.cleared, [&](const Cleared& before) { return before.id == line.id; });
  send->clearedTo = to;
  send->hasBeenPut = false;
  pair.cleared.push_back({line.id, line.bytes, to});
}

void Messages::takeMessage(int peer, const MessageLine& line, const unsigned char* payload) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  const bool isRequest = line.kind == MessageKind::kRequest;
  if (isRequest) ++pair.requestsRead;
  const unsigned char* data = line.kind == MessageKind::kEager
                                  ? pair.inEager + (pair.eager.read + 1) % layout_.slots * layout_.slotBytes
                                  : payload;
  const auto match = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const Receive& receive) { return accepts(receive, peer, line.tag); });
  if (match != receives_.end() && !isRequest) {
    // The common case: straight from the line or the slot into the user's buffer.
    Status status = arrived(*match, peer, line.tag, line.datatype, line.bytes);
    const std::uint64_t bytes = std::min(line.bytes, match->capacity);
    if (line.kind == MessageKind::kInline) {
      device::copyShort(match->data, data, static_cast<std::uint32_t>(bytes));
    } else {
      executor::copy(match->data, data, bytes, false);
    }
    Request* const request = match->request;
    forget(match);
    end(request, std::move(status));
  } else {
    Unexpected message{peer, line.tag, line.datatype, line.bytes, {}, isRequest, line.id, {}};
    if (isRequest) message.source = {line.offset, line.window};
    if (!isRequest) message.data.assign(data, data + line.bytes);
    if (match == receives_.end()) {
      unexpected_.push_back(std::move(message));
    } else {
      const Receive receive = *match;
      forget(match);
      deliver(receive, message);
    }
  }
  if (line.kind == MessageKind::kEager) {
    credit(pair, &device::MessageLane::eagerTaken, ++pair.eager.read);  // [data credit]
  }
}

bool Messages::readLines(int peer, bool readsAll) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while ((readsAll || unfinished_ != 0) && !isStuck()) {
    const MessageLine& place = pair.in->lines[(pair.linesRead + 1) % device::kMessageLines];
    if (device::loadAcquire(place.number) != pair.linesRead + 1) break;  // [line]
    // The peer is to be told what has been read; if it is still there.
    if (pair.out == nullptr && !setup_.boards.hasLeft(peer) && !open(pair) && isStuck()) break;
    ++pair.linesRead;
    moved = true;
    const MessageLine line = copyOf(place);
    if (const char* const problem = problemWith(pair, line); problem != nullptr) {
      broken_ = setup_.reasons.distrust(peer, describe(line, problem));
    } else if (isAnswer(line)) {
      answered(pair, line);
    } else {
      takeMessage(peer, line, place.payload);
    }
    // Every fourth line is told, so that a line costs the writer no second miss; twelve are always free to be written.
    if (pair.linesRead % 4 == 0) credit(pair, &device::MessageLane::linesTaken, pair.linesRead);  // [line credit]
  }
  return moved;
}

std::string Messages::describe(const MessageLine& line, const char* problem) {
  return fmt::format("a message's line with {}: kind {}, {} bytes, tag {}, datatype {}, request {}", problem,
                     static_cast<int>(line.kind), line.bytes, line.tag, line.datatype, line.id);
}

// The first stream has arrived.
void Messages::endArriving(Pair& pair) {
  Request* const request = pair.arriving.front().request;
  Status status = std::move(pair.arriving.front().status);
  pair.arriving.pop_front();
  end(request, std::move(status));
}

bool Messages::readChunks(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  bool moved = false;
  while (!pair.arriving.empty()) {
    if (pair.arriving.front().clearance.isPut()) {
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
                     stream.bytes >= setup_.streamingBytes);
    }
    stream.arrived += bytes;
    stream.request->moved();
    credit(pair, &device::MessageLane::chunksTaken, ++pair.stream.read);  // [data credit]
    moved = true;
    if (stream.arrived == stream.bytes) endArriving(pair);
  }
  return moved;
}

}  // namespace kolo::comm
