#include "diagnostics/info.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/settings.h"
#include "drivers/cuda/devices.h"
#if KOLO_HAVE_VERBS
#include "drivers/verbs/verbs.h"
#endif
#include "executor/host/reduce.h"
#include "topology/topology.h"
#include "transport/registry.h"

namespace kolo::diagnostics {
namespace {

using Json = nlohmann::ordered_json;

// Text from the environment or the system need not be UTF-8; replacing what is not keeps dump() from throwing.
std::string textOf(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

Json feature(const char* name, bool built, const std::string& note) {
  return {{"name", name}, {"built", built}, {"note", note}};
}

bool hasKernels() { return !std::string_view(KOLO_GPU_ARCHITECTURES).empty(); }

// In one line: whether the library is here, or why it is not used. Which devices there are, the transport says.
std::string verbsNote() {
#if KOLO_HAVE_VERBS
  const auto library = drivers::verbs();
  return library.ok() ? "libibverbs is installed" : library.status().message();
#else
  return "the headers of libibverbs were not there when this was built";
#endif
}

// In one line: what kernels there are, and the GPUs, or why there are none.
std::string cudaNote() {
  const auto devices = drivers::cudaDevices();
  std::string text = hasKernels()     ? fmt::format("for {}; ", KOLO_GPU_ARCHITECTURES)
                     : KOLO_HAVE_CUDA ? fmt::format("{}; ", drivers::howToHaveKernels())
                                      : "";
  if (!devices.ok()) return text + devices.status().message();
  const char* between = "";
  for (const drivers::CudaDevice& device : devices.value()) {
    text += fmt::format("{}{}: {} ({}, compute capability {}.{})", between, device.ordinal, device.name,
                        device.pciBusId, device.major, device.minor);
    between = "; ";
  }
  return text;
}

const char* nameOf(settings::Kind kind) {
  switch (kind) {
    case settings::Kind::kInteger: return "integer";
    case settings::Kind::kBytes: return "bytes";
    case settings::Kind::kBool: return "bool";
    case settings::Kind::kPorts: return "ports";
    case settings::Kind::kDevice: return "device";
    case settings::Kind::kText: break;
  }
  return "text";
}

}  // namespace

Result<std::string> buildInfo() {
  Json features = Json::array();
  features.push_back(feature("host executor", true, "ranks are threads or processes, of one machine or several"));
  features.push_back(feature("CUDA kernels", hasKernels(), cudaNote()));
  features.push_back(feature("verbs (InfiniBand)", KOLO_HAVE_VERBS, verbsNote()));
  return textOf({{"version", fmt::format("{}.{}.{}", KOLO_MAJOR, KOLO_MINOR, KOLO_PATCH)},
                 {"version_code", KOLO_VERSION_CODE},
                 {"compiler", compiler()},
                 {"build_type", KOLO_BUILD_TYPE},
                 {"sanitizer", KOLO_SANITIZER},
                 {"isa", executor::isaName()},
                 {"features", features}});
}

Result<std::string> topologyInfo() {
  const topology::Machine& machine = topology::machine();
  Json caches = Json::array();
  for (const topology::Cache& cache : machine.caches) {
    caches.push_back({{"level", cache.level},
                      {"kind", cache.kind},
                      {"bytes", cache.bytes},
                      {"line_bytes", cache.lineBytes},
                      {"count", cache.count},
                      {"shared_by", cache.sharedBy}});
  }
  const std::vector<std::string> near = topology::nicsNear(topology::nics(), topology::placeOfProcess(0), 0);
  Json nics = Json::array();
  for (const topology::Nic& nic : topology::nics()) {
    const auto numberOf = [](int number) { return number >= 0 ? Json(number) : Json(nullptr); };
    nics.push_back({{"name", nic.name},
                    {"kind", nic.isRdma ? "rdma" : "network"},
                    {"pci_bus", nic.pciBus.empty() ? Json(nullptr) : Json(nic.pciBus)},
                    {"package", numberOf(nic.place.package)},
                    {"numa_node", numberOf(nic.place.numa)},
                    {"megabits", nic.megabits > 0 ? Json(nic.megabits) : Json(nullptr)},
                    {"near", std::find(near.begin(), near.end(), nic.name) != near.end()}});
  }
  return textOf({{"source", machine.source},
                 {"cpu_model", machine.cpuModel},
                 {"packages", machine.packages},
                 {"numa_nodes", machine.numaNodes},
                 {"cores", machine.cores},
                 {"threads", machine.threads},
                 {"memory_bytes", machine.memoryBytes},
                 {"caches", caches},
                 {"nics", nics},
                 {"allowed_threads", machine.allowedThreads},
                 {"cpu_quota", machine.cpuQuota > 0 ? Json(machine.cpuQuota) : Json(nullptr)},
                 {"available_cores", machine.available}});
}

Result<std::string> transportsInfo() {
  KOLO_ASSIGN(const std::vector<transport::Entry> entries, transport::list(""));
  Json transports = Json::array();
  for (const transport::Entry& entry : entries) {
    transports.push_back({{"name", entry.table->name},
                          {"origin", entry.origin},
                          {"works", entry.works},
                          {"why", entry.works ? std::string() : entry.why}});
  }
  return textOf({{"transports", transports}});
}

Result<std::string> settingsInfo() {
  Json rows = Json::array();
  for (const settings::Value& value : settings::all()) {
    if (std::string_view(value.setting.name).starts_with("KOLO_TEST_")) continue;
    const bool secret = std::string_view(value.setting.name) == "KOLO_SECRET" && !value.text.empty();
    rows.push_back({{"name", value.setting.name},
                    {"value", secret ? "(hidden)" : value.text},
                    {"source", value.source},
                    {"default", value.setting.fallback},
                    {"kind", nameOf(value.setting.kind)},
                    {"meaning", value.setting.meaning}});
  }
  const Status malformed = settings::validate();
  return textOf({{"settings", rows}, {"error", malformed.ok() ? Json(nullptr) : Json(malformed.message())}});
}

}  // namespace kolo::diagnostics
