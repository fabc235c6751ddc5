#include "mpi/report.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace kolo::mpi {
namespace {

constexpr auto kHooks = static_cast<std::size_t>(Hook::kCount);

constexpr std::array<const char*, kHooks> kNames = {
#define COLLECTIVE(Name, INonblocking, parameters, arguments, description) "MPI_" #Name, "MPI_" #INonblocking,
#include "mpi/collectives.inc"
#undef COLLECTIVE
};

struct Calls {
  std::atomic<std::uint64_t> accelerated{0}, passed{0};
};
std::array<Calls, kHooks> calls;
std::atomic<std::uint64_t> allocated{0}, registered{0}, staged{0}, made{0};

std::string_view environment(const char* name) {
  const char* const value = ::secure_getenv(name);
  return value != nullptr ? value : "";
}

bool countsCalls() {
  static const bool wanted = environment("KOLO_MPI_STATISTICS") == "1";
  return wanted;
}

bool tellsReasons() {
  static const bool wanted = environment("KOLO_DEBUG") == "debug";
  return wanted;
}

void tellReason(Hook hook, const char* why) {
  static std::mutex mutex;
  static auto& told = *new std::set<std::pair<Hook, std::string_view>>;  // never destroyed, as sessions
  const std::lock_guard lock(mutex);
  if (told.emplace(hook, why).second) complain(std::string(nameOf(hook)) + " is left to the MPI underneath: " + why);
}

}  // namespace

const char* nameOf(Hook hook) { return kNames[static_cast<std::size_t>(hook)]; }

void complain(const std::string& text) { std::fprintf(stderr, "kolo-mpi: %s\n", text.c_str()); }

void warn(const std::string& text) {
  static const bool silent = environment("KOLO_DEBUG") == "error";
  if (!silent) complain(text);
}

void inform(const std::string& text) {
  static const bool wanted = environment("KOLO_DEBUG") == "info" || environment("KOLO_DEBUG") == "debug";
  if (wanted) complain(text);
}

// Counters that nothing is ordered by.
void countAccelerated(Hook hook) {
  if (countsCalls()) calls[static_cast<std::size_t>(hook)].accelerated.fetch_add(1, std::memory_order_relaxed);
}

void countPassed(Hook hook, const char* why) {
  if (countsCalls()) calls[static_cast<std::size_t>(hook)].passed.fetch_add(1, std::memory_order_relaxed);
  if (tellsReasons()) tellReason(hook, why);
}

void countAllocated() { allocated.fetch_add(1, std::memory_order_relaxed); }
void countMade() { made.fetch_add(1, std::memory_order_relaxed); }
void countStaged() { staged.fetch_add(1, std::memory_order_relaxed); }
void countRegistered() { registered.fetch_add(1, std::memory_order_relaxed); }

void printStatistics(int rank) {
  if (!countsCalls()) return;
  std::string text = "rank " + std::to_string(rank) + ", calls accelerated and passed on:";
  for (std::size_t i = 0; i < kHooks; ++i) {
    const std::uint64_t accelerated = calls[i].accelerated, passed = calls[i].passed;
    if (accelerated + passed == 0) continue;
    text += std::string(" ") + kNames[i] + "=" + std::to_string(accelerated) + "," + std::to_string(passed);
  }
  complain(text);
  complain("rank " + std::to_string(rank) + ", communicators that were given a counterpart: " + std::to_string(made));
  if (staged != 0)
    complain("rank " + std::to_string(rank) + ", buffers of GPUs that were copied: " + std::to_string(staged));
  if (allocated == 0 && registered == 0) return;
  complain("rank " + std::to_string(rank) + ", memory that collectives need not copy: blocks=" +
           std::to_string(allocated) + " registrations=" + std::to_string(registered));
}

}  // namespace kolo::mpi
