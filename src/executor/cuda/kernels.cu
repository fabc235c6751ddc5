// The persistent kernel: one block for each channel, all resident, executing a list of operations. Compiled to an image
// for each architecture, which the library carries and loads through the driver; no CUDA runtime.
#include <utility>

#include "device/block_ops.h"
#include "device/row_move.h"
#include "executor/cuda/block_main.h"
#include "executor/cuda/resident.h"

namespace kolo::executor::cuda {
namespace {

__device__ std::uint64_t globalNs() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// One instantiation for each datatype and operation, each a function of its own: the compiler keeps their registers
// apart.
template <class T, device::ReduceOp kOp>
__device__ __noinline__ void reduceAs(const device::BlockIndex& index, const device::ReduceArgs& args) {
  device::blockReduce<T, kOp>(index, args);
}

using ReduceFunction = void (*)(const device::BlockIndex& index, const device::ReduceArgs& args);

// Called through a table: of direct calls in one kernel the assembler would look at all together, for which it takes
// too much time and memory.
struct ReduceTable {
  ReduceFunction function[koloNumDatatypes][static_cast<int>(device::ReduceOp::kUser)];
};

template <class T, int... kOps>
constexpr void fillRow(ReduceFunction (&row)[static_cast<int>(device::ReduceOp::kUser)],
                       std::integer_sequence<int, kOps...>) {
  const auto fill = [&]<int kOp>() {
    constexpr auto kThis = static_cast<device::ReduceOp>(kOp);
    if constexpr (device::isDefinedFor<T>(kThis)) row[kOp] = &reduceAs<T, kThis>;
  };
  (fill.template operator()<kOps>(), ...);
}

constexpr ReduceTable makeTable() {
  ReduceTable table{};
  for (int datatype = 0; datatype < koloNumDatatypes; ++datatype) {
    device::dispatch(static_cast<koloDataType_t>(datatype), [&](auto tag) {
      fillRow<typename decltype(tag)::type>(
          table.function[datatype], std::make_integer_sequence<int, static_cast<int>(device::ReduceOp::kUser)>());
    });
  }
  return table;
}

__device__ constexpr ReduceTable kReduceTable = makeTable();

class CudaPlatform {
 public:
  static constexpr bool kPosts = true;
  static constexpr bool kServesLists = false, kReadsLists = false;
  struct WaitState {
    std::uint64_t sinceNs = 0;
  };

  __device__ CudaPlatform(Control& control, BlockState& state) : control_(control), state_(state) {}

  __device__ unsigned thread() const { return threadIdx.x; }
  __device__ unsigned threads() const { return blockDim.x; }
  __device__ device::FoldLists& lists() { return state_.lists; }
  __device__ device::Work& step() { return state_.step; }
  __device__ bool syncOr(bool value) { return __syncthreads_or(value) != 0; }
  __device__ int polls() const { return 256; }
  __device__ bool claim(device::Counter& counter) {
    return atomicExch(reinterpret_cast<unsigned long long*>(&counter.value), 1ull) == 0;
  }
  __device__ void setTimeout(std::uint64_t ns) { timeoutNs_ = ns; }

  __device__ std::uint64_t nowNs() const { return globalNs(); }
  __device__ void fence() const { asm volatile("fence.sc.sys;" : : : "memory"); }
  __device__ std::uint64_t add(device::Counter& counter) const {
    std::uint64_t before;
    asm volatile("atom.add.acq_rel.sys.u64 %0, [%1], 1;" : "=l"(before) : "l"(&counter.value) : "memory");
    return before + 1;
  }
  __device__ void rest() const {}

  // The control line is in the host's memory: looked at only between rounds.
  __device__ device::Fault keepWaiting(int peer, WaitState& state) {
    if (device::loadAcquire(control_.stop) != 0 || device::loadAcquire(control_.faults) != 0) {  // [stop], [fault]
      return {.kind = device::Fault::kAborted, .peer = peer};
    }
    const std::uint64_t now = globalNs();
    if (state.sinceNs == 0) state.sinceNs = now;
    if (timeoutNs_ != 0 && now - state.sinceNs > timeoutNs_) return {.kind = device::Fault::kTimeout, .peer = peer};
    return {};
  }

