#include "sender.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/insist.h"

namespace kolo::tcp {
namespace {

// Of one call, so that it does not keep the thread from receiving.
constexpr std::uint64_t kMostGivenAtOnce = std::uint64_t{8} << 20;

// Large enough that a call of the kernel costs little beside it, and small enough for a core's cache.
constexpr std::size_t kSealedAtOnce = 8 * (sizeof(Frame) + Seal::kPiece + Seal::kTag);

}  // namespace

Sender::Sender(const Direction& direction) : seal_(direction) {
  if (seal_.encrypts()) sealed_.bytes = std::make_unique<unsigned char[]>(kSealedAtOnce);
}

Sender::Outcome Sender::put(const Frame& frame, const void* payload, Load* load, bool isForLater) {
  if (broken_ != 0) return Outcome::kBroken;
  if (queue_.size() >= kMostQueued) return Outcome::kFull;
  queue_.push_back({frame, static_cast<const unsigned char*>(payload), load, isForLater, 0, false, nullptr, {}});
  ++load->unfinished;
  if (!isForLater) ++load->queued;
  return Outcome::kAccepted;
}

bool Sender::flush(int fd) {
  bool hasMoved = false;
  // What is encrypted may go more slowly than the kernel takes it, which then never ends the loop.
  for (std::uint64_t sealed = 0; !queue_.empty() && broken_ == 0 && sealed < kMostGivenAtOnce;) {
    Offer offer;
    if (seal_.encrypts()) gatherSealed(offer);
    else gather(offer);
    const std::int64_t sent = offerTo(fd, offer);
    if (sent <= 0) break;
    hasMoved = true;
    if (seal_.encrypts()) {
      sealed += static_cast<std::uint64_t>(sent);
      consumeSealed(static_cast<std::uint64_t>(sent));
    } else {
      consume(static_cast<std::uint64_t>(sent));
    }
    if (static_cast<std::uint64_t>(sent) < offer.bytes) break;  // it would take nothing now
  }
  return hasMoved;
}

void Sender::Offer::add(const void* from, std::uint64_t some) {
  parts[count++] = {const_cast<void*>(from), some};
  bytes += some;
}

void Sender::number(Request& request) {
  if (request.isNumbered) return;
  request.isNumbered = true;
  request.frame.tag = seal_.tag(request.frame, next_++);
}

// The queue from its beginning, up to a payload that is to be lent: such a one is offered alone, when its header is
// gone.
void Sender::gather(Offer& offer) {
  for (Request& request : queue_) {
    if (offer.count + 2 > kMostParts || offer.bytes >= kMostGivenAtOnce) return;
    number(request);
    const std::uint64_t ofHeader = std::min<std::uint64_t>(request.sent, sizeof(Frame));
    const std::uint64_t ofPayload = request.sent - ofHeader;
    const bool isLent = isLendable(request);
    if (ofHeader < sizeof(Frame)) {
      offer.add(reinterpret_cast<const unsigned char*>(&request.frame) + ofHeader, sizeof(Frame) - ofHeader);
    }
    if (isLent) offer.flags = ofHeader < sizeof(Frame) ? MSG_MORE : MSG_ZEROCOPY;
    if (isLent && ofHeader < sizeof(Frame)) return;
    if (ofPayload == request.frame.bytes) continue;
    const std::uint64_t step = std::min(request.frame.bytes - ofPayload, kMostGivenAtOnce);
    offer.add(request.payload + ofPayload, step);
    if (isLent || ofPayload + step < request.frame.bytes) return;
  }
}

void Sender::gatherSealed(Offer& offer) {
  if (sealed_.begin == sealed_.end) {
    sealed_.begin = sealed_.end = 0;
    for (Request& request : queue_) {
      while (request.left() > 0 && sealPiece(request)) {
      }
      if (request.left() > 0) break;
    }
  }
  offer.add(sealed_.bytes.get() + sealed_.begin, sealed_.end - sealed_.begin);
}

// The header, if it is not there yet, and the next piece. False: there is no room for them.
bool Sender::sealPiece(Request& request) {
  const std::uint64_t ofHeader = request.sent == 0 ? sizeof(Frame) : 0;
  const std::uint64_t ofPayload = request.sent + ofHeader - sizeof(Frame);
  const std::uint64_t piece = std::min<std::uint64_t>(request.frame.bytes - ofPayload, Seal::kPiece);
  if (ofHeader + piece + Seal::kTag > kSealedAtOnce - sealed_.end) return false;
  if (ofHeader > 0) {
    number(request);
    std::memcpy(sealed_.bytes.get() + sealed_.end, &request.frame, sizeof(Frame));
    sealed_.end += sizeof(Frame);
  }
  if (piece > 0) {
    seal_.close(request.payload + ofPayload, piece, sealed_.bytes.get() + sealed_.end);
    sealed_.end += piece + Seal::kTag;
  }
  request.sent += ofHeader + piece;
  return true;
}

// Bytes taken; 0: none now, or it is broken.
std::int64_t Sender::offerTo(int fd, Offer& offer) {
  msghdr message{};
  message.msg_iov = offer.parts;
  message.msg_iovlen = offer.count;
  for (;;) {
    const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | offer.flags);
    if (sent > 0 && (offer.flags & MSG_ZEROCOPY) != 0) {
      Lending& lending = queue_.front().lending;
      if (lending.calls++ == 0) lending.first = lendings_;
      ++lending.open;
      ++lendings_;
      ++lentCalls_;
    }
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    if (errno == ENOBUFS && (offer.flags & MSG_ZEROCOPY) != 0) {  // it lends no more for now
      offer.flags = 0;
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS && errno != ENOMEM) broken_ = errno;
    return 0;
  }
}

