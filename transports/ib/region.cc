#include "region.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>

namespace kolo::ib {
namespace {

// Memory of a device is an offer that the core has alternatives to.
int refused(const Range& range, const Nic& nic, int errnum, const Why& why) {
  const auto bytes = static_cast<unsigned long long>(range.bytes);
  const ErrorText error(errnum);
  if (range.isOfDevice && range.dmaBuf >= 0) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "registering a dma-buf of %llu bytes with %s: %s (it takes Linux 5.12, rdma-core 34, a NIC "
                    "that can, and the GPU's open kernel modules)",
                    bytes, nic.name.c_str(), error.text);
  }
  if (range.isOfDevice) {
    return why.fail(KOLO_TRANSPORT_UNSHAREABLE,
                    "registering %llu bytes of a device with %s by their address: %s (it takes the kernel module "
                    "nvidia-peermem)",
                    bytes, nic.name.c_str(), error.text);
  }
  return why.fail(KOLO_TRANSPORT_ERROR, "registering %llu bytes with %s: %s%s", bytes, nic.name.c_str(), error.text,
                  lockingLimit(errnum).c_str());
}

}  // namespace

std::string lockingLimit(int errnum) {
  if (errnum != ENOMEM && errnum != EAGAIN && errnum != EPERM) return "";
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return ": its pages are locked in memory, and this process has no limit of its own (a container or the NIC may "
           "have one)";
  }
  return fmt::format(
      ": its pages are locked in memory, and this process may lock {} KiB; raise that with ulimit -l, \"memlock\" in "
      "/etc/security/limits.conf, LimitMEMLOCK= of a service, or --ulimit memlock=-1 of a container",
      limit.rlim_cur >> 10);
}

Target Region::target() const {
  Target target{reinterpret_cast<std::uint64_t>(address), {}};
  for (std::size_t i = 0; i < kMostNics && plain[i] != nullptr; ++i) target.keys[i] = plain[i]->rkey;
  return target;
}

Target Region::relaxedTarget() const {
  Target target = this->target();
  for (std::size_t i = 0; i < kMostNics && relaxed[i] != nullptr; ++i) target.keys[i] = relaxed[i]->rkey;
  return target;
}

ibv_mr* Regions::registerWith(const Nic& nic, const Range& range, unsigned access) const {
  const Verbs& verbs = nics_.verbs();
  const auto address = reinterpret_cast<std::uint64_t>(range.address);
  if (range.dmaBuf < 0) return verbs.regMr(nic.domain, range.address, range.bytes, access);
  return verbs.regDmabufMr(nic.domain, range.dmaBufOffset, range.bytes, address, range.dmaBuf, access);
}

int Regions::acquire(const Range& range, bool isForPeers, const Why& why, Region** found) {
  Region& region = regions_[{range.address, range.bytes, isForPeers}];
  *found = &region;
  if (region.users++ > 0) return KOLO_TRANSPORT_OK;
  region.address = static_cast<unsigned char*>(range.address);
  region.bytes = range.bytes;
  region.isOfDevice = range.isOfDevice;
  if (Region* const whole = findWhole(range); whole != nullptr) {
    ++whole->users;
    region.whole = whole;
    region.plain = whole->plain;
    region.relaxed = whole->relaxed;
    return KOLO_TRANSPORT_OK;
  }
  // Not relaxed: signals lie in it. A device may let a relaxed write pass an earlier one, but never a plain one, so
  // that data may be relaxed and the signal behind it may not (PCI Express, table of ordering rules: a posted request
  // without the attribute stays behind all posted ones). Memory that is linked holds both, and one registration has one
  // attribute.
  const unsigned access = isForPeers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  for (std::size_t i = 0; i < nics_.all().size(); ++i) {
    const Nic& nic = nics_.all()[i];
    region.plain[i] = registerWith(nic, range, access);
    if (region.plain[i] != nullptr && isForPeers && !region.isOfDevice) byKey_[i][region.plain[i]->rkey] = &region;
    if (region.plain[i] != nullptr) continue;
    const int errnum = errno;
    release(&region);
    *found = nullptr;
    return refused(range, nic, errnum, why);
  }
  return KOLO_TRANSPORT_OK;
}

// A registration for peers that holds the range, of the host's memory.
Region* Regions::findWhole(const Range& range) {
  if (range.isOfDevice) return nullptr;
  for (auto& [name, region] : regions_) {
    const std::uint64_t offset =
        reinterpret_cast<std::uint64_t>(range.address) - reinterpret_cast<std::uint64_t>(region.address);
    const bool isWhole = name.isForPeers && !region.isOfDevice && region.whole == nullptr && region.plain[0] != nullptr;
    if (isWhole && offset <= region.bytes && range.bytes <= region.bytes - offset) return &region;
  }
  return nullptr;
}

void Regions::relax(Region& region) {
  if (region.isOfDevice) return;
  if (region.whole != nullptr) {
    relax(*region.whole);
    region.relaxed = region.whole->relaxed;
    return;
  }
  for (std::size_t i = 0; i < nics_.all().size(); ++i) {
    if (region.relaxed[i] != nullptr) continue;
    // A NIC that knows nothing of it leaves the attribute out; one that has no room for another registration does with
    // the plain one.
    region.relaxed[i] =
        nics_.verbs().regMr(nics_.all()[i].domain, region.address, region.bytes,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    if (region.relaxed[i] == nullptr) return;
    byKey_[i][region.relaxed[i]->rkey] = &region;
  }
}

void Regions::release(Region* region) {
  if (--region->users > 0) return;
  Region* const whole = region->whole;
  if (whole == nullptr) deregister(*region);
  std::erase_if(regions_, [&](const auto& one) { return &one.second == region; });
  if (whole != nullptr) release(whole);
}

bool Regions::mayWrite(std::size_t nic, std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const {
  const auto found = byKey_[nic].find(key);
  if (found == byKey_[nic].end()) return false;
  const std::uint64_t begin = reinterpret_cast<std::uint64_t>(found->second->address), room = found->second->bytes;
  return address >= begin && bytes <= room && address - begin <= room - bytes;
}

void Regions::deregister(Region& region) {
  for (std::size_t i = 0; i < kMostNics; ++i) {
    std::erase_if(byKey_[i], [&](const auto& one) { return one.second == &region; });
    if (region.relaxed[i] != nullptr) nics_.verbs().deregMr(region.relaxed[i]);
    if (region.plain[i] != nullptr) nics_.verbs().deregMr(region.plain[i]);
  }
}

}  // namespace kolo::ib
