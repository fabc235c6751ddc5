#include "links/peers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/log.h"
#include "links/blob.h"
#include "links/gpu_direct.h"
#include "links/hosts.h"

namespace kolo::links {
namespace {

// Arenas of this process's ranks by communicator and rank, so that ranks that are threads of one process keep each
// other's arena alive as processes do by their mappings.
struct Holdings {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const void>> arenas;
};
Holdings& holdings() {
  static auto* const instance = new Holdings;
  return *instance;
}

constexpr int kTriesOfFirst = 1000;  // of the first request on a link, a millisecond each

}  // namespace

Given Given::of(std::shared_ptr<memory::SharedMemory> memory, std::uint64_t arenaBytes, std::uint64_t arenaAt) {
  Given given;
  given.range = {sizeof given.range, memory->data(), memory->bytes(), memory->fd(), 0, koloMemoryHost};
  given.arenaAt = arenaAt;
  given.arenaBytes = arenaBytes;
  given.owner = std::move(memory);
  return given;
}

Given Given::of(std::shared_ptr<memory::DeviceMemory> memory, std::uint64_t arenaBytes) {
  Given given;
  given.arenaBytes = arenaBytes;
  given.range = {sizeof given.range, memory->as<void>(), memory->bytes(), -1, 0, koloMemoryCuda};
  given.owner = std::move(memory);
  return given;
}

Peers::~Peers() {
  Holdings& all = holdings();
  const std::lock_guard lock(all.mutex);
  all.arenas.erase(holding_);
}

Status Peers::openDevices(Membership& membership, const Purpose& purpose, const std::string& transports) {
  KOLO_ASSIGN(const std::vector<transport::Entry> entries, transport::list(transports));
  koloTransportHost host = transport::thisProcess();
  const std::string secret = membership.control->derivedSecret(fmt::format("communicator {}", membership.key));
  std::memcpy(host.communicator, secret.data(), std::min(secret.size(), sizeof host.communicator));
  host.rank = membership.rank;
  host.ranks = membership.ranks();
  host.timeoutMs = membership.linkTimeMs();
  host.device = purpose.device;
  host.nearNics = purpose.nearNics.c_str();
  host.isOneHost = membership.isOneHost ? 1 : 0;
  for (const transport::Entry& entry : entries) {
    if (transport::memoryKindOf(*entry.table) != static_cast<koloMemoryKind_t>(given_.range.kind)) continue;
    if (entry.table->linkKind == koloLinkPosted && purpose.partBytes == 0) continue;
    if (!entry.works) {
      log::info("transport {} does not work here: {}", entry.table->name, entry.why);
      leftOut_ += fmt::format("; {} does not work here: {}", entry.table->name, entry.why);
      continue;
    }
    Result<std::shared_ptr<transport::Device>> device = transport::Device::open(entry.table, host);
    if (!device.ok()) {
      log::warn("transport {} is left out: {}", entry.table->name, device.status().message());
      leftOut_ += fmt::format("; {} is left out: {}", entry.table->name, device.status().message());
      continue;
    }
    devices_.push_back(device.take());
  }
  return {};
}

// With every transport that can share it.
Status Peers::registerArena() {
  for (const auto& device : devices_) {
    const Status registered = registerArenaWith(*device);
    if (registered.ok()) continue;
    log::warn("transport {} cannot share staging memory: {}", device->name(), registered.message());
    leftOut_ += fmt::format("; {} cannot share staging memory: {}", device->name(), registered.message());
  }
  if (!registrations_.empty() || ranks() == 1 || purpose_.mayMiss) return {};
  return error(koloUnreachable, "rank {} has no transport that works{}", rank_, leftOut_);
}

// Registers the memory in which this rank receives: memory of its GPU if that is possible, else the arena that it was
// given.
Status Peers::registerArenaWith(transport::Device& device) {
  if (purpose_.gpuDirect != nullptr && device.isPosted()) {
    auto direct = purpose_.gpuDirect->registerArena(device);
    if (direct.ok()) {
      registrations_.push_back({&device, direct.take(), true});
      return {};
    }
    log::info("rank {} receives by transport {} in pinned memory of the host: {}", rank_, device.name(),
              direct.status().message());
  }
  koloTransportMemory range = given_.range;
  if (device.isPosted() && given_.arenaAt != 0) {
    range.address = arena();
    range.bytes = given_.arenaBytes;
    range.fdOffset += given_.arenaAt;
  }
  KOLO_ASSIGN(std::unique_ptr<transport::Memory> registration, device.registerMemory(range));
  registrations_.push_back({&device, std::move(registration), false});
  return {};
}

// The transports by which this rank's arena can be reached, and why others are left out.
std::string Peers::offer() const {
  BlobWriter writer;
  writer.put(static_cast<std::uint32_t>(registrations_.size()));
  for (const Registration& each : registrations_) {
    writer.putText(each.device->name())
        .put(each.isOnDevice)
        .putBlob(each.device->address())
        .putBlob(each.memory->descriptor());
  }
  writer.putText(leftOut_);
  return writer.text();
}

// Makes the mirror for a peer in the memory of this rank's GPU, and says whether that was possible. If KOLO_GPUDIRECT
// forces it, each rank returns an error unless both its mirror and its own arena lie in the memory of its GPU.
Result<bool> Peers::mirrorOnDevice(Peer& peer, int rank, transport::Device& device) const {
  const GpuDirect* const direct = purpose_.gpuDirect;
  if (direct == nullptr) return false;
  Result<Mirror> made = direct->makeMirror(device, purpose_.partBytes);
  Status why = made.status();
  if (made.ok()) peer.mirror = made.take();
  const bool receives = std::any_of(registrations_.begin(), registrations_.end(), [&](const Registration& each) {
    return each.device == &device && each.isOnDevice;
  });
  if (why.ok() && !receives) why = error(koloUnsupported, "this rank cannot receive so");
  if (!why.ok() && direct->isForced()) {
    return error(koloUnsupported,
                 "KOLO_GPUDIRECT is {}, but rank {} is reached by transport {}, and that is not possible there: {}; "
                 "expected auto "
                 "or off, or a machine that can",
                 direct->wish(), rank, device.name(), why.message());
  }
  if (!why.ok()) log::debug("rank {} has no GPUDirect both ways with rank {}: {}", rank_, rank, why.message());
  return peer.mirror.isOnDevice;
}

// Makes memory for the mirror, if there is none yet, and registers it for the device by which its bytes are to go.
Status Peers::mirrorOnHost(Peer& peer, transport::Device& device) const {
  const std::uint64_t bytes = purpose_.partBytes;
  if (peer.mirror.data == nullptr) {
    KOLO_ASSIGN(memory::PrivateMemory created, memory::PrivateMemory::create(bytes));
    auto memory = std::make_shared<memory::PrivateMemory>(std::move(created));
    peer.mirror = {.owner = memory, .data = memory->data(), .isOnDevice = false, .registration = nullptr};
  }
  const koloTransportMemory range{sizeof range, peer.mirror.data, bytes, -1, 0, koloMemoryHost};
  KOLO_ASSIGN(peer.mirror.registration, device.registerMemory(range));
  return {};
}

void Peers::listenTo(transport::Device& device) {
  if (std::find(posted_.begin(), posted_.end(), &device) == posted_.end()) posted_.push_back(&device);
}

int Peers::leader() const {
  for (int rank = 0; rank < rank_; ++rank) {
    const Peer& peer = (*this)[rank];
    if (peer.arena != nullptr || (peer.isNear && reachesByMapping() && !peer.isPosted())) return rank;
  }
  return rank_;
}

Result<std::unique_ptr<Peers>> Peers::connect(Membership& membership, Result<Given> arena, const Purpose& purpose,
                                              const std::string& transports, const std::string& settingsText) {
  auto peers = std::make_unique<Peers>();
  peers->peers_.resize(static_cast<std::size_t>(membership.ranks()));
  peers->purpose_ = purpose;
  peers->rank_ = membership.rank;
  peers->holdingPrefix_ =
      fmt::format("{}/{}/{}/", membership.control->derivedSecret("holding"), membership.key, purpose.name);
  Status local = arena.status();
  if (local.ok()) {
    peers->given_ = arena.take();
    local = peers->openDevices(membership, purpose, transports);
  }
  if (local.ok()) local = peers->registerArena();
  BlobWriter offer;
  const HostKey mine = hostKey();
  offer.put(local).put(settingsText).put(mine);
  bool atOnce = membership.ranks() <= purpose.mostAtOnce;
  offer.put(atOnce);
  if (local.ok()) {
    peers->holding_ = peers->holdingPrefix_ + std::to_string(membership.rank);
    const std::lock_guard lock(holdings().mutex);
    holdings().arenas[peers->holding_] = peers->given_.owner;
  }
  KOLO_ASSIGN(std::vector<std::string> blobs, membership.allGather(offer.text() + peers->offer()));
  for (std::size_t rank = 0; rank < blobs.size() && local.ok(); ++rank) {
    BlobReader reader(blobs[rank]);
    const auto verdict = reader.get<Status>();
    if (!verdict.ok()) local = error(verdict.code(), "on rank {}: {}", rank, verdict.message());
    const std::string theirs = reader.getText();
    if (local.ok() && theirs != settingsText) {
      local = error(koloMismatch, "settings differ: rank {} has {}, rank {} has {}", membership.rank, settingsText,
                    rank, theirs);
    }
    peers->peers_[rank].isNear = reader.get<HostKey>() == mine && static_cast<int>(rank) != membership.rank;
    atOnce = reader.get<bool>() && atOnce;
    peers->peers_[rank].offer = reader.rest();
  }
  blobs.clear();
  if (local.ok()) local = peers->openFirst(membership, atOnce);
  KOLO_TRY(peers->agreeOnWays(membership, std::move(local), atOnce));
  return peers;
}

void Peers::hold(Peer& peer, int rank) const {
  const std::lock_guard lock(holdings().mutex);
  const auto held = holdings().arenas.find(holdingPrefix_ + std::to_string(rank));
  if (held != holdings().arenas.end()) peer.held = held->second;
}

std::unique_ptr<Peers> Peers::over(const Peers& base, const std::shared_ptr<const void>& owner,
                                   const std::vector<int>& inBase, int rank, const Purpose& purpose) {
  auto peers = std::make_unique<Peers>();
  peers->base_ = &base;
  peers->baseOwner_ = owner;
  peers->purpose_ = purpose;
  peers->rank_ = rank;
  peers->given_.range = {sizeof(koloTransportMemory), nullptr, 0, -1, 0, koloMemoryHost};
  peers->peers_.resize(inBase.size());
  for (std::size_t i = 0; i < inBase.size(); ++i) {
    if (static_cast<int>(i) == rank) continue;
    Peer& peer = peers->peers_[i];
    peer.device = base[inBase[i]].device;
    peer.link = base[inBase[i]].link;
    peer.arena = peer.link->mapped();  // until it is known where there
    peer.isNear = true;
  }
  return peers;
}

void Peers::setArena(int rank, unsigned char* arena) {
  if (rank == rank_) {
    given_.range.address = arena;
  } else {
    peers_[static_cast<std::size_t>(rank)].arena = arena;
  }
}

void Peers::openDevicesForWindows(Membership& membership, const std::string& transports) {
  if (base_ == nullptr || !devices_.empty()) return;
  Purpose mapped = purpose_;
  mapped.partBytes = 0;  // a posted transport takes no part
  if (const Status opened = openDevices(membership, mapped, transports); !opened.ok())
    log::warn("windows go through staging: {}", opened.message());
}

transport::Device* Peers::windowDevice(int rank) const {
  const std::string_view name = (*this)[rank].device->name();
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& device) { return device->name() == name; });
  return found != devices_.end() ? found->get() : nullptr;
}

