// The kernels for any processor.
#define KOLO_ISA_NAMESPACE generic
#include "executor/host/reduce_kernels.h"

namespace kolo::executor {

extern const HostIsa kGenericIsa;
constexpr HostIsa kGenericIsa = generic::makeIsa("generic");

}  // namespace kolo::executor