void Sender::consume(std::uint64_t bytes) {
  while (bytes > 0) {
    Request& first = queue_.front();
    const std::uint64_t step = std::min(bytes, first.left());
    first.sent += step;
    bytes -= step;
    if (first.left() > 0) return;
    finish(first);
    queue_.pop_front();
  }
}

void Sender::consumeSealed(std::uint64_t bytes) {
  sealed_.begin += bytes;
  if (sealed_.begin < sealed_.end) return;
  for (; !queue_.empty() && queue_.front().left() == 0; queue_.pop_front()) finish(queue_.front());
}

void Sender::finish(Request& request) {
  if (request.load != nullptr && !request.isForLater) --request.load->queued;
  if (request.lending.open > 0) {
    lent_.push_back({request.load, std::move(request.copy), request.lending});
  } else if (request.load != nullptr) {
    --request.load->unfinished;
  }
}

// The kernel tells by the socket's queue of errors, mostly in order, a range of calls at a time.
bool Sender::reclaim(int fd) {
  bool hasMoved = false;
  while (lentCalls_ > 0) {
    alignas(cmsghdr) char room[256];
    msghdr message{};
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      const bool isNotice = (header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR) ||
                            (header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_RECVERR);
      sock_extended_err notice;
      if (!isNotice) continue;
      std::memcpy(&notice, CMSG_DATA(header), sizeof notice);
      if (notice.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      if ((notice.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0) lendFrom_ = kNever;  // it costs, and brings nothing
      const std::uint32_t calls = notice.ee_data - notice.ee_info + 1;
      for (std::uint32_t i = 0; i < calls && lentCalls_ > 0; ++i) giveBack(notice.ee_info + i);
      hasMoved = true;
    }
  }
  return hasMoved;
}

void Sender::giveBack(std::uint32_t call) {
  const auto isOf = [&](const Lending& lending) { return lending.open > 0 && call - lending.first < lending.calls; };
  --lentCalls_;
  const auto at = std::find_if(lent_.begin(), lent_.end(), [&](const Lent& lent) { return isOf(lent.lending); });
  if (at != lent_.end()) {
    if (--at->lending.open > 0) return;
    if (at->load != nullptr) --at->load->unfinished;
    lent_.erase(at);
  } else if (!queue_.empty() && isOf(queue_.front().lending)) {
    --queue_.front().lending.open;
  }
}

void Sender::release(Load* load) {
  std::uint64_t kept = 0;
  for (Request& request : queue_) {
    if (request.sent == 0 && std::exchange(request.isNumbered, false)) --next_;  // anew, without gaps
    if (request.load != load) continue;
    if (request.left() == 0) {  // stands in the buffer of what is encrypted
      request.load = nullptr;
      continue;
    }
    if (request.sent == 0 && (kept += request.frame.bytes) > kMostKept) continue;
    // What there is no memory for is dropped. If a part has been sent, the peer finds the next frame out of place, and
    // gives the connection up.
    const std::uint64_t bytes = request.frame.bytes;
    if (bytes != 0 && !insist([&] { request.copy = std::make_unique<unsigned char[]>(bytes); })) continue;
    if (bytes != 0) std::memcpy(request.copy.get(), request.payload, bytes);
    request.payload = request.copy.get();
    request.load = nullptr;
  }
  std::erase_if(queue_, [&](const Request& request) { return request.load == load; });
  for (Lent& lent : lent_) {
    if (lent.load == load) lent.load = nullptr;
  }
}

void Sender::abandon() {
  for (const Request& request : queue_) {
    if (request.load == nullptr) continue;
    --request.load->unfinished;
    if (!request.isForLater) --request.load->queued;
  }
  for (const Lent& lent : lent_) {
    if (lent.load != nullptr) --lent.load->unfinished;
  }
  queue_.clear();
  sealed_.begin = sealed_.end = 0;
  lent_.clear();
  lentCalls_ = 0;
}

}  // namespace kolo::tcp
