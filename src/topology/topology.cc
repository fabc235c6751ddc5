#include "topology/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "base/descriptor.h"
#include "base/log.h"
#include "base/status.h"

namespace kolo::topology {
namespace {

struct TopologyDelete {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, TopologyDelete>;

// What is found is never destroyed: global objects may call until the end.
struct Facts {
  Machine machine;
  Place place;
};

// Hardware threads, as the kernel notes them.
struct Affinity {
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set{nullptr, [](cpu_set_t* memory) { CPU_FREE(memory); }};
  std::size_t bytes = 0;
  bool has(int thread) const {
    return static_cast<std::size_t>(thread) < 8 * bytes &&
           CPU_ISSET_S(static_cast<std::size_t>(thread), bytes, set.get());
  }
};

// Of a thread of this process, 0: the calling one; an empty one if it cannot be had.
Affinity affinityOf(pid_t thread) {
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 4) {  // the kernel's mask may be larger than ours
    Affinity affinity;
    affinity.set.reset(CPU_ALLOC(static_cast<std::size_t>(capacity)));
    if (affinity.set == nullptr) break;
    affinity.bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    if (sched_getaffinity(thread, affinity.bytes, affinity.set.get()) == 0) return affinity;
    if (errno != EINVAL) break;
  }
  return {};
}

// The affinity in a status file, as the kernel writes it: "Cpus_allowed_list: 0-3,8".
std::vector<int> affinityInProc(const char* path) {
  constexpr int kMost = 1 << 20;
  const std::string name = "Cpus_allowed_list:";
  std::ifstream file(path);
  std::vector<int> threads;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) != 0) continue;
    std::istringstream ranges(line.substr(name.size()));
    for (std::string range; std::getline(ranges, range, ',');) {
      int first = 0, last = 0;
      const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
      if (read < 1 || first < 0) continue;
      for (int thread = first; thread <= std::min(read == 2 ? last : first, kMost); ++thread) threads.push_back(thread);
    }
  }
  return threads;
}

double readQuota() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream membership;
  membership << file.rdbuf();
  return cpuQuota(membership.str(), "/sys/fs/cgroup");
}

std::string readCpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// What can be said without hwloc. It does not start hwloc, so availableCores() is cheap.
const Machine& basics() {
  static const auto& found = *new const Machine([] {
    Machine machine;
    machine.cpuModel = readCpuModel();
    machine.threads = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
    machine.cores = machine.threads;
    machine.memoryBytes = static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                          static_cast<std::uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
    machine.allowedThreads = allowedThreads();
    machine.cpuQuota = readQuota();
    machine.available = static_cast<int>(machine.allowedThreads.size());
    if (machine.cpuQuota > 0 && machine.cpuQuota < machine.available) {
      machine.available = std::max(1, static_cast<int>(std::floor(machine.cpuQuota)));
    }
    return machine;
  }());
  return found;
}

// With I/O devices or without. xml: of another machine; null: of this one.
Result<Topology> loadTopology(bool withDevices, const std::string* xml) {
  // hwloc asks for the affinity with larger and larger masks, whatever the error: without end where a filter of system
  // calls refuses it.
  if (xml == nullptr && affinityOf(0).bytes == 0) {
    return error(koloSystemError,
                 "sched_getaffinity is refused to this process: {}; allow it in the filter of system calls (seccomp)",
                 std::strerror(errno));
  }
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return systemError(errno, "hwloc_topology_init");
  Topology topology(raw);
  // The whole machine, allowed to us or not: Machine says both.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (withDevices) hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // NICs are among the devices that the kernel lists; plugins for others may start drivers, make contexts on GPUs, or
  // read long lists of names.
  for (const char* const plugin : {"pci", "opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"}) {
    if (withDevices) hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  if (xml != nullptr && hwloc_topology_set_xmlbuffer(raw, xml->c_str(), static_cast<int>(xml->size() + 1)) != 0) {
    return error(koloInvalidArgument, "{} bytes that are not hwloc's XML", xml->size());
  }
  const StandardStreamsHeld held;
  if (hwloc_topology_load(raw) != 0) return systemError(errno, "hwloc_topology_load");
  return topology;
}

int countOf(hwloc_topology_t topology, hwloc_obj_type_t type) {
  return std::max(1, hwloc_get_nbobjs_by_type(topology, type));
}

const char* nameOf(hwloc_obj_cache_type_t kind) {
  switch (kind) {
    case HWLOC_OBJ_CACHE_DATA: return "data";
    case HWLOC_OBJ_CACHE_INSTRUCTION: return "instruction";
    case HWLOC_OBJ_CACHE_UNIFIED: break;
  }
  return "unified";
}

std::vector<Cache> readCaches(hwloc_topology_t topology) {
  std::map<std::pair<int, std::string>, Cache> caches;
  for (int depth = 0; depth < hwloc_topology_get_depth(topology); ++depth) {
    if (hwloc_obj_type_is_cache(hwloc_get_depth_type(topology, depth)) == 0) continue;
    for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_obj_by_depth(topology, depth, one)) != nullptr;) {
      const auto& attributes = one->attr->cache;
      Cache& cache = caches[{static_cast<int>(attributes.depth), nameOf(attributes.type)}];
      cache.level = static_cast<int>(attributes.depth);
      cache.kind = nameOf(attributes.type);
      cache.bytes = std::max<std::uint64_t>(cache.bytes, attributes.size);
      cache.lineBytes = std::max(cache.lineBytes, static_cast<int>(attributes.linesize));
      cache.sharedBy = std::max(cache.sharedBy, hwloc_bitmap_weight(one->cpuset));
      ++cache.count;
    }
  }
  std::vector<Cache> list;
  list.reserve(caches.size());
  for (auto& [key, cache] : caches) list.push_back(std::move(cache));
  return list;
}

