// The probe as a kernel, with the registers that the library's kernels have.
#include "gpu_probe/probe.h"

namespace kolo::test {
namespace {

template <class T>
__device__ __noinline__ void sumAs(const device::BlockIndex& index, const device::ReduceArgs& args) {
  device::blockReduce<T, device::ReduceOp::kSum>(index, args);
}

struct ProbePlatform {
  __device__ unsigned thread() const { return threadIdx.x; }
  __device__ unsigned threads() const { return blockDim.x; }
  __device__ bool syncOr(bool value) { return __syncthreads_or(value) != 0; }
  __device__ void rest() const {}
  __device__ std::uint64_t nowNs() const {
    std::uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
  }
  __device__ void storePacket(unsigned char* to, device::Pack pack) const {
    asm volatile("st.volatile.v2.u64 [%0], {%1, %2};" : : "l"(to), "l"(pack.words[0]), "l"(pack.words[1]) : "memory");
  }
  __device__ device::Pack loadPacket(const unsigned char* from) const {
    device::Pack pack;
    asm volatile("ld.volatile.v2.u64 {%0, %1}, [%2];"
                 : "=l"(pack.words[0]), "=l"(pack.words[1])
                 : "l"(from)
                 : "memory");
    return pack;
  }
  __device__ void reduce(const device::BlockIndex& index, koloDataType_t datatype,
                         const device::ReduceArgs& args) const {
    if (datatype == koloFloat32) sumAs<float>(index, args);
    else if (datatype == koloBfloat16) sumAs<device::Bfloat16>(index, args);
    else sumAs<device::Float8E4m3>(index, args);
  }
};

}  // namespace
}  // namespace kolo::test

extern "C" __global__ void __launch_bounds__(512, 1) koloProbe(const __grid_constant__ kolo::test::ProbeParams probe) {
  kolo::test::ProbePlatform platform;
  kolo::test::runProbe(platform, probe, static_cast<int>(blockIdx.x));
}
