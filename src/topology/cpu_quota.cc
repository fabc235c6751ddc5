#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/words.h"
#include "topology/topology.h"

namespace kolo::topology {
namespace {

// The first two words of a file; the second is empty if there is only one.
std::optional<std::pair<std::string, std::string>> readWords(const std::string& path) {
  std::ifstream file(path);
  std::pair<std::string, std::string> words;
  if (!(file >> words.first)) return std::nullopt;
  file >> words.second;
  return words;
}

double ratio(const std::string& quota, const std::string& period) {
  std::istringstream text(quota + " " + period);
  double used = 0;
  double every = 0;
  if (!(text >> used >> every) || used <= 0 || every <= 0) return 0;  // "max" and -1: no limit
  return used / every;
}

// Of one control group, version 2 or 1 by which files it has.
double quotaOf(const std::string& folder, bool unified) {
  if (unified) {
    const auto words = readWords(folder + "/cpu.max");
    return words ? ratio(words->first, words->second) : 0;
  }
  const auto quota = readWords(folder + "/cpu.cfs_quota_us");
  const auto period = readWords(folder + "/cpu.cfs_period_us");
  return quota && period ? ratio(quota->first, period->first) : 0;
}

double tighter(double a, double b) {
  if (a == 0) return b;
  return b == 0 ? a : std::min(a, b);
}

// A limit of any ancestor holds too. In a container the path may be one of the outer system and not exist here; the
// folders that do exist, up to the mount point, are what binds this process.
double tightestUpwards(const std::string& mount, std::string path, bool unified) {
  double tightest = 0;
  while (!path.empty() && path != "/") {
    tightest = tighter(tightest, quotaOf(mount + path, unified));
    path.resize(path.rfind('/'));
  }
  return tighter(tightest, quotaOf(mount, unified));
}

}  // namespace

double cpuQuota(const std::string& membership, const std::string& mount) {
  double tightest = 0;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "0::/path" (version 2) or "4:cpu,cpuacct:/path" (version 1)
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second, 2, ":/") != 0) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) tightest = tighter(tightest, tightestUpwards(mount, path, true));
    if (isWordOf("cpu", controllers)) {
      tightest = tighter(tightest, tightestUpwards(mount + "/cpu", path, false));
      tightest = tighter(tightest, tightestUpwards(mount + "/" + controllers, path, false));
    }
  }
  return tightest;
}

}  // namespace kolo::topology