unsigned char* Peers::partAt(int rank) const {
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return peer.isPosted() ? peer.mirror.data : peer.arena + purpose_.partAt;
}

bool Peers::reachesByMapping() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.arena != nullptr; });
}

std::uint64_t Peers::offsetInPart(int rank, const void* place) const {
  return purpose_.partAt +
         static_cast<std::uint64_t>(static_cast<const unsigned char*>(place) - (*this)[rank].mirror.data);
}

static_assert(static_cast<std::uint32_t>(device::More::kNothing) == KOLO_TRANSPORT_NOTHING &&
              static_cast<std::uint32_t>(device::More::kSoon) == KOLO_TRANSPORT_SOON &&
              static_cast<std::uint32_t>(device::More::kLater) == KOLO_TRANSPORT_LATER);

Status Peers::accept(int rank, koloTransportPut put) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (peer.isHeld) {
    Status replacement = peer.link->state();
    peer.isGone = !replacement.ok();
    if (peer.isGone) peer.isHeld = false;
    return peer.isGone ? replacement
                       : error(koloInProgress, "rank {} has not yet abandoned the link that was lost", rank);
  }
  if (peer.reroutes != 0) put.rail = 0;  // no later request overtakes those that are repeated
  KOLO_TRY(peer.link->put(put));
  if (peer.link->queued() != 0 && std::find(dirty_.begin(), dirty_.end(), rank) == dirty_.end()) dirty_.push_back(rank);
  return {};
}

