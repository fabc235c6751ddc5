// What one reduction of a range of elements is, for every executor: a fold of several sources, in the order given,
// written to several destinations. No CUDA include, no host-only header: this file is shared by all executors.
#pragma once

#include <cstdint>

#include "device/views.h"

namespace kolo::device {

struct Link;
struct Packet;

// The binary operations that exist as code. avg is kSum with a divisor; a pre-multiplied sum is kSum with a scale.
enum class ReduceOp : std::uint8_t {
  kSum,
  kProd,
  kMax,
  kMin,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kBitAnd,
  kBitOr,
  kBitXor,
  kUser,
  kCount
};

// dst[0..dstCount)[i] = finish(fold(src[0][i], src[1][i], ...)) for i in [0, count).
//
// Every element of every source is loaded before that element is stored to any destination, so a destination may be
// identical to a source (in place); otherwise ranges do not overlap. Pointers may be unaligned to any degree.
// The fold is strictly left to right, in float32 for float16, bfloat16 and float8, in the datatype itself otherwise,
// and is rounded (to nearest even) once, when stored. No fused multiply-add: results are the same bits in every
// executor.
//
// An average (divisor > 1) of 8- or 16-bit integers is folded in float32, too, and truncated when stored: its sum does
// not wrap. An average of bfloat16, which reaches as far as float32, is folded as if the range of float32 were larger.
//
// Where an average of 8- or 16-bit floats is made of several folds, its partial results are shares (device/shares.h):
// such folds have powers of two as divisors, and as weights of the sources that are shares.
struct ReduceArgs {
  void* const* dst;
  int dstCount;  // >= 1
  const void* const* src;
  int srcCount;                    // >= 1; 1 with one destination is a copy (with scale and divisor applied)
  std::uint64_t count;             // elements
  const void* scale = nullptr;     // one element of the datatype, multiplied into src[scaledSource] as it is loaded;
                                   // the product is rounded to the datatype, as if it had been stored and sent
  int scaledSource = -1;           // -1: none
  std::uint32_t divisor = 1;       // > 1: the fold is divided by this before it is stored (avg); not with a scale
  const float* weights = nullptr;  // [srcCount] multiplied into sources that are shares; null: 1. Only with a divisor
  float unit = 1;                  // multiplied into the divisor; not 1 where all sources are shares
  bool streaming = false;          // store past the caches (a hint; the caller need not fence)
};

// One peer in a step in packets (device/packets.h).
struct PacketPeer {
  Link* link;
  const Packet* in;  // the buffers each way, and what has been put into them: their number
  Packet* out;
  ConstPiece given;  // goes to the peer
  Piece taken;       // comes from it
  std::uint32_t number;
};

// The operands of a fold of up to so many ranks' inputs. The threads of a team have them in common: of each thread's
// own, a GPU would keep a copy for every thread that can run on it. What a thread writes into them the others read
// after a barrier, and it is written again after another.
inline constexpr int kMostFolded = 64;
struct FoldLists {
  PacketPeer packets[kMostFolded];  // of a step in packets
  const void* inputs[kMostFolded];
  void* outputs[kMostFolded];
  bool isPut[kMostFolded];  // of outputs: what is put there after the fold
  float weights[kMostFolded];
  // Of a part of a fold that lies in one segment.
  const void* partInputs[kMostFolded];
  void* partOutputs[kMostFolded];
};

}  // namespace kolo::device
