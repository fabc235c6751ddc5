// The reductions that users made: pre-multiplied sums and functions of their own. Handles are valid on the communicator
// that made them.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/status.h"
#include "comm/operation.h"

namespace kolo::comm {

class Reductions {
 public:
  koloRedOp_t add(const CustomReduction& reduction);
  // nullptr for a handle that is not in use here. Operations hold what they got.
  std::shared_ptr<const CustomReduction> find(koloRedOp_t op) const;
  bool remove(koloRedOp_t op);

 private:
  mutable std::mutex mutex_;
  // Handles count up from koloNumOps and are not used again, so that all ranks that create alike have like handles.
  int next_ = koloNumOps;
  std::unordered_map<int, std::shared_ptr<const CustomReduction>> entries_;
};

}  // namespace kolo::comm
