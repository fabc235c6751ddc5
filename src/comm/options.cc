#include "comm/options.h"

#include <cstddef>

#include "base/log.h"
#include "base/settings.h"
#include "comm/mesh.h"
#include "drivers/cuda/devices.h"
#include "planner/planner.h"

namespace kolo::comm {
namespace {

template <class T>
bool isGiven(T value, T undefined) {
  return value != undefined;
}

// A field that is 0 or 1, or was left at its initial value.
Status takeSwitch(int given, const char* name, bool& option) {
  if (!isGiven(given, KOLO_CONFIG_UNDEF_INT)) return {};
  if (given != 0 && given != 1) return error(koloInvalidArgument, "{} is {}, expected 0 or 1", name, given);
  option = given == 1;
  return {};
}

}  // namespace

Result<Options> Options::make(const koloConfig_t* config, const Options* parent) {
  KOLO_TRY(settings::validate());
  KOLO_TRY(log::openFile());
  Options options;
  if (parent != nullptr) {
    options = *parent;
    options.mesh.clear();
  } else {
    options.timeoutMs = static_cast<int>(settings::integer("KOLO_TIMEOUT_MS"));
    options.reproducible = settings::integer("KOLO_REPRODUCIBLE") != 0;
    options.algorithm = settings::text("KOLO_ALGORITHM");
    options.transports = settings::text("KOLO_TRANSPORTS");
    options.name = "world";
    options.device = drivers::deviceOf(settings::device("KOLO_DEVICE"));
    options.resident = static_cast<int>(settings::integer("KOLO_RESIDENT"));
  }
  if (config != nullptr) {
    if (config->magic != KOLO_CONFIG_MAGIC || config->size < sizeof(std::size_t) + 2 * sizeof(unsigned)) {
      return error(koloInvalidArgument, "the configuration is not initialised; start from KOLO_CONFIG_INITIALIZER");
    }
    if (config->version > KOLO_VERSION_CODE) {
      return error(koloInvalidArgument, "the configuration was made for version {} of Kolo, this is {}",
                   config->version, KOLO_VERSION_CODE);
    }
    if (isGiven(config->timeoutMs, KOLO_CONFIG_UNDEF_INT)) options.timeoutMs = config->timeoutMs;
    if (options.timeoutMs < 0) {
      return error(koloInvalidArgument, "timeoutMs is {}, expected milliseconds or 0 for no deadline",
                   options.timeoutMs);
    }
    KOLO_TRY(takeSwitch(config->reproducible, "reproducible", options.reproducible));
    if (config->algorithm != nullptr) options.algorithm = config->algorithm;
    if (config->transports != nullptr) options.transports = config->transports;
    if (config->name != nullptr) options.name = config->name;
    // Callers that were built with an older header have a shorter structure.
    const bool hasDevice = config->size >= offsetof(koloConfig_t, device) + sizeof config->device;
    if (hasDevice && isGiven(config->device, KOLO_CONFIG_UNDEF_INT)) options.device = config->device;
    const bool hasResident = config->size >= offsetof(koloConfig_t, resident) + sizeof config->resident;
    if (hasResident && isGiven(config->resident, KOLO_CONFIG_UNDEF_INT)) {
      if (config->resident < 0 || config->resident > 2) {
        return error(koloInvalidArgument, "resident is {}, expected 0, 1 or 2", config->resident);
      }
      options.resident = config->resident;
    }
    const bool hasEager = config->size >= offsetof(koloConfig_t, eager) + sizeof config->eager;
    if (hasEager) KOLO_TRY(takeSwitch(config->eager, "eager", options.eager));
    if (options.device < KOLO_HOST)
      return error(koloInvalidArgument, "device is {}, expected a CUDA device or KOLO_HOST", options.device);
  }
  if (const auto wishes = planner::parseWishes(options.algorithm); !wishes.ok()) {
    const bool fromEnvironment = options.algorithm == settings::text("KOLO_ALGORITHM");
    return error(fromEnvironment ? koloInvalidEnvironment : koloInvalidArgument, "{}: {}",
                 fromEnvironment ? "environment variable KOLO_ALGORITHM" : "algorithm", wishes.status().message());
  }
  return options;
}

std::string Options::agreement(const ArenaLayout& layout) const {
  return fmt::format("KOLO_STAGING_BYTES for {} slots of {} bytes, reproducible {}, algorithms \"{}\", {}{}",
                     layout.slots, layout.slotBytes, reproducible ? 1 : 0, algorithm,
                     device < 0      ? "host memory"
                     : resident != 0 ? "GPUs, resident"
                                     : "GPUs",
                     mesh.empty() ? "" : ", a mesh of " + describeMesh(mesh));
}

Peers::Purpose staging(const ArenaLayout& layout, int rank) {
  return {.name = "staging",
          .partAt = layout.partAt(rank),
          .partBytes = layout.partBytes(),
          .mostAtOnce = static_cast<int>(settings::integer("KOLO_TEST_CONNECT_ALL_RANKS"))};
}

}  // namespace kolo::comm
