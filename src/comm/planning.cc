#include "comm/planning.h"

#include "collectives/copy_policy.h"

namespace kolo::comm {

koloPlan_t Planning::describe(const planner::Query& query, const std::string& transports) const {
  koloPlan_t plan{};
  if (query.collective == device::Collective::kSendRecv) {
    plan.channels = 1;
    plan.zeroCopy = query.registered && query.bytes > collectives::kEagerWindowBytes ? 1 : 0;
    std::string_view("direct").copy(plan.algorithm, sizeof plan.algorithm - 1);
  } else {
    plan = choices_.describe(query);
  }
  plan.chunkBytes = machine_.slotBytes;
  transports.copy(plan.transport, sizeof plan.transport - 1);
  return plan;
}

}  // namespace kolo::comm