Status Peers::put(int rank, const device::Post& post) {
  return accept(rank,
                {.size = sizeof(koloTransportPut),
                 .rail = post.rail,
                 .from = post.data,
                 .bytes = post.bytes,
                 .memory = (*this)[rank].mirror.registration->handle(),
                 .key = nullptr,
                 .to = post.bytes != 0 ? offsetInPart(rank, post.data) : purpose_.partAt,
                 .signalTo = post.counter != nullptr ? offsetInPart(rank, post.counter) : KOLO_TRANSPORT_NO_SIGNAL,
                 .signal = post.value,
                 .more = static_cast<std::uint32_t>(post.more)});
}

Status Peers::set(int rank, std::uint64_t at, std::uint64_t value) {
  const Peer& peer = (*this)[rank];
  if (!peer.isPosted()) {
    device::storeRelease(*reinterpret_cast<device::Counter*>(peer.arena + at), value);  // [call]
    return {};
  }
  return accept(rank, {.size = sizeof(koloTransportPut),
                       .to = at,
                       .signalTo = at,
                       .signal = value,
                       .more = KOLO_TRANSPORT_SOON});  // [call]
}

Status Peers::put(int rank, const device::Post& post, const koloTransportKey& key, std::uint64_t to) {
  return accept(rank,
                {.size = sizeof(koloTransportPut),
                 .rail = post.rail,
                 .from = post.data,
                 .bytes = post.bytes,
                 .memory = nullptr,
                 .key = &key,
                 .to = to,
                 .signalTo = post.counter != nullptr ? offsetInPart(rank, post.counter) : KOLO_TRANSPORT_NO_SIGNAL,
                 .signal = post.value,
                 .more = static_cast<std::uint32_t>(post.more)});
}

