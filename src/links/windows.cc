#include "links/windows.h"

#include <algorithm>

#include "base/log.h"
#include "links/blob.h"
#include "memory/shared_memory.h"

namespace kolo::links {
namespace {

koloTransportMemory rangeOf(const Window& window, std::uint32_t kind) {
  koloTransportMemory range{sizeof(koloTransportMemory), window.begin, window.bytes, -1, 0, kind};
  if (const auto backing = memory::findBacking(window.begin, window.bytes); backing.has_value()) {
    range.fd = backing->fd;
    range.fdOffset = backing->fdOffset;
  }
  return range;
}

// This rank's range registered with every transport in use that maps; the blob tells peers the addresses and
// descriptors by transport name.
std::string registerEverywhere(Window& window, const Peers& peers) {
  const koloTransportMemory range = rangeOf(window, peers.memoryKind());
  BlobWriter descriptors;
  std::uint32_t registered = 0;
  for (const auto& device : peers.devices()) {
    if (window.bytes == 0) break;
    if (device->isPosted()) continue;  // maps nothing; see isKnown()
    auto registration = device->registerMemory(range);
    if (!registration.ok()) {
      log::info("window at {}: {}", fmt::ptr(window.begin), registration.status().message());
      continue;
    }
    descriptors.putText(device->name()).putBlob(device->address()).putBlob(registration.value()->descriptor());
    window.registrations.push_back(registration.take());
    ++registered;
  }
  BlobWriter blob;
  blob.put(static_cast<std::uint64_t>(window.bytes)).put(reinterpret_cast<std::uint64_t>(window.begin)).put(registered);
  return blob.text() + descriptors.text();
}

// Where the peer has its part, as both kinds of blobs say behind the part's bytes.
std::uint64_t addressIn(const std::string& blob) {
  BlobReader reader(blob);
  (void)reader.get<std::uint64_t>();
  return reader.get<std::uint64_t>();
}

// The peer's part of the window, mapped; nullptr for an empty part.
Result<std::unique_ptr<transport::Link>> openPart(const Peers& peers, int rank, const std::string& blob) {
  const Peer& peer = peers[rank];
  BlobReader reader(blob);
  const auto bytes = reader.get<std::uint64_t>();
  if (bytes == 0) return std::unique_ptr<transport::Link>();
  (void)reader.get<std::uint64_t>();  // the address
  if (peer.device == nullptr) return peer.unreached;
  if (peer.isPosted()) return error(koloUnsupported, "transport {} maps no memory of peers", peer.device->name());
  transport::Device* const device = peers.windowDevice(rank);
  for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated() && device != nullptr; --left) {
    const std::string name = reader.getText();
    const koloTransportBlob address = reader.getBlob(), descriptor = reader.getBlob();
    if (name == device->name()) return device->openLink(address, descriptor, bytes);
  }
  return error(koloUnsupported, "the peer's memory is not registered with transport {}", peer.device->name());
}

}  // namespace

Status Windows::open(int ranks, HoldLinks holdLinks) {
  holdLinks_ = std::move(holdLinks);
  ranks_ = ranks;
  KOLO_ASSIGN(tables_,
              memory::PrivateMemory::create(static_cast<std::size_t>(ranks) * kMost * sizeof(device::WindowPart)));
  return {};
}

std::unique_ptr<Window> Windows::make(void* buffer, std::size_t bytes) {
  auto window = std::make_unique<Window>();
  window->begin = static_cast<unsigned char*>(buffer);
  window->bytes = bytes;
  window->hold = memory::Hold(buffer);
  return window;
}

// What all ranks say of their parts of a new window. The ranks also say which windows they have abandoned. The part
// of a rank that has abandoned a window is used no more: its address may be another window's now. A window that all
// ranks have abandoned ends here, on all ranks before the new one is added.
Result<std::vector<std::string>> Windows::exchange(Membership& membership, const std::string& mine) {
  std::vector<std::size_t> votes(windows_.size());
  BlobWriter abandoned;
  std::uint32_t count = 0;
  for (const std::unique_ptr<Window>& window : windows_) {
    if (window == nullptr || !isAbandoned(*window)) continue;
    abandoned.put(window->index);
    ++count;
  }
  KOLO_ASSIGN(std::vector<std::string> blobs,
              membership.allGather(BlobWriter().put(count).text() + abandoned.text() + mine));
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    BlobReader reader(blobs[rank]);
    for (auto left = reader.get<std::uint32_t>(); left > 0 && !reader.truncated(); --left) {
      const auto index = reader.get<std::uint32_t>();
      if (index >= votes.size() || windows_[index] == nullptr) continue;
      // One vote of each rank, however often it names the window. The ranks come in order, so as many votes as there
      // are ranks before this one are all of theirs, and none of this one's.
      if (votes[index] == rank) ++votes[index];
      table(static_cast<int>(rank))[index] = {};
    }
    blobs[rank] = std::string(reader.rest());
  }
  for (std::size_t index = 0; index < votes.size(); ++index) {
    if (votes[index] == blobs.size()) drop(*windows_[index]);
  }
  return blobs;
}

