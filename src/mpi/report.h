// What the interposer says, on standard error: warnings, why calls are passed on (KOLO_DEBUG=debug), and, with
// KOLO_MPI_STATISTICS=1, how many calls of each collective it took.
//
// Thread safety: all functions.
#pragma once

#include <string>

namespace kolo::mpi {

enum class Hook {
#define COLLECTIVE(Name, INonblocking, parameters, arguments, description) k##Name, k##INonblocking,
#include "mpi/collectives.inc"
#undef COLLECTIVE
  kCount
};

// "MPI_Bcast"
const char* nameOf(Hook hook);

// With KOLO_DEBUG=info or debug.
void inform(const std::string& text);
// Not with KOLO_DEBUG=error.
void warn(const std::string& text);
// Always.
void complain(const std::string& text);

void countAccelerated(Hook hook);
// why: a literal; said once for each hook and reason.
void countPassed(Hook hook, const char* why);
// Memory that other ranks can map, given to the program; and made a window of a communicator's.
void countAllocated();
void countRegistered();
// A counterpart of a communicator.
void countMade();
// A buffer in a GPU's memory that a call had a copy of.
void countStaged();
// The counts of this process, if they were asked for. rank: in MPI_COMM_WORLD.
void printStatistics(int rank);

}  // namespace kolo::mpi