  __device__ bool read(int, void*, std::uint64_t, std::uint64_t) { return false; }  // no operation on a GPU asks for it
  __device__ bool write(int, std::uint64_t, const void*, std::uint64_t) { return false; }

  __device__ void reduce(const device::BlockIndex& index, const device::Work& work, koloDataType_t datatype,
                         const device::ReduceArgs& args) {
    kReduceTable.function[datatype][static_cast<int>(work.fold.op)](index, args);
  }

 private:
  Control& control_;
  BlockState& state_;
  std::uint64_t timeoutNs_ = 0;
};

// Casts have one instantiation for each pair of datatypes, each a function of its own, too.
template <class To, class From>
__device__ __noinline__ void castAs(const device::BlockIndex& index, const device::RowMove& move) {
  device::castRows<To, From>(index, move);
}

using CastFunction = void (*)(const device::BlockIndex& index, const device::RowMove& move);

struct CastTable {
  CastFunction function[koloNumDatatypes][koloNumDatatypes];  // to, from
};

constexpr CastTable makeCastTable() {
  CastTable table{};
  for (int to = 0; to < koloNumDatatypes; ++to) {
    for (int from = 0; from < koloNumDatatypes; ++from) {
      device::withCast(static_cast<koloDataType_t>(to), static_cast<koloDataType_t>(from),
                       [&]<class To, class From>() { table.function[to][from] = &castAs<To, From>; });
    }
  }
  return table;
}

__device__ constexpr CastTable kCastTable = makeCastTable();

// Of the kernel that serves lists too. It is a kernel of its own, so that the others are what they would be without
// lists: neither their registers nor their stack grow.
class ListPlatform : public CudaPlatform {
 public:
  static constexpr bool kServesLists = true;
  __device__ ListPlatform(Control& control, BlockState& state) : CudaPlatform(control, state) {}

  __device__ void castRows(const device::BlockIndex& index, const device::RowMove& move) {
    kCastTable.function[move.dstDatatype][move.srcDatatype](index, move);
  }
};

}  // namespace
}  // namespace kolo::executor::cuda

// Three kernels, which call the same functions: one for launches of one or two operations, one for the others and to be
// resident, and one for launches with lists of items. The second bound asks for all registers that so many threads may
// have: without it sm_80 had given the resident kernel half of them, and reductions spilled.
extern "C" __global__ void __launch_bounds__(kolo::executor::cuda::kBlockThreads, 1)
    koloRunFew(const __grid_constant__ kolo::executor::cuda::FewParams launch) {
  __shared__ kolo::executor::cuda::BlockState state;
  kolo::executor::cuda::CudaPlatform platform(*launch.control, state);
  kolo::executor::cuda::runBlock(platform, launch, launch.list(), static_cast<int>(blockIdx.x), state);
}

extern "C" __global__ void __launch_bounds__(kolo::executor::cuda::kBlockThreads, 1)
    koloRunBlocks(const __grid_constant__ kolo::executor::cuda::LaunchParams launch,
                  const __grid_constant__ kolo::executor::cuda::ServeParams serve) {
  __shared__ kolo::executor::cuda::BlockState state;
  kolo::executor::cuda::CudaPlatform platform(*launch.control, state);
  kolo::executor::cuda::runKernel(platform, launch, serve, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                                  state);
}

extern "C" __global__ void __launch_bounds__(kolo::executor::cuda::kBlockThreads, 1)
    koloRunLists(const __grid_constant__ kolo::executor::cuda::FewParams launch) {
  __shared__ kolo::executor::cuda::BlockState state;
  kolo::executor::cuda::ListPlatform platform(*launch.control, state);
  kolo::executor::cuda::runBlock(platform, launch, launch.list(), static_cast<int>(blockIdx.x), state);
}

extern "C" __global__ void koloMoveLine(kolo::device::Counter* to, const kolo::device::Counter* from) {
  kolo::executor::cuda::moveWord(to, from, threadIdx.x);
}