bool Peers::progress(int rank, int waitUs) const {
  bool moved = false;
  // Only one transport can sleep: that of the awaited peer. If any peer will do, one transport sleeps for a moment.
  for (transport::Device* const device : posted_) {
    const bool sleeps = posted_.size() == 1 || device == (rank >= 0 ? (*this)[rank].device.get() : posted_.back());
    const int most = posted_.size() > 1 && rank < 0 ? std::min(waitUs, 50) : waitUs;
    moved = device->progress(rank, sleeps && !moved ? most : 0) || moved;
  }
  return moved;
}

bool Peers::isFlushed() {
  std::erase_if(dirty_, [&](int rank) {
    const Peer& peer = (*this)[rank];
    return peer.isHeld ? !peer.link->state().ok() : peer.link->queued() == 0;
  });
  return dirty_.empty();
}

Status Peers::state(int rank) const {
  const Peer& peer = (*this)[rank];
  return peer.isPosted() ? peer.link->state() : Status();
}

// The new link is opened while the lost one is still there: if no new link can be opened, the lost one says why.
Status Peers::reroute(int rank, device::Counter& word) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.isGone = true;  // until there is another
  peer.link->abandon();
  KOLO_ASSIGN(Route route, findRoute(peer, rank, {.first = peer.way + 1u, .isReplacement = true}));
  log::warn("the link from rank {} to rank {} by {} is lost; they go on by {}", rank_, rank, peer.device->name(),
            route.device->name());
  peer.link = std::move(route.link);
  peer.mirror.registration.reset();
  goBy(peer, std::move(route.device));
  peer.address = route.address;
  peer.way = route.way;
  KOLO_TRY(mirrorOnHost(peer, *peer.device));
  listenTo(*peer.device);
  device::storeRelease(word, ++peer.reroutes);
  peer.isHeld = false;
  Status told;
  for (int tries = 0; tries < kTriesOfFirst; ++tries) {
    told = put(rank, {0, nullptr, 0, &word, peer.reroutes});  // [reroute]
    if (told.code() != koloInProgress) break;
    progress(rank, 1000);
  }
  peer.isGone = !told.ok();
  peer.isHeld = told.ok();
  if (std::find(dirty_.begin(), dirty_.end(), rank) == dirty_.end()) dirty_.push_back(rank);
  return told;
}

bool Peers::mayReroute() const {
  const auto posted =
      std::count_if(devices_.begin(), devices_.end(), [](const auto& device) { return device->isPosted(); });
  return posted > 1 && std::any_of(devices_.begin(), devices_.end(),
                                   [](const auto& device) { return device->linksCanBeAbandoned(); });
}

void Peers::listen() const {
  for (const auto& device : devices_) {
    if (device->isPosted() && std::find(posted_.begin(), posted_.end(), device.get()) == posted_.end())
      device->progress(-1, 0);
  }
}

void Peers::cut(int rank, const Status& why) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.unreached = why;
  goBy(peer, nullptr);
  peer.link.reset();
  peer.arena = nullptr;
  peer.way = kNoWay;
}

std::string Peers::transportNames() const {
  const std::lock_guard lock(namesMutex_);
  std::string names;
  for (const auto& device : base_ != nullptr ? base_->devices_ : devices_) {
    const bool used =
        std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.device == device; });
    if (!used) continue;
    if (!names.empty()) names += '+';
    names += device->name();
  }
  return names.empty() ? "self" : names;
}

}  // namespace kolo::links