// Gives the window the first index that is free, which is the same on all ranks.
Status Windows::takeIndex(Window& window) const {
  const auto free = std::find(windows_.begin(), windows_.end(), nullptr);
  window.index = static_cast<std::uint32_t>(free - windows_.begin());
  if (window.index != kMost) return {};
  return error(koloInvalidUsage, "a communicator can have {} windows and they are all in use; deregister some", kMost);
}

Result<Window*> Windows::add(Membership& membership, Peers& peers, void* buffer, std::size_t bytes) {
  std::unique_ptr<Window> window = make(buffer, bytes);
  const std::string mine = [&] {
    const auto held = holdLinks_();
    return registerEverywhere(*window, peers);
  }();
  KOLO_ASSIGN(const std::vector<std::string> blobs, exchange(membership, mine));
  KOLO_TRY(takeIndex(*window));
  for (const std::string& blob : blobs) window->addresses.push_back(addressIn(blob));
  const std::string why = openParts(*window, membership.rank, peers, blobs);
  return keep(membership, std::move(window), why);
}

// What keeps this rank from the others' parts; "": nothing does. The links are not held while others are waited for:
// these may wait for what is repeated by a new link.
std::string Windows::openParts(Window& window, int own, Peers& peers, const std::vector<std::string>& blobs) {
  const auto held = holdLinks_();
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    device::WindowPart& part = table(rank)[window.index];
    if (rank == own) {
      part = {window.begin, window.bytes};
      continue;
    }
    (void)peers.open(rank);  // openPart() says if it could not be
    auto link = openPart(peers, rank, blobs[static_cast<std::size_t>(rank)]);
    if (!link.ok()) return link.status().message();
    if (link.value() != nullptr)
      part = {link.value()->mapped(), BlobReader(blobs[static_cast<std::size_t>(rank)]).get<std::uint64_t>()};
    window.links.push_back(link.take());
  }
  return {};
}

Result<Window*> Windows::addMapped(Membership& membership, Peers& peers, void* const* parts, const std::size_t* bytes) {
  const auto own = static_cast<std::size_t>(membership.rank);
  std::unique_ptr<Window> window = make(parts[own], bytes[own]);
  window->isMapped = true;
  BlobWriter mine;
  mine.put(static_cast<std::uint64_t>(bytes[own])).put(reinterpret_cast<std::uint64_t>(window->begin));
  KOLO_ASSIGN(const std::vector<std::string> theirs, exchange(membership, mine.text()));
  KOLO_TRY(takeIndex(*window));
  for (int rank = 0; rank < membership.ranks(); ++rank)
    table(rank)[window->index] = {static_cast<unsigned char*>(parts[rank]), bytes[rank]};
  for (const std::string& blob : theirs) window->addresses.push_back(addressIn(blob));
  const std::string why = checkMapped(membership.rank, peers, theirs, parts, bytes);
  return keep(membership, std::move(window), why);
}

// As openParts().
std::string Windows::checkMapped(int own, Peers& peers, const std::vector<std::string>& theirs, void* const* parts,
                                 const std::size_t* bytes) {
  const auto held = holdLinks_();
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    if (rank == own) continue;
    (void)peers.open(rank);
    const auto given = BlobReader(theirs[static_cast<std::size_t>(rank)]).get<std::uint64_t>();
    // What is said by a posted link may arrive before what was written past it.
    if (peers[rank].device == nullptr || peers[rank].isPosted())
      return fmt::format("rank {} is reached by messages", rank);
    if (given != 0 && parts[rank] == nullptr)
      return fmt::format("rank {} has not mapped the memory of rank {}", own, rank);
    if (given != bytes[rank])
      return fmt::format("rank {} gives {} bytes, which rank {} takes to be {}", rank, given, own, bytes[rank]);
  }
  return {};
}

