#include "region.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>

namespace kolo::ib {
namespace {

std::string limitText() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "this process has no limit of its own (a container or the NIC may have one)";
  }
  return fmt::format("this process may lock {} KiB; raise that with ulimit -l, \"memlock\" in /etc/security/limits.conf, "
                     "LimitMEMLOCK= of a service, or --ulimit memlock=-1 of a container", limit.rlim_cur >> 10);
}

}  // namespace

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

int Regions::acquire(void* address, std::uint64_t bytes, bool isForPeers, const Why& why, Region** found) {
  Region& region = regions_[{address, bytes, isForPeers}];
  *found = &region;
  if (region.users++ > 0) return KOLO_TRANSPORT_OK;
  region.address = static_cast<unsigned char*>(address);
  region.bytes = bytes;
  // Not relaxed: signals lie in it. A device may let a relaxed write pass an earlier one, but never a plain one, so that data may
  // be relaxed and the signal behind it may not (PCI Express, table of ordering rules: a posted request without the attribute
  // stays behind all posted ones). Memory that is linked holds both, and one registration has one attribute.
  const unsigned access = isForPeers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  for (std::size_t i = 0; i < nics_.all().size(); ++i) {
    const Nic& nic = nics_.all()[i];
    region.plain[i] = nics_.verbs().regMr(nic.domain, address, bytes, access);
    if (region.plain[i] != nullptr) continue;
    const int errnum = errno;
    release(&region);
    *found = nullptr;
    const bool isLimit = errnum == ENOMEM || errnum == EAGAIN || errnum == EPERM;
    return why.fail(KOLO_TRANSPORT_ERROR, "registering %llu bytes with %s: %s%s%s", static_cast<unsigned long long>(bytes),
                    nic.name.c_str(), ErrorText(errnum).text, isLimit ? ": its pages are locked in memory, and " : "",
                    isLimit ? limitText().c_str() : "");
  }
  return KOLO_TRANSPORT_OK;
}

void Regions::relax(Region& region) {
  for (std::size_t i = 0; i < nics_.all().size(); ++i) {
    if (region.relaxed[i] != nullptr) continue;
    // A NIC that knows nothing of it leaves the attribute out; one that has no room for another registration does with the plain one.
    region.relaxed[i] = nics_.verbs().regMr(nics_.all()[i].domain, region.address, region.bytes,
                                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    if (region.relaxed[i] == nullptr) return;
  }
}

void Regions::release(Region* region) {
  if (--region->users > 0) return;
  deregister(*region);
  std::erase_if(regions_, [&](const auto& one) { return &one.second == region; });
}

void Regions::deregister(Region& region) {
  for (std::size_t i = 0; i < kMostNics; ++i) {
    if (region.relaxed[i] != nullptr) nics_.verbs().deregMr(region.relaxed[i]);
    if (region.plain[i] != nullptr) nics_.verbs().deregMr(region.plain[i]);
  }
}

}  // namespace kolo::ib
