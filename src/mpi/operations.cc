#include "mpi/operations.h"

#include <algorithm>
#include <array>

namespace kolo::mpi {
namespace {

constexpr unsigned bit(Kind kind) { return 1U << static_cast<int>(kind); }

// MPI 3.1, section 5.9.2.
constexpr unsigned kOrdered =
    bit(Kind::kInteger) | bit(Kind::kFortranInteger) | bit(Kind::kFloat) | bit(Kind::kAddress);
constexpr unsigned kArithmetic = kOrdered | bit(Kind::kComplex);
constexpr unsigned kTruths = bit(Kind::kInteger) | bit(Kind::kLogical);
constexpr unsigned kBits = bit(Kind::kInteger) | bit(Kind::kFortranInteger) | bit(Kind::kByte) | bit(Kind::kAddress);
constexpr unsigned kPairs = bit(Kind::kPair);

}  // namespace

const Operator* findOperator(MPI_Op op) {
  static const std::array<Operator, 12> all = {{{MPI_SUM, true, koloSum, kArithmetic},
                                                {MPI_MAX, true, koloMax, kOrdered},
                                                {MPI_MIN, true, koloMin, kOrdered},
                                                {MPI_PROD, true, koloProd, kArithmetic},
                                                {MPI_LAND, true, koloLogicalAnd, kTruths},
                                                {MPI_LOR, true, koloLogicalOr, kTruths},
                                                {MPI_LXOR, true, koloLogicalXor, kTruths},
                                                {MPI_BAND, true, koloBitAnd, kBits},
                                                {MPI_BOR, true, koloBitOr, kBits},
                                                {MPI_BXOR, true, koloBitXor, kBits},
                                                {MPI_MAXLOC, false, koloMaxRedOp, kPairs},
                                                {MPI_MINLOC, false, koloMaxRedOp, kPairs}}};
  const auto found = std::find_if(all.begin(), all.end(), [op](const Operator& each) { return each.op == op; });
  return found != all.end() ? &*found : nullptr;
}

bool isCovered(MPI_Op op, MPI_Datatype datatype) {
  const Number* const number = findNumber(datatype);
  const Operator* const found = findOperator(op);
  return number != nullptr && found != nullptr && found->isDefinedFor(number->kind);
}

bool isNative(MPI_Op op, MPI_Datatype datatype) { return findNumber(datatype)->isNative && findOperator(op)->isNative; }

}  // namespace kolo::mpi
