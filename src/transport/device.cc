#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/registry.h"
#include "transport/why.h"

namespace kolo::transport {
namespace {

// Whether a table, which may be older than this, goes so far.
#define REACHES(table, field) ((table)->size >= offsetof(koloTransport, field) + sizeof(table)->field)

Status toStatus(int code, const koloTransport* table, const char* verb, Why& why) {
  switch (code) {
    case KOLO_TRANSPORT_OK: return {};
    case KOLO_TRANSPORT_UNREACHABLE:
      return error(koloUnreachable, "transport {}: {}: {}", table->name, verb, why.c_str());
    case KOLO_TRANSPORT_UNSHAREABLE:
      return error(koloUnsupported, "transport {}: {}: {}", table->name, verb, why.c_str());
    case KOLO_TRANSPORT_BUSY: return error(koloInProgress, "transport {}: {}: {}", table->name, verb, why.c_str());
    case KOLO_TRANSPORT_LOST: return error(koloRemoteError, "transport {}: {}: {}", table->name, verb, why.c_str());
    case KOLO_TRANSPORT_ERROR: return error(koloSystemError, "transport {}: {}: {}", table->name, verb, why.c_str());
    default: break;
  }
  return error(koloInternalError, "transport {}: {} returned {}, which is no transport code: {}", table->name, verb,
               code, why.c_str());
}

Status checkBlob(const koloTransportBlob& blob, const koloTransport* table, const char* what) {
  if (blob.bytes <= KOLO_TRANSPORT_BLOB_BYTES) return {};
  return error(koloInternalError, "transport {}: {} says it has {} bytes, more than the {} there is room for",
               table->name, what, blob.bytes, KOLO_TRANSPORT_BLOB_BYTES);
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(const koloTransport* table, const koloTransportHost& host) {
  std::shared_ptr<Device> device(new Device(table));
  Why why;
  void* opened = nullptr;
  const int code = table->deviceOpen(&host, &opened, &device->address_, why.text, sizeof why.text);
  KOLO_TRY(toStatus(code, table, "opening the device", why));
  if (opened == nullptr) {
    return error(koloInternalError, "transport {}: opening the device succeeded without a device", table->name);
  }
  device->device_ = opened;
  KOLO_TRY(checkBlob(device->address_, table, "its address"));
  return device;
}

Device::~Device() {
  if (device_ != nullptr) table_->deviceClose(device_);
}

bool Device::canBeAbandoned() const { return REACHES(table_, deviceAbandon) && table_->deviceAbandon != nullptr; }

bool Device::abandon() const {
  if (!canBeAbandoned()) return false;
  table_->deviceAbandon(device_);
  return true;
}

Result<std::unique_ptr<Memory>> Device::registerMemory(const koloTransportMemory& range) {
  auto memory = std::make_unique<Memory>();
  Why why;
  const int code =
      table_->memoryRegister(device_, &range, &memory->memory_, &memory->descriptor_, why.text, sizeof why.text);
  KOLO_TRY(toStatus(code, table_, "registering memory", why));
  memory->device_ = shared_from_this();
  KOLO_TRY(checkBlob(memory->descriptor_, table_, "a descriptor"));
  return memory;
}

Result<std::unique_ptr<Link>> Device::openLink(const koloTransportBlob& peerAddress,
                                               const koloTransportBlob& peerMemory, std::uint64_t least) {
  KOLO_TRY(checkBlob(peerAddress, table_, "the peer's address"));
  KOLO_TRY(checkBlob(peerMemory, table_, "the peer's descriptor"));
  auto link = std::make_unique<Link>();
  Why why;
  void* mapped = nullptr;
  std::uint64_t bytes = 0;
  const int code =
      table_->linkOpen(device_, &peerAddress, &peerMemory, &link->link_, &mapped, &bytes, why.text, sizeof why.text);
  KOLO_TRY(toStatus(code, table_, "opening a link", why));
  link->device_ = shared_from_this();
  link->bytes_ = bytes;
  if (bytes < least) {
    return error(koloRemoteError, "transport {}: opening a link: the peer's memory has {} bytes, expected {} or more",
                 table_->name, bytes, least);
  }
  if (isPosted()) {
    link->rails_ = table_->linkRails(device_, link->link_);
    if (link->rails_ >= 1 && link->rails_ <= KOLO_TRANSPORT_MAX_RAILS && (link->rails_ & (link->rails_ - 1)) == 0)
      return link;
    return error(koloInternalError, "transport {}: a link says it has {} rails, expected 1, 2 or {}", table_->name,
                 link->rails_, KOLO_TRANSPORT_MAX_RAILS);
  }
  if (mapped == nullptr) {
    return error(koloInternalError, "transport {}: opening a link succeeded without a pointer", table_->name);
  }
  link->mapped_ = static_cast<unsigned char*>(mapped);
  const bool canRead = REACHES(table_, linkRead) && table_->linkRead != nullptr;
  link->reads_ = canRead ? link->read(nullptr, 0, 0)
                         : error(koloUnsupported, "transport {} does not read ordinary memory of a peer", table_->name);
  const bool canWrite = link->reads_.ok() && REACHES(table_, linkWrite) && table_->linkWrite != nullptr;
  link->writes_ = canWrite && link->write(0, nullptr, 0).ok();
  return link;
}

Status Link::put(const koloTransportPut& put) const {
  Why why;
  const koloTransport* const table = device_->table_;
  const int code = table->linkPut(device_->device_, link_, &put, why.text, sizeof why.text);
  return code == KOLO_TRANSPORT_OK ? Status() : toStatus(code, table, "putting into a peer's memory", why);
}

std::uint64_t Link::unfinished() const { return device_->table_->linkUnfinished(device_->device_, link_); }

std::uint64_t Link::queued() const { return device_->table_->linkQueued(device_->device_, link_); }

Status Link::state() const {
  Why why;
  const koloTransport* const table = device_->table_;
  const int code = table->linkState(device_->device_, link_, why.text, sizeof why.text);
  return code == KOLO_TRANSPORT_OK ? Status() : toStatus(code, table, "the link", why);
}

bool Device::linksCanBeAbandoned() const {
  return isPosted() && REACHES(table_, linkAbandon) && table_->linkAbandon != nullptr && !registersCheaply();
}

bool Device::registersDeviceMemory() const {
  return isPosted() && REACHES(table_, registersDeviceMemory) && table_->registersDeviceMemory != 0;
}

bool Device::sharesLinks() const { return !isPosted() && REACHES(table_, sharesLinks) && table_->sharesLinks != 0; }

Device::Network Device::network() const {
  if (!isPosted() || !REACHES(table_, mostMegabits)) return {};
  constexpr int kMostNics = 16;
  Network network{std::vector<koloTransportNic>(kMostNics), table_->messageNs, table_->putNs, table_->mostMegabits};
  const int found = table_->deviceNics != nullptr ? table_->deviceNics(device_, network.nics.data(), kMostNics) : 0;
  network.nics.resize(static_cast<std::size_t>(std::clamp(found, 0, kMostNics)));
  for (koloTransportNic& nic : network.nics) nic.name[sizeof nic.name - 1] = '\0';
  return network;
}

void Link::abandon() const { device_->table_->linkAbandon(device_->device_, link_); }

Result<koloTransportKey> Memory::key() const {
  Why why;
  koloTransportKey key{};
  const koloTransport* const table = device_->table_;
  KOLO_TRY(toStatus(table->memoryKey(device_->device_, memory_, &key, why.text, sizeof why.text), table,
                    "naming memory", why));
  return key;
}

Status Link::read(void* to, std::uint64_t from, std::uint64_t bytes) const {
  Why why;
  const koloTransport* const table = device_->table_;
  const int code = table->linkRead(device_->device_, link_, to, from, bytes, why.text, sizeof why.text);
  return code == KOLO_TRANSPORT_OK ? Status() : toStatus(code, table, "reading a peer's memory", why);
}

Status Link::write(std::uint64_t to, const void* from, std::uint64_t bytes) const {
  Why why;
  const koloTransport* const table = device_->table_;
  if (bytes != 0 && !writes_)
    return error(koloUnsupported, "transport {} does not write ordinary memory of this peer", table->name);
  const int code = table->linkWrite(device_->device_, link_, to, from, bytes, why.text, sizeof why.text);
  return code == KOLO_TRANSPORT_OK ? Status() : toStatus(code, table, "writing a peer's memory", why);
}

// A memory or a link without a device was never made: the call that was to make it failed.
Memory::~Memory() {
  if (device_ != nullptr) device_->table_->memoryDeregister(device_->device_, memory_);
}

Link::~Link() {
  if (device_ != nullptr) device_->table_->linkClose(device_->device_, link_);
}

}  // namespace kolo::transport
