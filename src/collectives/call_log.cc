#include "collectives/call_log.h"

#include <algorithm>

#include "algorithms/names.h"
#include "base/datatypes.h"

namespace kolo::collectives {

namespace {

// The type in which elements are transferred.
const char* datatypesOf(const std::vector<Item>& items) {
  if (items.empty()) return "no type";
  const koloDataType_t first = items.front().transferType;
  const bool areAlike =
      std::all_of(items.begin(), items.end(), [&](const Item& item) { return item.transferType == first; });
  return areAlike ? koloDataTypeName(first) : "several types";
}

}  // namespace

std::string describeCall(const Operation& operation, const Prepared& prepared) {
  const device::Work& work = prepared.work;
  std::string text =
      fmt::format("{}{}: {}", koloCollectiveName(static_cast<koloCollective_t>(operation.collective)),
                  operation.vector ? "v" : "", work.ranks == 1 ? "self" : name(work.signature.algorithm));
  const bool hasOther = work.direct != device::Algorithm::kCount && work.direct != work.signature.algorithm;
  if (hasOther && work.ranks > 1) text += fmt::format(" (between windows {})", name(work.direct));
  if (operation.collective == device::Collective::kBarrier) return text + fmt::format(", {} ranks", work.ranks);
  if (operation.list != nullptr) {
    const std::vector<Item>& items = operation.list->items;
    text += fmt::format(", {} x {} bytes in {} items of {}", work.ranks, plannedBytes(operation), items.size(),
                        datatypesOf(items));
  } else {
    const std::uint64_t elements = plannedBytes(operation) / elementBytes(operation.datatype);
    text += fmt::format(", {} x {} {}", work.ranks, elements, koloDataTypeName(operation.datatype));
  }
  if (!operation.reduces()) return text;
  const char* const predefined = koloRedOpName(operation.op);
  const bool isPreMulSum = operation.custom != nullptr && operation.custom->isPreMulSum;
  return text + fmt::format(", {}", predefined != nullptr ? predefined : isPreMulSum ? "pre_mul_sum" : "user");
}

}  // namespace kolo::collectives
