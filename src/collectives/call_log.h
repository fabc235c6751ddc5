// One line for each collective that is called, at the log's debug level: which algorithm, among how many ranks, and how
// much of what.
//
// Thread safety: under the communicator's turn.
#pragma once

#include <string>

#include "base/log.h"
#include "collectives/operation.h"
#include "collectives/prepare.h"

namespace kolo::collectives {

// "all_reduce: ring, 4 x 1000 float32, sum"
std::string describeCall(const Operation& operation, const Prepared& prepared);

// Beside a repeated call that takes no plan (comm::Planning::recall) there is no such line: at this level no thread
// gets a bias (Bias::isPossible), and so there is no such call.
inline void logCall(const Operation& operation, const Prepared& prepared) {
  if (log::enabled(log::Level::kDebug)) log::debug("{}", describeCall(operation, prepared));
}

}  // namespace kolo::collectives