int numberOfAncestor(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_obj_t object) {
  if (object->type == type) return static_cast<int>(object->logical_index);
  const hwloc_obj_t ancestor = hwloc_get_ancestor_obj_by_type(topology, type, object);
  return ancestor == nullptr ? -1 : static_cast<int>(ancestor->logical_index);
}

Place placeOf(hwloc_topology_t topology, hwloc_obj_t object) {
  Place place;
  place.package = numberOfAncestor(topology, HWLOC_OBJ_PACKAGE, object);
  place.core = numberOfAncestor(topology, HWLOC_OBJ_CORE, object);
  if (object->nodeset != nullptr && hwloc_bitmap_weight(object->nodeset) == 1)
    place.numa = hwloc_bitmap_first(object->nodeset);
  return place;
}

std::vector<Nic> readNics(hwloc_topology_t topology) {
  std::vector<Nic> nics;
  for (hwloc_obj_t one = nullptr; (one = hwloc_get_next_osdev(topology, one)) != nullptr;) {
    const hwloc_obj_osdev_type_t type = one->attr->osdev.type;
    if ((type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) || one->name == nullptr) continue;
    Nic nic{.name = one->name, .isRdma = type == HWLOC_OBJ_OSDEV_OPENFABRICS};
    if (one->parent->type == HWLOC_OBJ_PCI_DEVICE) {
      const auto& pci = one->parent->attr->pcidev;
      nic.pciBus = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain, pci.bus, pci.dev, pci.func);
    }
    nic.place = placeOf(topology, hwloc_get_non_io_ancestor_obj(topology, one));
    nics.push_back(std::move(nic));
  }
  return nics;
}

// Each level is the one thing that holds all threads the process may use, if there is one.
Place readPlace(hwloc_topology_t topology, const std::vector<int>& allowed) {
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> set(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  if (set == nullptr) return {};
  for (const int thread : allowed) hwloc_bitmap_set(set.get(), static_cast<unsigned>(thread));
  const hwloc_obj_t covering = hwloc_get_obj_covering_cpuset(topology, set.get());
  return covering != nullptr ? placeOf(topology, covering) : Place();
}

const Facts& facts() {
  static const auto& found = *new const Facts([] {
    Facts result{basics(), Place{}};
    Result<Topology> loaded = loadTopology(false, nullptr);
    if (!loaded.ok()) {
      log::warn("hwloc cannot read this machine ({}); going on with the number of hardware threads alone",
                loaded.status().message());
      result.machine.source = "fallback: " + loaded.status().message();
      return result;
    }
    const hwloc_topology_t topology = loaded.value().get();
    const hwloc_obj_t root = hwloc_get_root_obj(topology);
    Machine& machine = result.machine;
    machine.source = "hwloc";
    machine.packages = countOf(topology, HWLOC_OBJ_PACKAGE);
    machine.numaNodes = countOf(topology, HWLOC_OBJ_NUMANODE);
    machine.cores = countOf(topology, HWLOC_OBJ_CORE);
    machine.threads = countOf(topology, HWLOC_OBJ_PU);
    if (root->total_memory > 0) machine.memoryBytes = root->total_memory;
    machine.caches = readCaches(topology);
    result.place = readPlace(topology, machine.allowedThreads);
    return result;
  }());
  return found;
}

}  // namespace

std::vector<int> allowedThreads() {
  std::vector<int> threads;
  const Affinity affinity = affinityOf(getpid());
  if (affinity.bytes == 0) threads = affinityInProc("/proc/self/status");
  for (int thread = 0; static_cast<std::size_t>(thread) < 8 * affinity.bytes; ++thread) {
    if (affinity.has(thread)) threads.push_back(thread);
  }
  if (threads.empty()) threads.push_back(0);
  return threads;
}

const Machine& machine() { return facts().machine; }

const std::vector<Nic>& nics() {
  static const auto& found = *new const std::vector<Nic>([] {
    const Result<Topology> loaded = loadTopology(true, nullptr);
    if (!loaded.ok())
      log::warn("hwloc cannot read this machine's devices ({}); no NIC is known to be near", loaded.status().message());
    std::vector<Nic> list = loaded.ok() ? readNics(loaded.value().get()) : std::vector<Nic>();
    addSoftRdma(list, "/sys");
    readSpeeds(list, "/sys");
    return list;
  }());
  return found;
}

int availableCores() { return basics().available; }

Result<Described> describe(const std::string& xml, const std::vector<int>& threads) {
  KOLO_ASSIGN(const Topology topology, loadTopology(true, &xml));
  return Described{readNics(topology.get()), readPlace(topology.get(), threads)};
}

Place placeOfProcess(int host) {
  Place place = facts().place;
  place.host = host;
  return place;
}

}  // namespace kolo::topology
