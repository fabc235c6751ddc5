// What torch's datatypes and reductions are called by Kolo.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include "torch/c10d.h"

namespace kolo::pytorch {

// A datatype with which elements of this type can be moved. Every type of torch's has one: a type that Kolo cannot
// calculate with is moved as one of the same length.
koloDataType_t typeToMove(at::ScalarType type);

// The datatype to calculate with; a TypeError where Kolo has none.
koloDataType_t typeToReduce(at::ScalarType type);

// A reduction of Kolo's. A pre-multiplied sum is a handle, which is given back by the destructor: not before the
// operations that use it are over.
class Reduction {
 public:
  Reduction(const c10d::ReduceOp& op, at::ScalarType type, koloComm_t comm);
  Reduction(Reduction&& other) noexcept;
  Reduction& operator=(Reduction&&) = delete;
  ~Reduction();

  koloRedOp_t get() const { return op_; }

 private:
  koloRedOp_t op_;
  koloComm_t owner_ = nullptr;  // of the handle; nullptr: predefined
};

}  // namespace kolo::pytorch
