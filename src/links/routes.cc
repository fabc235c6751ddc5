// The choice of the transport by which each pair of ranks goes.
//
// The two ends of a link must use one transport: whether a rank waits for a link's progress, how many rails its
// counters have, and how long a chunk of a message is, all follow from the transport. So both ends number the
// transports that serve the pair alike (candidates()), and try them in that order. A transport that says UNREACHABLE
// says so to both ends. One end may fail otherwise, because it is short of file descriptors for a moment, say. Both
// ends then take the later one of the two transports that they have come to (agreeOnWays()). Where links are made at
// first use, the peer may not be asked, and the link fails with the reason.
#include <algorithm>

#include "base/log.h"
#include "common/clock.h"
#include "links/blob.h"
#include "links/peers.h"

namespace kolo::links {
namespace {

struct Offer {
  std::string name;
  bool isOnDevice;
  koloTransportBlob address, memory;
};

// Reads what Peers::offer() wrote. *leftOut: what the offer says of the transports that are left out.
std::vector<Offer> readOffers(const std::string& text, std::string* leftOut) {
  std::vector<Offer> offers;
  BlobReader reader(text);
  for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left) {
    Offer offer{.name = reader.getText(),
                .isOnDevice = reader.get<bool>(),
                .address = reader.getBlob(),
                .memory = reader.getBlob()};
    offers.push_back(std::move(offer));
  }
  *leftOut = reader.getText();
  return offers;
}

}  // namespace

// The transports with which both ends have registered their arenas, in the order in which the lesser rank prefers them.
std::vector<Peers::Candidate> Peers::candidates(const Peer& peer, int rank, std::string* leftOutThere) const {
  const std::vector<Offer> theirs = readOffers(peer.offer, leftOutThere);
  std::vector<Candidate> both;
  const auto add = [&](const Registration& mine, const Offer& offer) {
    const auto device =
        std::find_if(devices_.begin(), devices_.end(), [&](const auto& each) { return each.get() == mine.device; });
    if (offer.name == mine.device->name()) both.push_back({*device, offer.isOnDevice, offer.address, offer.memory});
  };
  if (rank_ < rank) {
    for (const Registration& mine : registrations_) {
      for (const Offer& offer : theirs) add(mine, offer);
    }
  } else {
    for (const Offer& offer : theirs) {
      for (const Registration& mine : registrations_) add(mine, offer);
    }
  }
  return both;
}

Result<Peers::Route> Peers::findRoute(Peer& peer, int rank, const Search& search) {
  std::string leftOutThere, ofMapped, ofPosted, failed, late;
  std::vector<Candidate> tried = candidates(peer, rank, &leftOutThere);
  for (std::size_t way = search.first; way < tried.size(); ++way) {
    Candidate& each = tried[way];
    if (search.isReplacement && !each.device->isPosted()) continue;
    if (nowNs() > linksUntilNs_) {
      late = fmt::format("; no time was left to try it by {} (KOLO_INIT_TIMEOUT_MS)", each.device->name());
      break;
    }
    auto link = each.device->openLink(each.address, each.memory,
                                      (each.device->isPosted() ? 0 : given_.arenaAt) + given_.arenaBytes);
    Status why = link.status();
    const bool needsMirror =
        each.device->isPosted() && !search.isReplacement;  // of one that is replaced there is the mirror already
    if (why.ok() && needsMirror) {
      KOLO_ASSIGN(const bool isOnDevice, mirrorOnDevice(peer, rank, *each.device));
      why = isOnDevice ? Status() : mirrorOnHost(peer, *each.device);
      if (!why.ok()) peer.mirror = {};
    }
    if (why.ok()) {
      if (!failed.empty())
        log::warn("rank {} reaches rank {} by {}, for what comes before it failed{}", rank_, rank, each.device->name(),
                  failed);
      return Route{each.device, each.address, each.isArenaOnDevice, link.take(), static_cast<std::uint8_t>(way)};
    }
    (each.device->isPosted() ? ofPosted : ofMapped) += "; " + why.message();
    if (why.code() == koloUnreachable) continue;
    failed += "; " + why.message();
    if (search.isAlone) {
      return error(koloUnreachable, "rank {} cannot be reached from rank {} by {}, by which it may reach this one: {}",
                   rank, rank_, each.device->name(), why.message());
    }
  }
  // First what should have worked: between hosts nobody expects to share memory.
  std::string reasons = (peer.isNear ? ofMapped + ofPosted : ofPosted + ofMapped) + late;
  if (reasons.empty()) reasons = "; there is none";
  if (!leftOutThere.empty()) reasons += fmt::format("; on rank {}{}", rank, leftOutThere.substr(1));
  return error(koloUnreachable, "rank {} cannot be reached from rank {} by any {}transport that both have{}{}", rank,
               rank_, search.isReplacement ? "other " : "", reasons, leftOut_);
}

