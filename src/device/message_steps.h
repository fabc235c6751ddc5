// The steps of messages between ranks on GPUs (algorithms/messages.h). Each direction of a pair has numbers of its own;
// nothing here waits, but for a sender that had its buffer back.
#pragma once

#include <cstdint>

#include "device/exchange.h"
#include "device/headers.h"
#include "device/host_device.h"
#include "device/link.h"
#include "device/peer_memory.h"
#include "device/slots.h"

namespace kolo::device {

// Leader only.
template <class Team>
KOLO_DEVICE void announceMessage(Exchange<Team>& exchange, int peer, const MessageFlow& flow) {
  Link& link = exchange.linkTo(peer);
  const std::uint64_t number = ++link.headers.announced;
  Header& line = link.outbox->header[number % kHeaderLines];
  line.signature = flow.word;
  line.count = flow.count;
  line.refs = {flow.ref.offset, 0, flow.ref.index, 0};
  exchange.signal(link, line.number, number, {0, &line, kHeaderBytesBeforeNumber});  // [header]
}
template <class Team>
KOLO_DEVICE bool hasHeader(Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return exchange.team().isAtLeast(lineOf(link, link.headers.met + 1).number, link.headers.met + 1);  // [header]
}
// Leader only. REQUIRES: hasHeader().
template <class Team>
KOLO_DEVICE void takeMessageHeader(Exchange<Team>& exchange, int peer, const MessageFlow& flow) {
  Link& link = exchange.linkTo(peer);
  const Header& line = lineOf(link, ++link.headers.met);
  takeRefs(link, line);
  checkHeader(exchange, link, line, {flow.word, flow.count}, flow.count);
}
template <class Team>
KOLO_DEVICE bool hasFreeSlot(Exchange<Team>& exchange, int peer) {
  const std::uint32_t slots = exchange.work().channel.slots;
  const Link& link = exchange.linkTo(peer);
  return exchange.team().isAtLeast(link.inbox->signals.head,
                                   link.sent + 1 < slots ? 0 : link.sent + 1 - slots);  // [credit]
}
template <class Team>
KOLO_DEVICE bool hasChunk(Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return exchange.team().isAtLeast(tailOf(link, link.received + 1), link.received + 1);  // [chunk]
}
// The receiver's word that it has taken a message out of this rank's window; the sender counts them. Waits if the
// sender had its buffer back meanwhile, and then fails.
template <class Team>
KOLO_DEVICE void sayTaken(Exchange<Team>& exchange, int peer) {
  exchange.team().sync();
  if (!exchange.team().leader() || exchange.failed()) return;
  Link& link = exchange.linkTo(peer);
  fenceStores();
  confirm(exchange, link);
  if (exchange.failed()) return;
  sayDone(exchange, link);  // [done] after all loads by this team
}
template <class Team>
KOLO_DEVICE bool isTaken(Exchange<Team>& exchange, int peer) {
  const Link& link = exchange.linkTo(peer);
  return exchange.team().isAtLeast(link.inbox->signals.done, link.finished + 1);  // [done]
}

}  // namespace kolo::device
