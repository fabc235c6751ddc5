// Measures and verifies everything that the options ask for, on one communicator.
//
// Method: a sample is a batch of calls back to back, timed on each rank and divided by the calls; its time is that of
// the slowest rank. A barrier precedes each batch. README.md gives the reasons.
//
// Thread safety: collective over the communicator; each rank calls on its own thread.
#pragma once

#include <vector>

#include "kolo/kolo.h"
#include "perf/exchange.h"
#include "perf/options.h"
#include "perf/report.h"

namespace kolo::perf {

// device: where the communicator is. reporter: on rank 0; null elsewhere. Returns the same results on all ranks. Throws Failure when the library reports
// an error, or when the options are not possible for so many ranks (before.h).
std::vector<Result> runSweep(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange, Reporter* reporter);

}  // namespace kolo::perf
