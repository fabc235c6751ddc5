// What all ranks tell each other about a measurement, by the communicator that is measured.
//
// Thread safety: an Exchange belongs to one rank's thread; its functions are collective over the communicator and throw
// Failure.
#pragma once

#include <cstddef>
#include <vector>

#include "kolo/kolo.h"
#include "perf/device.h"

namespace kolo::perf {

class Exchange {
 public:
  Exchange(koloComm_t comm, const Device& device);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Until all that this rank has enqueued is done; throws if any of it has failed.
  void finish();
  // Until all ranks are here, and all that they had enqueued before is done.
  void barrier();
  // The ranks' values, one rank after the other. REQUIRES: as many of each.
  std::vector<double> gather(const std::vector<double>& own);
  double greatest(double own);
  double sum(double own);

 private:
  // Allocated once: to allocate later could wait for kernels that wait for this rank.
  static constexpr size_t kPiece = 512;  // values of a rank at a time

  koloComm_t comm_;
  const Device& device_;
  size_t ranks_;
  std::byte* own_;  // [kPiece]
  std::byte* all_;  // [ranks][kPiece]
};

}  // namespace kolo::perf
