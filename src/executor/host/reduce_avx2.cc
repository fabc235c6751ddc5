// The kernels for processors with AVX2 and F16C.
#define KOLO_ISA_NAMESPACE avx2
#include "executor/host/reduce_kernels.h"

namespace kolo::executor {

extern const HostIsa kAvx2Isa;
constexpr HostIsa kAvx2Isa = avx2::makeIsa("avx2");

}  // namespace kolo::executor
