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
constexpr std::array<const char*, koloNumCollectives> kCollectives = {
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter",
    "all_to_all", "gather", "scatter",   "barrier",    "send_recv"};

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
  for (std::size_t i = 0; i < kCollectives.size(); ++i) {
    if (wanted == kCollectives[i]) return static_cast<device::Collective>(i);
  }
  return device::Collective::kCount;
}

std::string describe(const device::Signature& signature, std::uint64_t count) {
  using device::Collective;
  const char* collective = lookUp(kCollectives, static_cast<int>(signature.collective));
  std::string text = fmt::format("{}{}", collective != nullptr ? collective : "unknown", signature.vector ? "v" : "");
  if (signature.collective == Collective::kBarrier) return text;
  const bool isList = signature.datatype == koloNumDatatypes;
  const char* datatype = isList ? "a list" : lookUp(kDatatypes, signature.datatype);
  text += fmt::format("({}", datatype != nullptr ? datatype : "unknown datatype");
  if (signature.op != device::Signature::kNoOp) text += ", " + opWord(signature.op);
  const bool rooted = signature.collective == Collective::kReduce || signature.collective == Collective::kBroadcast ||
                      signature.collective == Collective::kGather || signature.collective == Collective::kScatter;
  if (rooted) text += fmt::format(", root {}", signature.root);
  // Where all ranks give all counts the header carries a digest of them.
  const bool digested = signature.vector && (signature.collective == Collective::kAllGather ||
                                             signature.collective == Collective::kReduceScatter);
  if (isList) text += fmt::format(" of items with digest {:x}", count);
  else text += digested ? fmt::format(", counts with digest {:x}", count) : fmt::format(", count {}", count);
  return text + fmt::format(") by {}", name(signature.algorithm));
}

}  // namespace kolo

using namespace kolo;

extern "C" {

KOLO_API size_t koloDataTypeSize(koloDataType_t datatype) {
  return datatype >= 0 && datatype < koloNumDatatypes ? elementBytes(datatype) : 0;
}
KOLO_API const char* koloDataTypeName(koloDataType_t datatype) { return lookUp(kDatatypes, datatype); }
KOLO_API const char* koloRedOpName(koloRedOp_t op) { return lookUp(kOps, op); }
KOLO_API const char* koloCollectiveName(koloCollective_t collective) { return lookUp(kCollectives, collective); }
KOLO_API const char* koloAlgorithmName(int algorithm) {
  return algorithm >= 0 && algorithm < algorithms::kAlgorithms ? algorithms::kCatalogue[algorithm].name : nullptr;
}
KOLO_API int koloAlgorithmIsDefined(int algorithm, koloCollective_t collective) {
  const bool isKnown = koloAlgorithmName(algorithm) != nullptr && koloCollectiveName(collective) != nullptr;
  return isKnown && algorithms::kCatalogue[algorithm].serves(static_cast<device::Collective>(collective)) ? 1 : 0;
}

}  // extern "C"
