#include "algorithms/names.h"

#include <kolo/kolo.h>

#include <array>

#include "algorithms/catalogue.h"
#include "base/datatypes.h"
#include "base/status.h"
#include "device/reduce_args.h"

namespace kolo {
namespace {

constexpr std::array<const char*, koloNumDatatypes> kDatatypes = {
    "int8",     "uint8",       "int32",       "uint32", "int64",  "uint64", "float16",   "float32",   "float64",
    "bfloat16", "float8_e4m3", "float8_e5m2", "int16",  "uint16", "bool",   "complex64", "complex128"};
constexpr std::array<const char*, koloNumOps> kOps = {
    "sum", "prod", "max", "min", "avg", "logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor"};
template <class Table>
const char* lookUp(const Table& table, int index) {
  return index >= 0 && static_cast<std::size_t>(index) < table.size() ? table[static_cast<std::size_t>(index)]
                                                                      : nullptr;
}

std::string opWord(std::uint8_t op) {
  if (op == device::Signature::kAvg) return "avg";
  if (op == device::Signature::kPreMulSum) return "pre-multiplied sum";
  if (op == static_cast<std::uint8_t>(device::ReduceOp::kUser)) return "user function";
  static constexpr std::array<const char*, 10> kWords = {
      "sum", "prod", "max", "min", "logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor"};
  const char* word = lookUp(kWords, op);
  return word != nullptr ? word : fmt::format("operation {}", op);
}

}  // namespace

const char* name(device::Algorithm algorithm) {
  const char* word = koloAlgorithmName(static_cast<int>(algorithm));
  return word != nullptr ? word : "none";
}

device::Algorithm algorithmByName(std::string_view wanted) {
  for (const algorithms::Row& row : algorithms::kCatalogue) {
    if (wanted == row.name) return row.algorithm;
  }
  return device::Algorithm::kCount;
}

device::Collective collectiveByName(std::string_view wanted) {
  for (const CollectiveRow& row : kCollectives) {
    if (wanted == row.name) return static_cast<device::Collective>(row.collective);
  }
  return device::Collective::kCount;
}

namespace {

// The parts of what a rank called, as far as it has them: those of which two ranks may have different ones.
struct CallWords {
  std::string collective, datatype, reduction, root, count, algorithm;
};

CallWords wordsOf(const CalledOperation& called) {
  using device::Collective;
  const device::Signature& signature = called.signature;
  const char* const collective = koloCollectiveName(static_cast<koloCollective_t>(signature.collective));
  CallWords words;
  words.collective = fmt::format("{}{}", collective != nullptr ? collective : "unknown", signature.vector ? "v" : "");
  words.algorithm = name(signature.algorithm);
  if (signature.collective == Collective::kBarrier) return words;
  const bool isList = signature.datatype == koloNumDatatypes;
  const char* const datatype = isList ? "a list" : lookUp(kDatatypes, signature.datatype);
  words.datatype = datatype != nullptr ? datatype : "unknown datatype";
  if (signature.op != device::Signature::kNoOp) words.reduction = opWord(signature.op);
  if (device::isIn(signature.collective, device::kRooted)) words.root = fmt::format("root {}", signature.root);
  // Where all ranks give all counts, or items, the header carries a digest of them.
  const bool areDigested = signature.vector && !device::isIn(signature.collective, device::kCountsOfPairs);
  if (!isList) words.count = areDigested ? "counts" : fmt::format("count {}", called.count);
  return words;
}

}  // namespace

std::string describe(const CalledOperation& called) {
  const CallWords words = wordsOf(called);
  std::string text;
  for (const std::string& word : {words.datatype, words.reduction, words.root, words.count})
    if (!word.empty()) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? words.collective : fmt::format("{}({}) by {}", words.collective, text, words.algorithm);
}

std::string describeDifference(int one, const CalledOperation& oneCalled, int other,
                               const CalledOperation& otherCalled) {
  const CallWords mine = wordsOf(oneCalled), theirs = wordsOf(otherCalled);
  const auto say = [&](const char* verb, const std::string& my, const std::string& their) {
    return fmt::format("rank {} {} {}, rank {} {} {}", one, verb, my, other, verb, their);
  };
  if (mine.collective != theirs.collective) return say("called", mine.collective, theirs.collective);
  for (const auto part : {&CallWords::datatype, &CallWords::reduction, &CallWords::root, &CallWords::count})
    if (mine.*part != theirs.*part) return say("gave", mine.*part, theirs.*part);
  if (oneCalled.count != otherCalled.count) {
    const bool isList = oneCalled.signature.datatype == koloNumDatatypes;
    return fmt::format("rank {} and rank {} gave different {}", one, other, isList ? "items" : "counts");
  }
  return say("took", mine.algorithm, theirs.algorithm);
}

}  // namespace kolo

using namespace kolo;

extern "C" {

KOLO_API size_t koloDataTypeSize(koloDataType_t datatype) {
  return datatype >= 0 && datatype < koloNumDatatypes ? elementBytes(datatype) : 0;
}
KOLO_API const char* koloDataTypeName(koloDataType_t datatype) { return lookUp(kDatatypes, datatype); }
KOLO_API const char* koloRedOpName(koloRedOp_t op) { return lookUp(kOps, op); }
KOLO_API const char* koloCollectiveName(koloCollective_t collective) {
  return collective >= 0 && collective < koloNumCollectives ? rowOf(collective).name : nullptr;
}
KOLO_API const char* koloAlgorithmName(int algorithm) {
  return algorithm >= 0 && algorithm < algorithms::kAlgorithms ? algorithms::kCatalogue[algorithm].name : nullptr;
}
KOLO_API int koloAlgorithmIsDefined(int algorithm, koloCollective_t collective) {
  const bool isKnown = koloAlgorithmName(algorithm) != nullptr && koloCollectiveName(collective) != nullptr;
  return isKnown && algorithms::kCatalogue[algorithm].serves(static_cast<device::Collective>(collective)) ? 1 : 0;
}

}  // extern "C"
