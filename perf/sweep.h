// Measures and verifies everything that the options ask for, on one communicator.
//
// Method: a sample is a batch of calls back to back, timed on each rank and divided by the calls; its time is that of
// the slowest rank. A barrier precedes each batch. README.md gives the reasons.
//
// Thread safety: collective over the communicator; each rank calls on its own thread.
#pragma once

#include <memory>
#include <vector>

#include "kolo/kolo.h"
#include "perf/buffers.h"
#include "perf/exchange.h"
#include "perf/options.h"
#include "perf/report.h"

namespace kolo::perf {

using AllBuffers = std::vector<std::unique_ptr<Buffers>>;  // of each kind that is asked for

AllBuffers makeBuffers(koloComm_t comm, const Options& options, const Device& device);

// device: where the communicator and the buffers are. reporter: on rank 0; null elsewhere. Returns the same results on
// all ranks. Throws Failure when the library reports an error, or when the options are not possible for so many ranks
// (before.h).
std::vector<Result> runSweep(koloComm_t comm, const Options& options, const Device& device, const AllBuffers& buffers,
                             Exchange& exchange, Reporter* reporter);

}  // namespace kolo::perf
