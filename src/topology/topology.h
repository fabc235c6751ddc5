// The machine as this process may use it: packages, caches, cores and NICs (by hwloc), the cores that affinity and
// control groups leave, and what follows from where ranks run: their order along a ring, and the NICs that are near
// them.
//
// Thread safety: all functions, from any thread. What is read from the machine is read at the first call and kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace kolo::topology {

// All caches of one level and kind.
struct Cache {
  int level = 0;
  std::string kind;         // "data", "instruction" or "unified"
  std::uint64_t bytes = 0;  // of one of them; the largest where they differ
  int lineBytes = 0;        // 0: unknown
  int count = 0;
  int sharedBy = 0;  // hardware threads that share one
};

// Where something is: a rank, or a NIC. Numbers need to be equal within one thing and different for different things of
// one parent, nothing else; -1 where it belongs to no single one.
struct Place {
  int host = 0;
  int package = -1;
  int numa = -1;
  int core = -1;
};

// A network interface, or an RDMA device; a card may be both, under two names. Interfaces made by software alone are
// not among them.
struct Nic {
  std::string name;  // the operating system's: "eth0", "mlx5_0"
  bool isRdma = false;
  std::string pciBus;         // "0000:3b:00.0"; empty: behind none
  Place place;                // of what it is attached to
  std::int64_t megabits = 0;  // a second, one way, of its fastest port; 0: unknown, or no cable
};

struct Machine {
  std::string source;    // "hwloc", or "fallback: " and why hwloc could not say
  std::string cpuModel;  // "unknown" if the system does not tell
  int packages = 1;
  int numaNodes = 1;
  int cores = 1;
  int threads = 1;  // hardware threads of the machine, allowed to this process or not
  std::uint64_t memoryBytes = 0;
  std::vector<Cache> caches;        // by level
  std::vector<int> allowedThreads;  // allowedThreads() at the first call
  double cpuQuota = 0;              // of its control groups, in cores; 0: no limit
  int available = 1;                // availableCores()
};

// Falls back to what the C library knows, with a warning in the log, if hwloc fails.
const Machine& machine();

// The machine's NICs, in hwloc's order; empty if hwloc fails. Finding them takes as long as all the rest. Code that
// needs them to choose one therefore asks first whether there are several: RDMA devices, or interfaces of hardware, by
// the system mounted at `mount`.
const std::vector<Nic>& nics();
bool hasSeveralNics(const std::string& mount = "/sys");

// Hardware threads that this process may keep busy: the smaller of its affinity and its control groups' CPU quota, the
// quota rounded down (a rank that polls through its quota is stopped for the rest of the period); at least 1.
int availableCores();

// The tightest CPU quota, in cores, of a process whose /proc/self/cgroup reads `membership`, with the control groups
// mounted at `mount` (version 2: cpu.max; version 1: cpu/cpu.cfs_quota_us and cpu.cfs_period_us); 0: no limit.
double cpuQuota(const std::string& membership, const std::string& mount);

// This process's affinity now, that is its main thread's, which a launcher binds (the program may have pinned others):
// the operating system's numbers, ascending.
std::vector<int> allowedThreads();

// The place that this process's affinity, as found at the first call, binds it to.
Place placeOfProcess(int host);

// The order of ranks 0..places.size()-1 along a ring in which the ranks of each host are contiguous, within it those of
// each package, and so on; so that a ring crosses each boundary the fewest times possible. Groups follow each other by
// their lowest rank, ranks within a group by number. Ranks on one machine in default order are so left alone.
// A pure function, in expected linear time (stable counting sorts over dense group numbers).
std::vector<int> ringOrder(const std::vector<Place>& places);

// Of each kind of NIC those nearest to a place: on its NUMA node if there are any, else on its package, else all. RDMA
// devices come first. turn: how many ranks before this one have the same NICs nearest; each begins with another one, so
// that all are used alike. A pure function.
std::vector<std::string> nicsNear(const std::vector<Nic>& nics, const Place& place, int turn);

// Adds the RDMA devices that software makes of interfaces among them (Soft-RoCE, Soft-iWARP), by the system mounted at
// `mount` ("/sys"): they are where the interface is.
void addSoftRdma(std::vector<Nic>& nics, const std::string& mount);

// Fills in the speeds that the system mounted at `mount` ("/sys") tells.
void readSpeeds(std::vector<Nic>& nics, const std::string& mount);

// What a machine that is not this one has, by hwloc's XML, and where a process is there that may use these threads: for
// tests.
struct Described {
  std::vector<Nic> nics;
  Place place;
};
Result<Described> describe(const std::string& xml, const std::vector<int>& threads);

}  // namespace kolo::topology
