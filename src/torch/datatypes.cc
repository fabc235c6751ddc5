#include "torch/datatypes.h"

#include <utility>

#include "torch/errors.h"

namespace kolo::pytorch {
namespace {

constexpr koloDataType_t kNone = koloNumDatatypes;

koloDataType_t datatypeOf(at::ScalarType type) {
  switch (type) {
    case at::kChar: return koloInt8;
    case at::kByte: return koloUint8;
    case at::kShort: return koloInt16;
    case at::kUInt16: return koloUint16;
    case at::kInt: return koloInt32;
    case at::kUInt32: return koloUint32;
    case at::kLong: return koloInt64;
    case at::kUInt64: return koloUint64;
    case at::kHalf: return koloFloat16;
    case at::kFloat: return koloFloat32;
    case at::kDouble: return koloFloat64;
    case at::kBFloat16: return koloBfloat16;
    case at::kFloat8_e4m3fn: return koloFloat8e4m3;
    case at::kFloat8_e5m2: return koloFloat8e5m2;
    case at::kBool: return koloBool;
    case at::kComplexFloat: return koloComplex64;
    case at::kComplexDouble: return koloComplex128;
    default: return kNone;
  }
}

// torch's sum of truth values is true if any of them is, its product if all are.
koloRedOp_t logical(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR: return koloLogicalOr;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return koloLogicalAnd;
    case c10d::ReduceOp::BXOR: return koloLogicalXor;
    default: return koloNumOps;
  }
}

koloRedOp_t arithmetic(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM: return koloSum;
    case c10d::ReduceOp::AVG: return koloAvg;
    case c10d::ReduceOp::PRODUCT: return koloProd;
    case c10d::ReduceOp::MIN: return koloMin;
    case c10d::ReduceOp::MAX: return koloMax;
    case c10d::ReduceOp::BAND: return koloBitAnd;
    case c10d::ReduceOp::BOR: return koloBitOr;
    case c10d::ReduceOp::BXOR: return koloBitXor;
    default: return koloNumOps;
  }
}

// The factor of a pre-multiplied sum as one element of the datatype, in the host's memory.
at::Tensor factorOf(const c10d::ReduceOp& op, at::ScalarType type) {
  const auto* const given = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(given != nullptr, "PREMUL_SUM has no factor");
  if (given->tensor_factor.defined()) return given->tensor_factor.to(at::kCPU, type).contiguous();
  return at::full({1}, given->double_factor, at::kDouble).to(type);
}

const char* nameOf(c10d::ReduceOp::RedOpType op) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  return op < std::size(kNames) ? kNames[op] : "an unknown reduction";
}

}  // namespace

koloDataType_t typeToMove(at::ScalarType type) {
  const koloDataType_t own = datatypeOf(type);
  if (own != kNone) return own;
  switch (c10::elementSize(type)) {
    case 1: return koloUint8;
    case 2: return koloUint16;
    case 4: return koloUint32;
    case 8: return koloUint64;
    case 16: return koloComplex128;
    default: TORCH_CHECK_TYPE(false, "kolo has no datatype for ", c10::toString(type));
  }
}

koloDataType_t typeToReduce(at::ScalarType type) {
  const koloDataType_t own = datatypeOf(type);
  TORCH_CHECK_TYPE(own != kNone, "kolo has no reductions of ", c10::toString(type));
  return own;
}

Reduction::Reduction(const c10d::ReduceOp& op, at::ScalarType type, koloComm_t comm) {
  const koloDataType_t datatype = typeToReduce(type);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const at::Tensor factor = factorOf(op, type);
    check(koloRedOpCreatePreMulSum(&op_, factor.const_data_ptr(), datatype, koloScalarHostImmediate, comm),
          "kolo:premul_sum");
    owner_ = comm;
    return;
  }
  op_ = type == at::kBool ? logical(op.op_) : arithmetic(op.op_);
  TORCH_CHECK_VALUE(op_ != koloNumOps && koloRedOpIsDefined(op_, datatype) != 0, "Cannot use ReduceOp.", nameOf(op.op_),
                    " with ", c10::toString(type), ": kolo does not define it");
}

Reduction::Reduction(Reduction&& other) noexcept : op_(other.op_), owner_(std::exchange(other.owner_, nullptr)) {}

// A communicator that is gone has taken its reductions with it; the handle is then refused, which is no harm.
Reduction::~Reduction() {
  if (owner_ != nullptr) (void)koloRedOpDestroy(op_, owner_);
}

}  // namespace kolo::pytorch
