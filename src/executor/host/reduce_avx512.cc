// The kernels for processors with AVX-512 F, BW, VL and DQ.
#define KOLO_ISA_NAMESPACE avx512
#include "executor/host/reduce_kernels.h"

namespace kolo::executor {

extern const HostIsa kAvx512Isa;
constexpr HostIsa kAvx512Isa = avx512::makeIsa("avx512");

}  // namespace kolo::executor
