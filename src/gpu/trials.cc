#include "gpu/trials.h"

#include <algorithm>
#include <chrono>

namespace kolo::gpu {
namespace {

using Clock = std::chrono::steady_clock;

// For the bytes of a put to come into a GPU's memory after their sender's NIC was done with them.
constexpr std::chrono::seconds kArrival{2};

}  // namespace

Trials::Line Trials::lineFrom(int from, int to) const {
  Line line;
  std::uint64_t word =
      membership_.key + static_cast<std::uint64_t>(from) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(to) + 1;
  for (std::uint64_t& each : line) {  // splitmix64
    word += 0x9e3779b97f4a7c15u;
    std::uint64_t mixed = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    each = mixed ^ mixed >> 31;
  }
  return line;
}

unsigned char* Trials::trialOf(unsigned char* arena, int peer) const {
  return arena + layout_.partAt(peer) + layout_.trialIn();
}

// By a kernel, as operations do; the line waits in the host's memory, so that no copy of the driver's is needed.
Status Trials::write(unsigned char* to, const Line& line) const {
  KOLO_ASSIGN(const executor::cuda::Lent pad, gpu_.lend(executor::cuda::Lent::Where::kHost, sizeof line));
  std::copy(line.begin(), line.end(), pad.as<std::uint64_t>());
  return gpu_.moveLine(to, pad.as());
}

Result<Trials::Line> Trials::read(const unsigned char* from) const {
  KOLO_ASSIGN(const executor::cuda::Lent pad, gpu_.lend(executor::cuda::Lent::Where::kHost, sizeof(Line)));
  KOLO_TRY(gpu_.moveLine(pad.as(), from));
  Line line;
  std::copy_n(pad.as<std::uint64_t>(), line.size(), line.begin());
  return line;
}

// ---- mapped

// To every peer, and for it to read.
Status Trials::writeMapped(links::Peers& peers) const {
  const int rank = membership_.rank;
  KOLO_TRY(write(trialOf(peers.arena(), rank), lineFrom(rank, rank)));
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    if (peers[peer].link != nullptr) KOLO_TRY(write(trialOf(peers[peer].arena, rank), lineFrom(rank, peer)));
  }
  return {};
}

// Whether what the peer wrote has come here, and what it wrote at home can be read from here.
Result<bool> Trials::checkMapped(links::Peers& peers, int peer) const {
  KOLO_ASSIGN(const Line arrived, read(trialOf(peers.arena(), peer)));
  KOLO_ASSIGN(const Line theirs, read(trialOf(peers[peer].arena, peer)));
  return arrived == lineFrom(peer, membership_.rank) && theirs == lineFrom(peer, peer);
}

Result<std::vector<std::string>> Trials::proveMapped(links::Peers& peers) {
  Status status = writeMapped(peers);
  KOLO_TRY(membership_.agree(status));
  std::string works(static_cast<std::size_t>(membership_.ranks()), '1');
  for (int peer = 0; peer < membership_.ranks() && status.ok(); ++peer) {
    if (peer == membership_.rank) continue;
    if (peers[peer].link == nullptr) {
      works[static_cast<std::size_t>(peer)] = '0';
      continue;
    }
    const Result<bool> proven = checkMapped(peers, peer);
    status = proven.status();
    if (!proven.ok() || proven.value()) continue;
    works[static_cast<std::size_t>(peer)] = '0';
    peers.cut(peer, error(koloUnreachable,
                          "what device {} writes to the memory of rank {} does not arrive there, or the other "
                          "way (PCIe access control, ACS, or an IOMMU between them?)",
                          gpu_.ordinal(), peer));
  }
  KOLO_TRY(membership_.agree(status));
  KOLO_ASSIGN(std::vector<std::string> rows, membership_.allGather(works));
  for (int peer = 0; peer < membership_.ranks(); ++peer) {
    if (peer == membership_.rank) continue;
    const bool theirs = rows[static_cast<std::size_t>(peer)][static_cast<std::size_t>(membership_.rank)] == '1';
    if (!theirs && peers[peer].link != nullptr) {
      peers.cut(peer, error(koloUnreachable, "rank {} does not reach this rank's device", peer));
    }
  }
  return rows;
}

// ---- posted: word r of the line goes by rail r, for each may be another NIC

Status Trials::post(links::Peers& peers, int peer) const {
  unsigned char* const mirrored = peers.partAt(peer) + layout_.trialIn();
  const Line line = lineFrom(membership_.rank, peer);
  if (peers[peer].mirror.isOnDevice) {
    KOLO_TRY(write(mirrored, line));
  } else {
    std::copy_n(line.data(), line.size(), reinterpret_cast<std::uint64_t*>(mirrored));
  }
  for (std::uint32_t rail = 0; rail < peers[peer].link->rails();) {
    Status put = peers.put(peer, {rail, mirrored + rail * sizeof line[0], sizeof line[0], nullptr, 0});
    if (put.ok()) ++rail;
    else if (put.code() == koloInProgress) (void)peers.progress(peer, 1000);
    else return put;
  }
  return {};
}

Status Trials::postAll(links::Peers& peers) const {
  for (int peer = 0; peer < peers.ranks(); ++peer) {
    if (peers[peer].isPosted()) KOLO_TRY(post(peers, peer));
  }
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(membership_.ownTimeMs());
  while (!peers.isFlushed() && Clock::now() < end) (void)peers.progress(-1, 1000);
  return {};
}

Result<bool> Trials::hasArrived(links::Peers& peers, int peer, const Inbox& inbox) const {
  const Line expected = lineFrom(peer, membership_.rank);
  Line line{};
  const std::uint32_t rails = peers[peer].link->rails();
  unsigned char* const trial = inbox.part + layout_.trialIn();
  if (inbox.isOnDevice) {
    KOLO_ASSIGN(line, read(trial));
  } else {
    const auto* const words = reinterpret_cast<const device::Counter*>(trial);
    for (std::size_t i = 0; i < line.size(); ++i)
      line[i] = device::loadRelaxed(words[i]);  // nothing depends on their order
  }
  return std::equal(expected.begin(), expected.begin() + rails, line.begin());
}

// The ranks whose words do not come: "1, 2".
Result<std::string> Trials::awaitPosted(links::Peers& peers, const std::vector<Inbox>& inboxes) const {
  std::string missing;
  const Clock::time_point end = Clock::now() + kArrival;
  for (int peer = 0; peer < peers.ranks(); ++peer) {
    const Inbox& inbox = inboxes[static_cast<std::size_t>(peer)];
    if (inbox.part == nullptr) continue;
    for (;;) {
      KOLO_ASSIGN(const bool arrived, hasArrived(peers, peer, inbox));
      if (arrived) break;
      if (Clock::now() >= end) {
        missing += fmt::format("{}{}", missing.empty() ? "" : ", ", peer);
        break;
      }
      (void)peers.progress(peer, 1000);
    }
  }
  return missing;
}

Result<std::string> Trials::provePosted(links::Peers& peers, const std::vector<Inbox>& inboxes) {
  KOLO_TRY(membership_.agree(postAll(peers)));
  const Result<std::string> missing = awaitPosted(peers, inboxes);
  KOLO_TRY(membership_.agree(missing.status()));
  KOLO_ASSIGN(const std::vector<std::string> all, membership_.allGather(missing.value()));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    return fmt::format(
        "what rank {} writes to rank {} by a NIC, out of a GPU's memory or into one, does not arrive (PCIe access "
        "control, ACS, "
        "or an IOMMU between them?)",
        all[rank], rank);
  }
  return std::string();
}

}  // namespace kolo::gpu
