// One line for each collective that is called, at the log's debug level: which algorithm ran, among how many ranks, and
// how much of what. On GPUs the line is written before the operation, which alone finds out whether the buffers of all
// ranks lie in windows: where those of this rank do, the line names both algorithms.
//
// Thread safety: under the communicator's turn.
#pragma once

#include <optional>
#include <string>

#include "base/log.h"
#include "collectives/operation.h"
#include "collectives/prepare.h"
#include "device/path.h"

namespace kolo::collectives {

// "all_reduce: ring, 4 x 1000 float32, sum". course: how the data went; none: that is not known yet.
std::string describeCall(const Operation& operation, const Prepared& prepared, std::optional<device::Course> course);

// Beside a repeated call that takes no plan (comm::Planning::recall) there is no such line: at this level no thread
// gets a bias (Bias::isPossible), and so there is no such call.
inline void logCall(const Operation& operation, const Prepared& prepared, std::optional<device::Course> course) {
  if (log::enabled(log::Level::kDebug)) log::debug("{}", describeCall(operation, prepared, course));
}

}  // namespace kolo::collectives