// Zero-copy for all ranks or for none, so that all choose alike. why: what keeps this rank from it, if anything does.
Result<Window*> Windows::keep(Membership& membership, std::unique_ptr<Window> window, const std::string& why) {
  const std::uint32_t index = window->index;
  BlobWriter verdict;
  verdict.put(static_cast<std::uint8_t>(why.empty()));
  const Result<std::vector<std::string>> told = membership.allGather(verdict.text());
  if (!told.ok()) {
    isInDoubt_ = true;
    return told.status();
  }
  const std::vector<std::string>& verdicts = told.value();
  window->zeroCopy = std::all_of(verdicts.begin(), verdicts.end(),
                                 [](const std::string& text) { return BlobReader(text).get<std::uint8_t>() == 1; });
  if (!window->zeroCopy) {
    log::info("window at {}, {} bytes: operations on it go through staging: {}", fmt::ptr(window->begin), window->bytes,
              why.empty() ? "another rank's part cannot be mapped" : why);
  }
  show(*window);
  ++changes_;
  if (window->zeroCopy) ++zeroCopies_;
  Window* result = window.get();
  if (index == windows_.size()) windows_.emplace_back();
  windows_[index] = std::move(window);
  return result;
}

void Windows::show(const Window& window) {
  if (window.zeroCopy && window.bytes != 0)
    extents_.insert(extents_.begin(), {window.begin, window.bytes, window.index});
}

void Windows::hide(const Window& window) {
  std::erase_if(extents_, [&](const Extent& extent) { return extent.index == window.index; });
}

unsigned char* Windows::placeOf(int rank, std::uint64_t address, std::uint64_t bytes) const {
  for (const std::unique_ptr<Window>& window : windows_) {  // this rank's part may be empty, and in no extent
    if (window == nullptr || !window->zeroCopy) continue;
    const device::WindowPart& part = table(rank)[window->index];
    const std::uint64_t offset = address - window->addresses[static_cast<std::size_t>(rank)];
    if (offset <= part.bytes && bytes <= part.bytes - offset) return part.begin + offset;  // as in find()
  }
  return nullptr;
}

bool Windows::isKnown(const void* buffer, std::uint64_t bytes, transport::Device& device) {
  const auto* const at = static_cast<const unsigned char*>(buffer);
  const auto holds = [&](const std::unique_ptr<Window>& window) {
    if (window == nullptr || isAbandoned(*window)) return false;
    const auto offset = static_cast<std::uint64_t>(at - window->begin);  // as in find()
    return offset <= window->bytes && bytes <= window->bytes - offset;
  };
  const auto found = std::find_if(windows_.begin(), windows_.end(), holds);
  if (found == windows_.end()) return false;
  Window& window = **found;
  const auto isOfDevice = [&](const auto& registration) { return &registration->device() == &device; };
  if (std::any_of(window.registrations.begin(), window.registrations.end(), isOfDevice)) return true;
  if (std::find(window.refusedBy.begin(), window.refusedBy.end(), &device) != window.refusedBy.end()) return false;
  auto registration = device.registerMemory(rangeOf(window, koloMemoryHost));
  if (!registration.ok()) {
    log::info("window at {}: long messages go through staging: {}", fmt::ptr(window.begin),
              registration.status().message());
    window.refusedBy.push_back(&device);
    return false;
  }
  window.registrations.push_back(registration.take());
  return true;
}

Status Windows::agree(Membership& membership, const Window& window) const {
  BlobWriter mine;
  mine.put(window.index);
  KOLO_ASSIGN(const std::vector<std::string> theirs, membership.allGather(mine.text()));
  for (std::size_t rank = 0; rank < theirs.size(); ++rank) {
    const auto index = BlobReader(theirs[rank]).get<std::uint32_t>();
    if (index == window.index) continue;
    const auto found = std::ranges::find_if(
        windows_, [&](const std::unique_ptr<Window>& each) { return each != nullptr && each->index == index; });
    const std::string other = found == windows_.end()
                                  ? "another one"
                                  : fmt::format("the one that has {} bytes at {} on rank {}", (*found)->bytes,
                                                fmt::ptr((*found)->begin), membership.rank);
    return error(koloMismatch, "rank {} deregisters its window of {} bytes at {}, rank {} {}", membership.rank,
                 window.bytes, fmt::ptr(window.begin), rank, other);
  }
  return {};
}

void Windows::drop(const Window& window, const std::function<void(std::shared_ptr<const Window>)>& release) {
  const auto held = holdLinks_();
  const std::uint32_t index = window.index;
  ++changes_;
  if (window.zeroCopy) --zeroCopies_;
  hide(window);
  for (int rank = 0; rank < ranks_; ++rank) table(rank)[index] = {};
  std::unique_ptr<Window> dropped = std::move(windows_[index]);
  if (release) release(std::move(dropped));
}

}  // namespace kolo::links
