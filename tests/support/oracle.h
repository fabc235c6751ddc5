// What every collective is to give, worked out from its definition in kolo.h alone: element by element, in wide
// integers or in the documented accumulator, with none of the library's code.
//
// Thread safety: pure functions.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <vector>

namespace kolo::tests {

using Bytes = std::vector<std::uint8_t>;

// Elements [begin, begin + count) of a buffer.
struct Block {
  std::size_t begin = 0;
  std::size_t count = 0;
};

enum class Reduction {
  kPredefined,
  kPreMulSum,  // rank r's input times scales[r]
  kAffine,     // user function on uint64: composition of affine maps, associative but not commutative
  kUserXor     // user function on any type: exclusive or of bytes
};

struct Problem {
  koloCollective_t collective = koloCollectiveAllReduce;
  koloDataType_t datatype = koloFloat32;
  koloRedOp_t op = koloSum;
  Reduction reduction = Reduction::kPredefined;
  int ranks = 1;
  int root = 0;
  bool vector = false;
  std::vector<std::vector<Block>> send, recv;  // [rank][block]; no blocks where a rank does not send or receive
  std::vector<double> scales;                  // kPreMulSum: by rank

  bool reduces() const;
  bool rooted() const;
  // Elements up to the end of the last block.
  static std::size_t extent(const std::vector<Block>& blocks);
};

// outputs[rank][block]: the bytes that the rank is to find in its recv block. inputs[rank]: begin of its send buffer.
// Reductions are folded left to right over ranks 0..n-1: float16, bfloat16 and float8 in float32, rounded once at the
// end; all others in their own type. The sum of an average of a type of 8 or 16 bits neither wraps nor is too large.
std::vector<std::vector<Bytes>> expectedOutputs(const Problem& problem, const std::vector<const std::uint8_t*>& inputs);

// The elements of floating-point and complex types (whose parts are told one after the other) as numbers.
double decode(koloDataType_t datatype, const std::uint8_t* part);
// Rounded to nearest even; too large values as kolo.h says.
void encode(koloDataType_t datatype, double value, std::uint8_t* part);
bool isFloating(koloDataType_t datatype);  // complex included
bool isSigned(koloDataType_t datatype);
// Bytes of what decode() and encode() take: half an element of the complex types.
std::size_t partBytes(koloDataType_t datatype);
// Distance from 1 to the next larger number.
double epsilon(koloDataType_t datatype);

// Of float16, bfloat16 and float8: the largest finite number, how much less the next one is, and the smallest above 0.
double largest(koloDataType_t datatype);
double stepAtLargest(koloDataType_t datatype);
double smallest(koloDataType_t datatype);

// The user functions, as koloRedOpCreate wants them.
void affineFunction(void* acc, const void* in, std::size_t count, koloDataType_t datatype, void* context);
void xorFunction(void* acc, const void* in, std::size_t count, koloDataType_t datatype, void* context);

}  // namespace kolo::tests
