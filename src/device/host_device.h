// What marks functions that host and device code share.
#pragma once

// KOLO_HD: small ones, always inlined, so that files compiled for different instruction sets do not share a copy.
// KOLO_DEVICE: the rest, left to the compiler. KOLO_DEVICE_CALL: large ones, which a GPU's code holds once and calls:
// its assembler takes more time and memory for one huge function than for many. KOLO_ROLLED: before a loop of many
// rounds, which it would unroll. KOLO_UNROLLED: before a short one, whose arrays are to lie in registers. KOLO_APART:
// what is not on the way of small operations, kept out of its callers.
#ifdef __CUDACC__
#define KOLO_HD __host__ __device__ __forceinline__
#define KOLO_DEVICE __host__ __device__
#define KOLO_DEVICE_CALL __host__ __device__ __noinline__
#define KOLO_ROLLED _Pragma("unroll 1")
#define KOLO_UNROLLED _Pragma("unroll")
#define KOLO_APART __host__ __device__ __noinline__
#else
#define KOLO_HD inline __attribute__((always_inline))
#define KOLO_DEVICE inline
#define KOLO_DEVICE_CALL inline
#define KOLO_ROLLED
#define KOLO_UNROLLED
#define KOLO_APART __attribute__((noinline, cold))
#endif

namespace kolo::device {

// KOLO_MAY_ALIAS: a type through which bytes of other types may be read and written. A GPU's compiler takes that for
// granted. kLoadsAnyAddress: whether a word may lie at an address that is no multiple of its size.
#ifdef __CUDACC__
#define KOLO_MAY_ALIAS
inline constexpr bool kLoadsAnyAddress = false;
#else
#define KOLO_MAY_ALIAS [[gnu::may_alias]]
inline constexpr bool kLoadsAnyAddress = true;
#endif

}  // namespace kolo::device
