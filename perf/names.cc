#include "perf/names.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "perf/failure.h"

namespace kolo::perf {
namespace {

// Lower case without '_' and '-', so that "allreduce", "all-reduce" and "All_Reduce" are one name.
std::string plainName(std::string_view name) {
  std::string result;
  for (const char letter : name) {
    if (letter != '_' && letter != '-') result += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return result;
}

constexpr std::pair<const char*, koloDataType_t> kDatatypeAliases[] = {
    {"char", koloInt8},         {"int", koloInt32},          {"half", koloFloat16},      {"float", koloFloat32},
    {"double", koloFloat64},    {"bf16", koloBfloat16},      {"f8e4m3", koloFloat8e4m3}, {"fp8e4m3", koloFloat8e4m3},
    {"f8e5m2", koloFloat8e5m2}, {"fp8e5m2", koloFloat8e5m2},
};

// In the order of the report: most used first.
constexpr koloCollective_t kReportOrder[] = {
    koloCollectiveAllReduce, koloCollectiveAllGather, koloCollectiveReduceScatter, koloCollectiveBroadcast,
    koloCollectiveReduce,    koloCollectiveAllToAll,  koloCollectiveGather,        koloCollectiveScatter,
    koloCollectiveSendRecv,  koloCollectiveBarrier};

// more: what else the message is to say.
template <typename Enum, typename NameOf>
Enum find(std::string_view name, int count, NameOf nameOf, const char* kind, const std::string& more = {}) {
  const std::string wanted = plainName(name);
  std::string known;
  for (int i = 0; i < count; ++i) {
    const char* candidate = nameOf(static_cast<Enum>(i));
    if (candidate == nullptr) continue;
    if (plainName(candidate) == wanted) return static_cast<Enum>(i);
    known += candidate;
    known += ' ';
  }
  known.pop_back();
  fail("unknown {} \"{}\"; known are {}{}", kind, name, known, more);
}

template <typename T>
void appendNew(std::vector<T>& to, T value) {
  if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
}

template <typename T, typename Parse>
std::vector<T> parseList(std::string_view text, const std::vector<T>& all, Parse parse) {
  std::vector<T> result;
  for (const std::string& word : splitList(text)) {
    if (plainName(word) == "all") {
      for (const T value : all) appendNew(result, value);
    } else {
      appendNew(result, parse(word));
    }
  }
  return result;
}

}  // namespace

koloCollective_t parseCollective(std::string_view name) {
  return find<koloCollective_t>(name, koloNumCollectives, koloCollectiveName, "collective");
}

koloDataType_t parseDatatype(std::string_view name) {
  const std::string wanted = plainName(name);
  std::string aliases = ", and as in nccl-tests";
  for (const auto& [alias, datatype] : kDatatypeAliases) {
    if (wanted == alias) return datatype;
    aliases += fmt::format(" {}", alias);
  }
  return find<koloDataType_t>(name, koloNumDatatypes, koloDataTypeName, "datatype", aliases);
}

koloRedOp_t parseOp(std::string_view name) { return find<koloRedOp_t>(name, koloNumOps, koloRedOpName, "reduction"); }

std::vector<koloCollective_t> parseCollectives(const std::vector<std::string>& texts) {
  std::vector<koloCollective_t> all(std::begin(kReportOrder), std::end(kReportOrder));
  if (texts.empty()) return all;
  std::vector<koloCollective_t> result;
  for (const std::string& text : texts) {
    for (const koloCollective_t each : parseList<koloCollective_t>(text, all, parseCollective)) {
      appendNew(result, each);
    }
  }
  return result;
}

std::vector<koloDataType_t> parseDatatypes(std::string_view text) {
  std::vector<koloDataType_t> all;
  for (int i = 0; i < koloNumDatatypes; ++i) all.push_back(static_cast<koloDataType_t>(i));
  return parseList<koloDataType_t>(text, all, parseDatatype);
}

std::vector<koloRedOp_t> parseOps(std::string_view text) {
  return parseList<koloRedOp_t>(text, {koloSum, koloProd, koloMax, koloMin, koloAvg}, parseOp);
}

std::vector<std::string> splitList(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) fail("the list \"{}\" is empty, or has an empty part", text);
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace kolo::perf
