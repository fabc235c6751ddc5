#include "perf/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

namespace kolo::perf {
namespace {

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string cpuFile(int cpu, const char* name) {
  return firstLine(fmt::format("/sys/devices/system/cpu/cpu{}/{}", cpu, name));
}

// The text after the colon of the first /proc/cpuinfo line that starts so.
std::string cpuInfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t at = line.find(": ");
    if (at != std::string::npos) return line.substr(at + 2);
  }
  return {};
}

// What tells the core of a hardware thread: the list of its siblings, or its own number where the kernel has none.
std::string coreOf(int cpu) {
  const std::string siblings = cpuFile(cpu, "topology/thread_siblings_list");
  return siblings.empty() ? std::to_string(cpu) : siblings;
}

int countCores() {
  const int online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  std::set<std::string> cores;
  for (int cpu = 0; cpu < online; ++cpu) cores.insert(coreOf(cpu));
  return static_cast<int>(cores.size());
}

// "always [madvise] never" -> "madvise"
std::string bracketed(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  return begin < end && end != std::string::npos ? text.substr(begin + 1, end - begin - 1) : "";
}

size_t lastCache() {
  size_t bytes = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string text = cpuFile(0, fmt::format("cache/index{}/size", index).c_str());  // "33792K"
    if (!text.empty()) bytes = std::max<size_t>(bytes, std::strtoull(text.c_str(), nullptr, 10) * 1024);
  }
  return bytes;
}

double timerCost() {
  constexpr int kReadings = 20000;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  Clock::time_point end = begin;
  for (int i = 0; i < kReadings; ++i) end = Clock::now();
  return std::chrono::duration<double, std::nano>(end - begin).count() / kReadings;
}

cpu_set_t allowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

}  // namespace

Machine readMachine() {
  utsname system{};
  uname(&system);
  Machine machine;
  machine.cpu = cpuInfo("model name");
  machine.architecture = system.machine;
  if (machine.cpu.empty()) machine.cpu = machine.architecture;
  machine.cores = countCores();
  machine.hardwareThreads = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  machine.memoryBytes = memoryBytes();
  machine.lastCacheBytes = lastCache();
  machine.kernel = fmt::format("{} {}", system.sysname, system.release);
  machine.hugePages = bracketed(firstLine("/sys/kernel/mm/transparent_hugepage/enabled"));
  machine.timerCostNs = timerCost();
  return machine;
}

double hashNumber(const std::string& text) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 1099511628211U;
  return static_cast<double>(hash >> 11);
}

double machineNumber() { return hashNumber(firstLine("/proc/sys/kernel/random/boot_id")); }

size_t memoryBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t residentBytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  long all = 0, resident = 0;
  const bool read = std::fscanf(file, "%ld %ld", &all, &resident) == 2;
  std::fclose(file);
  return read ? static_cast<size_t>(resident) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::vector<int> usableCores() {
  const cpu_set_t allowed = allowedCpus();
  std::set<std::string> seen;
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && seen.insert(coreOf(cpu)).second) cores.push_back(cpu);
  }
  return cores;
}

void bindTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
}

bool isBound() {
  const cpu_set_t allowed = allowedCpus();
  return CPU_COUNT(&allowed) == 1;
}

}  // namespace kolo::perf
