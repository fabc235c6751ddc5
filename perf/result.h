// What one line of the report says.
#pragma once

#include <cstddef>
#include <string>

#include "perf/buffers.h"
#include "perf/operation.h"
#include "perf/statistics.h"

namespace kolo::perf {

struct Result {
  Operation operation;
  int ranks = 0;
  size_t bytes = 0;
  size_t elements = 0;
  BufferKind buffers = BufferKind::kRegistered;
  koloPlan_t plan{};
  size_t iterations = 0;  // calls timed
  Summary timeUs;
  bool verified = false;
  size_t wrong = 0;  // elements, over all ranks

  std::string collective() const { return koloCollectiveName(operation.collective); }
  // "none" where the collective has none, as in nccl-tests.
  std::string datatype() const;
  std::string op() const;
  // GB/s (1e9), from the median.
  double algorithmBandwidth() const;
  double busBandwidth() const;
};

}  // namespace kolo::perf
