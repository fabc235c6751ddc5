#include "collectives/call_log.h"

#include <algorithm>

#include "algorithms/names.h"
#include "base/datatypes.h"
#include "device/offers.h"

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

// Which algorithm ran, or may run.
std::string algorithmOf(const device::Work& work, std::optional<device::Course> course) {
  using device::Course;
  if (work.ranks == 1) return "self";
  std::string staged = name(work.signature.algorithm);
  if (device::fitsPackets(work)) return staged + " in packets";
  if (!course.has_value()) {
    const bool mayBeOther = work.direct != device::Algorithm::kCount && work.direct != work.signature.algorithm &&
                            work.sharing.input == device::Offer::kWindow;
    return mayBeOther ? fmt::format("{} ({} if all buffers lie in windows)", staged, name(work.direct)) : staged;
  }
  switch (*course) {
    case Course::kInWindows: return fmt::format("{} between windows", name(work.direct));
    case Course::kByReading:
    case Course::kByWriting: return fmt::format("{} by single copies", name(work.direct));
    case Course::kByBlock: return fmt::format("{} block by block", name(work.direct));
    case Course::kStaged: break;
  }
  return staged;
}

}  // namespace

std::string describeCall(const Operation& operation, const Prepared& prepared, std::optional<device::Course> course) {
  const device::Work& work = prepared.work;
  std::string text = fmt::format("{}{}: {}", koloCollectiveName(static_cast<koloCollective_t>(operation.collective)),
                                 operation.vector ? "v" : "", algorithmOf(work, course));
  if (operation.collective == device::Collective::kBarrier) return text + fmt::format(", {} ranks", work.ranks);
  if (operation.list != nullptr) {
    const std::vector<Item>& items = operation.list->items;
    text += fmt::format(", {} x {} bytes in {} items of {}", work.ranks, plannedBytes(operation), items.size(),
                        datatypesOf(items));
  } else {
    // Where each rank knows the counts of its own blocks alone, the longest of those.
    const std::uint64_t elements =
        std::max(plannedBytes(operation) / elementBytes(operation.datatype), operation.count);
    text += fmt::format(", {} x {}{} {}", work.ranks, countsDiffer(operation) ? "up to " : "", elements,
                        koloDataTypeName(operation.datatype));
  }
  if (!operation.reduces()) return text;
  const char* const predefined = koloRedOpName(operation.op);
  const bool isPreMulSum = operation.custom != nullptr && operation.custom->isPreMulSum;
  return text + fmt::format(", {}", predefined != nullptr ? predefined : isPreMulSum ? "pre_mul_sum" : "user");
}

}  // namespace kolo::collectives
