// Which NICs are near a place, and how fast they are.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/folder.h"
#include "topology/topology.h"

namespace kolo::topology {
namespace {

// 0: on one NUMA node; 1: on one package; 2: neither, or not known.
int distance(const Place& a, const Place& b) {
  if (a.numa >= 0 && a.numa == b.numa) return 0;
  return a.package >= 0 && a.package == b.package ? 1 : 2;
}

void addNearest(const std::vector<Nic>& nics, bool isRdma, const Place& place, int turn,
                std::vector<std::string>& names) {
  int nearest = 2;
  for (const Nic& nic : nics) {
    if (nic.isRdma == isRdma) nearest = std::min(nearest, distance(nic.place, place));
  }
  std::vector<std::string> found;
  for (const Nic& nic : nics) {
    if (nic.isRdma == isRdma && (nearest == 2 || distance(nic.place, place) == nearest)) found.push_back(nic.name);
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    names.push_back(found[(i + static_cast<std::size_t>(turn)) % found.size()]);
}

// The number that the first line of a file begins with, whole ones; 0: there is none.
std::int64_t numberIn(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string text;
  std::int64_t number = 0;
  if (std::getline(stream, text)) std::from_chars(text.data(), text.data() + text.size(), number);
  return std::max<std::int64_t>(number, 0);  // -1: no cable
}

// "100 Gb/sec (4X EDR)" of each port.
std::int64_t fastestPort(const std::filesystem::path& device) {
  std::int64_t fastest = 0;
  for (const std::string& port : namesIn(device / "ports"))
    fastest = std::max(fastest, 1000 * numberIn(device / "ports" / port / "rate"));
  return fastest;
}

}  // namespace

std::vector<std::string> nicsNear(const std::vector<Nic>& nics, const Place& place, int turn) {
  std::vector<std::string> names;
  addNearest(nics, true, place, turn, names);
  addNearest(nics, false, place, turn, names);
  return names;
}

bool hasSeveralNics(const std::string& mount) {
  const std::filesystem::path classes = std::filesystem::path(mount) / "class";
  std::error_code ignored;
  const auto count = [&](const char* kind, const char* mark) {
    int found = 0;
    for (const std::string& one : namesIn(classes / kind))
      found += std::filesystem::exists(classes / kind / one / mark, ignored);
    return found;
  };
  return count("infiniband", "") > 1 || count("net", "device") > 1;
}

void addSoftRdma(std::vector<Nic>& nics, const std::string& mount) {
  const std::filesystem::path devices = std::filesystem::path(mount) / "class" / "infiniband";
  std::vector<Nic> found;
  for (const std::string& device : namesIn(devices)) {
    std::ifstream stream(devices / device / "parent");
    std::string name;
    if (!std::getline(stream, name)) continue;
    const auto parent =
        std::find_if(nics.begin(), nics.end(), [&](const Nic& nic) { return !nic.isRdma && nic.name == name; });
    if (parent == nics.end()) continue;
    found.push_back(*parent);
    found.back().name = device;
    found.back().isRdma = true;
  }
  std::sort(found.begin(), found.end(),
            [](const Nic& a, const Nic& b) { return a.name < b.name; });  // folders have no order
  nics.insert(nics.end(), found.begin(), found.end());
}

void readSpeeds(std::vector<Nic>& nics, const std::string& mount) {
  const std::filesystem::path classes = std::filesystem::path(mount) / "class";
  for (Nic& nic : nics) {
    nic.megabits =
        nic.isRdma ? fastestPort(classes / "infiniband" / nic.name) : numberIn(classes / "net" / nic.name / "speed");
  }
}

}  // namespace kolo::topology
