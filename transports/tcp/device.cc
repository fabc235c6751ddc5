#include "device.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/insist.h"

namespace kolo::tcp {
namespace {

// Lending pages to the kernel costs about what copying this many bytes does; and it spares a core only on networks of
// such a speed, in Mbit/s, for what is received on this host is copied anyway.
constexpr std::uint64_t kLendFrom = 64 << 10;
constexpr std::int64_t kLendSpeed = 25000;

}  // namespace

int Device::open(const koloTransportHost& host, koloTransportBlob* address, const Why& why) {
  logTo(host);
  const bool encrypts = connect::settingOf(host, "KOLO_ENCRYPT") == "1";
  checksPayload_ = !encrypts && connect::settingOf(host, "KOLO_TCP_CHECKSUM") == "1";
  scratch_.resize(encrypts ? Way::kSealedScratch : Way::kScratch);
  if (const std::string bytes(connect::settingOf(host, "KOLO_TEST_TCP_ZEROCOPY_BYTES")); !bytes.empty())
    lendFrom_ = std::atoll(bytes.c_str());
  epoll_ = network::Socket(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return why.fail(KOLO_TRANSPORT_ERROR, "opening an epoll: %s", common::ErrorText(errno).text);
  }
  byRank_.resize(static_cast<std::size_t>(std::max(host.ranks, 1)));
  const std::string sockets(connect::settingOf(host, "KOLO_TCP_SOCKETS"));
  const connect::Wishes wishes{"kolo transport tcp", connect::settingOf(host, "KOLO_TCP_INTERFACES"),
                               connect::settingOf(host, "KOLO_PORT_RANGE"), std::atoi(sockets.c_str())};
  const int code = connect::openParty(host, wishes, this, &party_, why);
  if (code == KOLO_TRANSPORT_OK) common::toBlob(party_.address, address);
  return code;
}

Device::~Device() {
  const bool isOurs = party_.isOurs();
  if (isOurs) connect::closeParty(party_);
  if (isOurs && !isAbandoned_) (void)insist([this] { finish(); });
}

// ---- the listener's thread

void Device::arrive(const connect::Caller& caller, std::vector<network::Socket> rails) {
  accept(caller, wayOf(caller, std::move(rails), false));
}

// ---- ways

std::unique_ptr<Way> Device::wayOf(const connect::Caller& peer, std::vector<network::Socket> rails, bool isDialler) {
  auto way = std::make_unique<Way>();
  way->peer = peer;
  way->silenceMs = party_.silenceMs;
  for (network::Socket& socket : rails) {
    prepare(socket, party_.silenceMs);
    const std::uint64_t lends = peer.cipher == connect::Cipher::kNone ? lendFrom(socket) : Sender::kNever;
    const std::size_t number = way->rails.size();
    way->rails.push_back(std::make_unique<Rail>(way.get(), std::move(socket), memories_,
                                                Direction{peer.key, number, isDialler, peer.cipher},
                                                Direction{peer.key, number, !isDialler, peer.cipher}));
    way->rails.back()->sender.lendFrom(lends);
  }
  return way;
}

std::uint64_t Device::lendFrom(const network::Socket& socket) const {
  std::uint64_t bytes = lendFrom_ >= 0 ? static_cast<std::uint64_t>(lendFrom_) : kLendFrom;
  if (lendFrom_ < 0) {
    const network::Place* const place = connect::placeOf(party_, socket);
    const bool pays =
        place != nullptr && place->made == network::Made::kHardware && place->speed >= network::speedClass(kLendSpeed);
    if (!pays) bytes = Sender::kNever;
  }
  const int yes = 1;
  if (bytes != Sender::kNever && setsockopt(socket.fd(), SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof yes) != 0)
    bytes = Sender::kNever;
  return bytes;
}

void Device::hasArrived(Way& way) {
  hasArrived_.store(true, std::memory_order_release);  // [tcp arrival]
  // Last, for the other thread may see an event at once.
  for (const auto& rail : way.rails) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = rail.get();
    (void)epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, rail->socket.fd(), &event);
  }
}

// What the listener's thread has brought becomes this thread's. What comes meanwhile says so again.
void Device::adopt() {
  if (!hasArrived_.load(std::memory_order_relaxed)) return;
  (void)hasArrived_.exchange(false, std::memory_order_acquire);  // [tcp arrival]
  for (std::unique_ptr<Way>& way : takeArrived()) {
    if (way->peer.rank < byRank_.size()) byRank_[way->peer.rank].push_back(way.get());
    ways_.push_back(std::move(way));
  }
}

Way* Device::findWay(const connect::IdKey& peer) {
  adopt();
  for (const auto& way : ways_) {
    if (way->isBroken) forget(*way);
    else if (way->peer.device == peer) return way.get();
  }
  return nullptr;
}

int Device::makeWay(const connect::Caller& to, const connect::Address&, std::vector<network::Socket> rails,
                    Clock::time_point, const Why&, std::unique_ptr<Way>* way) {
  *way = wayOf(to, std::move(rails), true);
  return KOLO_TRANSPORT_OK;
}

void Device::lose(Way& way, const std::string& why) {
  if (way.isLost) return;
  way.isLost = way.isBroken = true;
  way.why = fmt::format("rank {}: {}", way.peer.rank, why);
  way.abandon();
  const auto isOfWay = [&](const Rail* rail) { return rail->way == &way; };
  std::erase_if(blocked_, isOfWay);
  std::erase_if(gathering_, isOfWay);
  forget(way);  // first: the listener asks no more whether it is stale
  for (const auto& rail : way.rails) rail->socket.close();
}

// ---- memories and links

// A payload that is half there would go on into memory that may be anything by now. The way is lost with the frame's
// end, not at once: what this rank has sent by it is on its way still, and if the device is closed next, the peer is to
// have it.
void Device::deregister(std::uint64_t memory) {
  memories_.remove(memory);
  for (const auto& way : ways_) {
    for (const auto& rail : way->rails) rail->parser.forget(memory);
  }
}

int Device::openLink(const connect::Address& peer, std::uint64_t memory, std::uint64_t bytes, const Why& why,
                     Link** opened) {
  Way* way = nullptr;
  const int code = connectTo(peer, why, &way);
  if (code != KOLO_TRANSPORT_OK) return code;
  links_.push_back(std::make_unique<Link>(Link{way, memory, bytes, {}}));
  *opened = links_.back().get();
  return KOLO_TRANSPORT_OK;
}

void Device::closeLink(Link* link) {
  if (party_.isOurs() && !link->way->isLost) {
    for (const auto& rail : link->way->rails) rail->sender.release(&link->load);
  }
  std::erase_if(links_, [&](const auto& one) { return one.get() == link; });
}

}  // namespace kolo::tcp
