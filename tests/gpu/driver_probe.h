// Which calls of the driver wait for kernels that run, and let no other thread of the context call meanwhile. The
// library makes none of those while a kernel may wait for what its process does next; which they are, only a device
// tells.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace kolo::test {

struct ProbedCall {
  std::string name;
  double us = 0;         // that it took, begun when a kernel was running
  bool waits = false;    // it returned when that had ended
  bool holdsUp = false;  // and so did a launch of another thread's
};

// Makes each call beside a kernel that runs for a tenth of a second, and tells of each. Takes some seconds at most.
void probeDriver(int device, const std::function<void(const ProbedCall&)>& tell);

}  // namespace kolo::test
