#include "executor/host/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>

#include "device/copy_short.h"

namespace kolo::executor {

extern const HostIsa kGenericIsa;
#if defined(__x86_64__)
extern const HostIsa kAvx2Isa;
extern const HostIsa kAvx512Isa;
#endif

namespace {

struct Available {
  std::array<const HostIsa*, 3> isas{};
  int count = 0;

  Available() {
    isas[count++] = &kGenericIsa;
#if defined(__x86_64__)
    // What the system has not enabled, the compiler's check does not report either.
    __builtin_cpu_init();
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang 14 does not know "f16c"
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    const bool avx2 = __builtin_cpu_supports("avx2") && f16c;
    if (avx2) isas[count++] = &kAvx2Isa;
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      isas[count++] = &kAvx512Isa;
    }
#endif
  }
};

const Available& available() {
  static const Available instance;
  return instance;
}

const HostIsa& chosen() { return *available().isas[available().count - 1]; }

}  // namespace

const HostIsa* const* availableIsas(int* count) {
  *count = available().count;
  return available().isas.data();
}

ReduceKernel reduceKernel(koloDataType_t datatype, device::ReduceOp op) {
  if (datatype < 0 || datatype >= koloNumDatatypes || op >= device::ReduceOp::kCount) return nullptr;
  return chosen().kernel[datatype][static_cast<int>(op)];
}

const char* isaName() { return chosen().name; }

void copy(void* dst, const void* src, std::size_t bytes, bool streaming) {
  if (dst == src || bytes == 0) return;
  if (streaming) {
    chosen().streamCopy(dst, src, bytes);
  } else {
    std::memcpy(dst, src, bytes);
  }
}

void moveRows(const device::RowMove& move) {
  const std::uint64_t rowBytes = move.rowElements * move.dstBytes;
  const bool casts = move.dstDatatype != move.srcDatatype;
  constexpr std::uint64_t kShort = 31;  // a call takes longer: perf/results/2026-11-28-special-cases.txt
  const CastKernel cast = casts ? chosen().casts[move.dstDatatype][move.srcDatatype] : nullptr;
  for (std::uint64_t row = 0; row < move.rows; ++row) {
    unsigned char* const to = move.dst + static_cast<std::int64_t>(row) * move.dstStride;
    const unsigned char* const from = move.src + static_cast<std::int64_t>(row) * move.srcStride;
    if (casts) cast(to, from, move.rowElements, move.factor);
    else if (rowBytes <= kShort) device::copyShort(to, from, static_cast<std::uint32_t>(rowBytes));
    else std::memcpy(to, from, rowBytes);
  }
}

}  // namespace kolo::executor
