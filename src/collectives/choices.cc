#include "collectives/choices.h"

#include <bit>
#include <utility>

#include "algorithms/names.h"
#include "base/datatypes.h"

namespace kolo::collectives {

Status Choices::set(std::string_view overrides) {
  KOLO_ASSIGN(std::vector<planner::Wish> parsed, planner::parseWishes(overrides));
  {
    const std::lock_guard lock(mutex_);
    overrides_ = std::move(parsed);
    tellCallsApart_ = planner::tellCallsApart(overrides_);
  }
  for (auto& classes : chosen_) classes.fill(std::nullopt);
  return {};
}

bool Choices::inOrder(const Operation& operation) const {
  if (reproducible_ || needsWholeFold(operation)) return true;
  if (operation.op < koloNumOps) return false;
  return operation.custom != nullptr && !operation.custom->commutative;
}

planner::Query Choices::queryFor(const Operation& operation) const {
  planner::Query query;
  query.collective = operation.collective;
  query.vector = operation.vector;
  query.countsKnown = operation.list != nullptr || !countsDiffer(operation);
  query.inOrder = operation.reduces() && inOrder(operation);
  query.isList = operation.list != nullptr;
  query.castsOutput = query.isList && operation.list->castsOutput;
  query.reduction = reductionOf(operation);
  return query;
}

// The choice for a class of sizes. All ranks must choose alike, so it is made for one size that stands for the class,
// whichever size of it comes first on a rank.
planner::Choice Choices::choose(const Operation& operation, std::uint64_t bytes) {
  planner::Query query = queryFor(operation);
  if (!query.countsKnown) bytes = 0;  // ranks see different counts
  query.elements = operation.list != nullptr ? bytes : bytes / elementBytes(operation.datatype);
  const auto width = static_cast<std::size_t>(std::bit_width(bytes));
  const bool fitsLine = bytes <= device::kHeaderPayloadBytes;
  const bool cached = !query.vector && !query.inOrder && !query.isList && !tellCallsApart_;
  // Class 6 holds 32..63 bytes, of which only some fit a line.
  const std::size_t sizeClass = width == 6 && !fitsLine ? kClasses - 1 : width;
  auto& slot = chosen_[static_cast<std::size_t>(operation.collective)][sizeClass];
  if (cached && slot.has_value()) return *slot;
  query.bytes = tellCallsApart_ ? bytes : planner::sizeForClassOf(bytes);
  const planner::Choice choice = planner::choose(query, machine_, overrides_);
  if (cached) slot = choice;
  return choice;
}

std::string Choices::explain(const planner::Query& query) const {
  const std::lock_guard lock(mutex_);
  return planner::explain(query, machine_, overrides_);
}

koloPlan_t Choices::describe(const planner::Query& query) const {
  planner::Query planned = query;  // as choose() does it
  planned.inOrder = query.inOrder || (reproducible_ && device::isIn(query.collective, device::kReducing));
  std::unique_lock lock(mutex_);
  if (!tellCallsApart_) planned.bytes = planner::sizeForClassOf(query.bytes);
  const planner::Choice choice = planner::choose(planned, machine_, overrides_);
  lock.unlock();
  koloPlan_t plan{};
  plan.zeroCopy = query.registered && choice.direct != device::Algorithm::kCount ? 1 : 0;
  const device::Algorithm algorithm = plan.zeroCopy != 0 ? choice.direct : choice.algorithm;
  plan.channels = planner::channelsFor(algorithm, query, machine_);
  plan.predictedUs = planner::predictUs(algorithm, plan.zeroCopy != 0, query, machine_);
  const std::string name = machine_.ranks == 1 ? "self" : kolo::name(algorithm);
  name.copy(plan.algorithm, sizeof plan.algorithm - 1);
  return plan;
}

}  // namespace kolo::collectives
