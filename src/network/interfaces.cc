// The network interfaces of this machine, as the kernel lists them.
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/folder.h"
#include "base/identity.h"
#include "network/place.h"

namespace kolo::network {
namespace {

bool exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

// eth0:1 is a second address of eth0.
std::string folderOf(const std::string& interface) {
  return "/sys/class/net/" + interface.substr(0, interface.find(':'));
}

// Itself, or one of those that it is made of (bonds, VLANs, bridges).
bool hasHardware(const std::string& interface, int depth = 0) {
  if (exists(folderOf(interface) + "/device")) return true;
  if (depth == 3) return false;
  for (const std::string& name : namesIn(folderOf(interface))) {
    if (name.rfind("lower_", 0) == 0 && hasHardware(name.substr(6), depth + 1)) return true;
  }
  return false;
}

Made madeOf(const std::string& interface) {
  if (hasHardware(interface)) return Made::kHardware;
  return exists(folderOf(interface) + "/bridge") ? Made::kBridge : Made::kVirtual;
}

std::int64_t megabitsOf(const std::string& interface) {
  std::FILE* const file = std::fopen((folderOf(interface) + "/speed").c_str(), "re");
  if (file == nullptr) return 0;
  long long value = 0;
  const bool got = std::fscanf(file, "%lld", &value) == 1;
  std::fclose(file);
  return got && value > 0 ? value : 0;
}

std::uint8_t prefixOf(const ifaddrs& entry, bool isV6) {
  if (entry.ifa_netmask == nullptr) return 0;
  unsigned char mask[16] = {};
  if (isV6) {
    std::memcpy(mask, &reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask)->sin6_addr, 16);
  } else {
    std::memcpy(mask, &reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask)->sin_addr, 4);
  }
  int bits = 0;
  for (const unsigned char byte : mask) bits += std::popcount(byte);
  return static_cast<std::uint8_t>(bits);
}

// Of IPv4 it can be told to another host, and cables between two hosts are set up so; but many hosts have the same.
bool isLinkLocalV4(const Place& place) { return !place.isV6 && place.bytes[0] == 169 && place.bytes[1] == 254; }

}  // namespace

int ownPlaces(std::vector<Place>* places) {
  places->clear();
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return errno;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    constexpr unsigned kWorking = IFF_UP | IFF_RUNNING;
    if ((entry->ifa_flags & kWorking) != kWorking) continue;
    const auto address = addressOf(entry->ifa_addr);
    if (!address.has_value() || address->isLinkLocalV6()) continue;
    Place place{*address};
    place.interface = entry->ifa_name;
    place.prefix = prefixOf(*entry, place.isV6);
    place.made = isLinkLocalV4(place) ? Made::kBridge : madeOf(place.interface);
    place.megabits = megabitsOf(place.interface);
    place.speed = speedClass(place.megabits);
    places->push_back(std::move(place));
  }
  freeifaddrs(list);
  return 0;
}

std::string stackName(std::string_view fallback) {
  std::string name(bootId().empty() ? fallback : bootId());
  struct stat info {};
  (void)stat("/proc/self/ns/net", &info);
  return name + " " + std::to_string(info.st_dev) + " " + std::to_string(info.st_ino);
}

}  // namespace kolo::network
