// The reductions that users made: pre-multiplied sums and functions of their own. Handles are valid on the communicator
// that made them.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "executor/context.h"

namespace kolo::comm {

struct CustomReduction {
  bool isPreMulSum = false;
  koloDataType_t datatype = koloInt8;  // of the scalar
  alignas(16) std::array<unsigned char, 16> scalar{};
  executor::UserReduction user;
  bool commutative = true;
};

class Reductions {
 public:
  koloRedOp_t add(const CustomReduction& reduction);
  // nullptr for a handle that is not in use here. Operations hold what they got.
  std::shared_ptr<const CustomReduction> find(koloRedOp_t op) const;
  bool remove(koloRedOp_t op);

 private:
  mutable std::mutex mutex_;
  // Handles count up from koloNumOps and are not used again, so that all ranks that create alike have like handles.
  std::vector<std::shared_ptr<const CustomReduction>> entries_;
};

}  // namespace kolo::comm
