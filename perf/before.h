// What can be known before ranks are started: one clear message then, instead of one from each rank.
//
// Thread safety: free functions, from any thread.
#pragma once

#include "kolo/kolo.h"
#include "perf/options.h"

namespace kolo::perf {

// Whether any line of this collective can be measured with these datatypes and reductions, in place if so asked.
bool isMeasurable(const Options& options, koloCollective_t collective);

// Bytes that the large buffer of each kind needs; 0 when nothing that is measured has a size.
size_t bufferCapacity(const Options& options, int ranks);

// These throw Failure.
// GPUs that do not exist; puts those that there are in the place of "all". REQUIRES: options.onGpus
void resolveGpus(Options& options);
// Roots that do not exist, nothing to measure, buffers of the ranks on this machine that exceed its memory, or its
// GPUs'.
void requirePossible(const Options& options, int ranks, int ranksHere);
// Files that cannot be written, and two reports into one file. What files hold is kept.
void requireOutputs(const Options& options);

}  // namespace kolo::perf
