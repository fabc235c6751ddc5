// Facts about the machine that a reader of the figures needs; nothing that names it.
//
// Thread safety: free functions, from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kolo::perf {

struct Machine {
  std::string cpu;
  std::string architecture;
  int cores = 0;            // physical
  int hardwareThreads = 0;  // online
  size_t memoryBytes = 0;
  size_t lastCacheBytes = 0;  // of the last level that core 0 has; 0: the kernel does not tell
  std::string kernel;
  std::string hugePages;   // of transparent huge pages: always, madvise or never; empty: the kernel does not tell
  double timerCostNs = 0;  // of one reading of the clock that times the calls
};

constexpr const char* kTimerSource = "clock_gettime(CLOCK_MONOTONIC)";

Machine readMachine();
size_t memoryBytes();
// The same for all processes of this machine, in containers too, and not for those of another. A whole number below
// 2^53.
double machineNumber();
// For texts that ranks compare, as such a number.
double hashNumber(const std::string& text);
// Of this process: memory that it has touched and that is there, shared memory included.
size_t residentBytes();

// One hardware thread of each physical core that this process may run on, in increasing order.
std::vector<int> usableCores();
// Binds the calling thread, or with it a process about to start, to one hardware thread. Failure is harmless and
// ignored.
void bindTo(int cpu);
// Whether the calling thread may run on one hardware thread only.
bool isBound();

}  // namespace kolo::perf