void Peers::goBy(Peer& peer, std::shared_ptr<transport::Device> device) {
  const std::lock_guard lock(namesMutex_);
  peer.device = std::move(device);
}

Status Peers::openLink(Peer& peer, int rank, const Search& search) {
  KOLO_ASSIGN(Route route, findRoute(peer, rank, search));
  goBy(peer, std::move(route.device));
  peer.way = route.way;
  peer.address = route.address;
  peer.isArenaOnDevice = route.isArenaOnDevice;
  peer.link = std::move(route.link);
  peer.arena = peer.link->mapped();
  if (peer.arena != nullptr) peer.arena += given_.arenaAt;
  if (peer.isPosted()) listenTo(*peer.device);
  return {};
}

Status Peers::open(int rank) { return open(rank, {.isAlone = true}); }

Status Peers::open(int rank, const Search& search) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.link != nullptr || !peer.unreached.ok()) return peer.unreached;
  peer.unreached = openLink(peer, rank, search);
  if (search.isAlone) forgetOffer(peer);
  if (peer.unreached.ok()) hold(peer, rank);
  return peer.unreached;
}

// Frees the text of the peer's offer if no further link will be opened by it.
void Peers::forgetOffer(Peer& peer) {
  if (!peer.unreached.ok() || (peer.link != nullptr && !peer.link->canBeAbandoned())) peer.offer = {};
}

bool Peers::isLeftOut(int rank) const {
  return !purpose_.without.empty() && purpose_.without[static_cast<std::size_t>(rank)];
}

// Sets the time by which all links must be open: the other ranks wait for this one in the next exchange.
void Peers::beginLinks(const Membership& membership) {
  linksUntilNs_ = nowNs() + membership.ownTimeMs() * std::int64_t{1'000'000};
}

// Opens links to all ranks, or to one rank on this host.
Status Peers::openFirst(const Membership& membership, bool all) {
  beginLinks(membership);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_ || !(all || (*this)[rank].isNear) || isLeftOut(rank)) continue;
    Status opened = open(rank, {.isAlone = !all});
    if (!opened.ok() && !purpose_.mayMiss) return membership.whyUnreached(rank, opened);
    if (!all) break;
  }
  // A peer by a posted link may send before this rank has opened its end.
  for (const auto& device : devices_) {
    const bool allNear =
        std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.isNear; }) == ranks() - 1;
    const bool listed = std::find(posted_.begin(), posted_.end(), device.get()) != posted_.end();
    if (!all && device->isPosted() && !listed && (!allNear || !reachesByMapping())) posted_.push_back(device.get());
  }
  return {};
}

// Replaces this rank's link by one of a later transport, because the peer could not use the transport of this one.
Status Peers::follow(int rank, std::uint8_t way) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const std::string before = peer.device->name();
  cut(rank, error(koloUnreachable, "rank {} does not reach rank {} by any transport that both have", rank, rank_));
  peer.mirror = {};
  peer.held.reset();
  if (way == kNoWay) return purpose_.mayMiss ? Status() : peer.unreached;
  peer.unreached = {};
  KOLO_TRY(open(rank, {.first = way}));
  log::info("rank {} reaches rank {} by {}, for that one could not go by {}", rank_, rank, peer.device->name(), before);
  return {};
}

// Collective. Without an error on any rank: until both ends of each pair have come to the same way. Each round that is
// not the last brings some pair to a later one.
Status Peers::agreeOnWays(Membership& membership, Status mine, bool all) {
  for (;;) {
    std::string row;
    for (const Peer& peer : peers_) row += static_cast<char>(peer.way);
    BlobWriter writer;
    writer.put(mine).put(all ? row : std::string());
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership.allGather(writer.text()));
    KOLO_TRY(mine);
    std::vector<std::string> rows;
    for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
      BlobReader reader(blobs[rank]);
      const auto verdict = reader.get<Status>();
      if (!verdict.ok()) return error(verdict.code(), "on rank {}: {}", rank, verdict.message());
      rows.push_back(reader.getText());
      if (rows.back().size() != row.size()) rows.back() = row;
    }
    bool agreed = true;
    for (std::size_t one = 0; one < rows.size() && all; ++one) {
      for (std::size_t other = 0; other < one; ++other) agreed = agreed && rows[one][other] == rows[other][one];
    }
    if (agreed) break;
    beginLinks(membership);
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto theirs =
          static_cast<std::uint8_t>(rows[static_cast<std::size_t>(rank)][static_cast<std::size_t>(rank_)]);
      if (mine.ok() && rank != rank_ && theirs > (*this)[rank].way) mine = follow(rank, theirs);
    }
  }
  linksUntilNs_ = INT64_MAX;
  if (all) std::for_each(peers_.begin(), peers_.end(), forgetOffer);
  return {};
}

}  // namespace kolo::links
