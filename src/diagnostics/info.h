// What koloGetInfo tells: JSON texts about this build, this machine, the transports and the settings.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace kolo::diagnostics {

// {"version", "version_code", "compiler", "build_type", "sanitizer", "isa", "features": [{"name", "built", "note"}]}
Result<std::string> buildInfo();

// {"source", "cpu_model", "packages", "numa_nodes", "cores", "threads", "memory_bytes", "caches": [...],
//  "allowed_threads", "cpu_quota" (null: none), "available_cores"}
Result<std::string> topologyInfo();

// {"transports": [{"name", "origin", "works", "why"}]}; "why" is empty where it works. Fails as transport::list does.
Result<std::string> transportsInfo();

// {"settings": [{"name", "value", "source", "default", "kind", "meaning"}], "error" (null, or the first malformed
// one)}. KOLO_SECRET's value is not shown.
Result<std::string> settingsInfo();

}  // namespace kolo::diagnostics
