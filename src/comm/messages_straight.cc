// Long messages by posted links: straight from the sender's buffer into the receiver's.
//
// A transport reads the one and writes to the other on its own (the kernel, or a NIC). So it is stopped before a call
// that fails gives the buffers back: what it reads later is not what was sent, and what it writes to is not a receive
// buffer any more (deviceAbandon).
#include <algorithm>
#include <utility>

#include "comm/messages.h"

namespace kolo::comm {

using device::MessageKind;

// The answer to a request: to put it into the receive buffer itself, if both ends can have that at no cost; else to
// send chunks.
Messages::Answer Messages::clear(Pair& pair, const Receive& receive, const Unexpected& message, Status status) {
  Answer answer{MessageKind::kClear, message.id, std::min(message.bytes, receive.capacity)};
  Stream stream{receive.data, receive.capacity, message.bytes, message.id, receive.request, std::move(status)};
  if (pair.isPosted && answer.bytes != 0)
    answer.clearance = clearStraight(pair, stream, answer.bytes, message.source.index != 0);
  pair.arriving.push_back(std::move(stream));
  inHand_ = nullptr;
  return answer;
}

// isKnownThere: the sender's transport knows the memory that it is to read.
Messages::Clearance Messages::clearStraight(Pair& pair, Stream& stream, std::uint64_t bytes, bool isKnownThere) {
  transport::Device& device = *peers_[pair.peer].device;
  if (!device.canBeAbandoned()) return {};
  if (!device.registersCheaply()) {
    // What has been put to the user's memory is not repeated: a link of several rails would be lost with one of them
    // (transports/ib/way.h).
    const bool isSafe = pair.rails == 1 || setup_.traffic.mayReroute();
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

// The first request that has been cleared. False: the transport has no room for more.
bool Messages::putStraight(Pair& pair, Send& send) {
  Cleared& cleared = pair.cleared.front();
  const bool isOld = !isCurrent(pair, cleared.to);  // another clearance will come
  if (!isOld && !putSome(pair, send, cleared)) return false;
  send.hasBeenPut = !isOld;
  if (!isOld && !cleared.to.endsByAnswer) {
    pair.leaving.push_back(send.request);
    std::erase_if(pair.asked, [&](const Send& one) { return one.id == cleared.id; });
  }
  pair.cleared.pop_front();
  return true;
}

// A part for each rail, and on each the number of the message.
bool Messages::putSome(Pair& pair, const Send& send, Cleared& to) {
  constexpr std::uint64_t kGrain = 4096;
  const std::uint64_t share = (to.bytes / pair.rails + kGrain - 1) / kGrain * kGrain;
  for (; to.rail < pair.rails; ++to.rail) {
    const std::uint64_t begin = std::min(to.bytes, share * to.rail);
    const std::uint64_t end = to.rail + 1 == pair.rails ? to.bytes : std::min(to.bytes, begin + share);
    const device::Counter& counter = pair.out->landed[to.rail];
    const Status accepted = peers_.put(pair.peer, {to.rail, send.data + begin, end - begin, &counter, to.to.number},
                                       to.to.key, begin);  // [landed]
    if (accepted.code() == koloInProgress) return false;
    if (!accepted.ok()) {
      broken_ = setup_.traffic.lost(pair.peer, accepted);
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
  endArriving(pair);
  writeAnswers(pair.peer);
  return true;
}

// Ends the sends whose data nobody reads any more. REQUIRES: there are some that have been put.
void Messages::release(Pair& pair) {
  if (peers_[pair.peer].link->unfinished() != 0) return;
  for (Request* const request : std::exchange(pair.leaving, {})) end(request, {});
}

// What was to be put straight by the link that is lost, and has not all arrived, goes by chunks now, behind all that
// has been cleared before: the peer, which no longer heeds the old clearances, has them in the same order.
device::Fault Messages::beginAgain(int peer) {
  Pair& pair = pairs_[static_cast<std::size_t>(peer)];
  if (pair.out == nullptr) return {};
  if (device::Fault fault = call(peer); fault.kind != device::Fault::kNone) return fault;
  for (auto next = pair.arriving.begin(), end = pair.arriving.end(); next != end;) {
    const auto stream = next++;
    if (!stream->clearance.isPut() || isCurrent(pair, stream->clearance)) continue;
    stream->registration.reset();
    stream->clearance = {};
    pair.answers.push_back({MessageKind::kClear, stream->id, std::min(stream->bytes, stream->capacity)});
    ++unanswered_;
    pair.arriving.splice(pair.arriving.end(), pair.arriving, stream);
  }
  return {};
}

// Some transport may be at a buffer of a message.
bool Messages::goesStraight() const {
  const auto isPut = [](const Send& send) { return send.clearedTo.has_value() && send.clearedTo->isPut(); };
  return std::any_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return !pair.leaving.empty() || std::any_of(pair.asked.begin(), pair.asked.end(), isPut) ||
           std::any_of(pair.arriving.begin(), pair.arriving.end(),
                       [](const Stream& stream) { return stream.clearance.isPut(); });
  });
}

}  // namespace kolo::comm
