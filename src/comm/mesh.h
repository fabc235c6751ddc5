// A communicator's ranks as an N-dimensional mesh, in row-major order: the last coordinate varies fastest.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kolo::comm {

class Mesh {
 public:
  static constexpr int kMostDimensions = 32;

  // dims: the lengths of the axes; their product must be the number of ranks.
  static Result<Mesh> make(const int* dims, int ndim, int ranks);

  // Whether the axes exist, and each is there once.
  Status checkAxes(const std::vector<int>& axes) const;
  // The ranks whose coordinates differ from this rank's on these axes at most, in row-major order of the axes as they
  // are listed. REQUIRES: checkAxes()
  std::vector<int> along(const std::vector<int>& axes, int rank) const;
  // The shape of the mesh that these ranks are: the lengths of the listed axes, without those of length 1. Empty if
  // that is one axis or none. REQUIRES: checkAxes()
  std::vector<int> shapeAlong(const std::vector<int>& axes) const;

 private:
  std::vector<int> dims_;
  std::vector<int> strides_;  // ranks from one place to the next on the axis
};

// "2 x 3 x 4"
std::string describeMesh(const std::vector<int>& dims);

}  // namespace kolo::comm
