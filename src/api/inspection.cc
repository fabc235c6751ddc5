// Choices and their reasons, and what this process can tell about itself.
#include "api/checks.h"
#include "api/guard.h"
#include "base/datatypes.h"
#include "diagnostics/info.h"
#include "topology/topology.h"

namespace kolo::api {
namespace {

Result<planner::Query> makeQuery(koloCollective_t collective, size_t count, koloDataType_t datatype, int registered) {
  if (collective < 0 || collective >= koloNumCollectives) {
    return error(koloInvalidArgument, "collective is {}, expected a koloCollective_t", static_cast<int>(collective));
  }
  KOLO_TRY(checkDatatype(datatype));
  KOLO_TRY(checkCount(count, datatype, 1));
  planner::Query query;
  query.collective = static_cast<device::Collective>(collective);
  query.bytes = collective == koloCollectiveBarrier ? 0 : count * elementBytes(datatype);
  query.elements = collective == koloCollectiveBarrier ? 0 : count;
  query.registered = registered != 0;
  return query;
}

// What the query says of the reduction: which it is, and whether it would be folded at once, in the order of the ranks.
// The communicator may ask for that, a reduction that a user made there, or an average of small integers. Apart from
// that, and from overrides, all reductions are planned alike.
void describeReduction(comm::Communicator* communicator, koloDataType_t datatype, koloRedOp_t op,
                       planner::Query& query) {
  comm::Operation operation{{.collective = query.collective, .datatype = datatype, .op = op}, {}, {}};
  if (communicator != nullptr && op >= koloNumOps) operation.custom = communicator->reductions().find(op);
  query.reduction = collectives::reductionOf(operation);
  query.inOrder = communicator != nullptr && operation.reduces() && communicator->planning().foldsInOrder(operation);
}

using waiting::UserProgress;

// A function that is called while a thread waits on the communicator.
Status setForWaits(koloComm_t comm, void (UserProgress::*set)(koloProgressFunction_t, void*),
                   koloProgressFunction_t function, void* context) {
  KOLO_TRY(refuseInReduction());
  KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
  return inTurn(*communicator, [&]() -> Status {
    (communicator->waiter().userProgress().*set)(function, context);
    return {};
  });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloCommSetAlgorithm(koloComm_t comm, const char* text) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    if (text == nullptr)
      return error(koloInvalidPointer, "text is NULL, expected wishes such as all_reduce:ring, or \"\"");
    return inTurn(*communicator, [&] { return communicator->planning().setWishes(text); });
  });
}

KOLO_API koloResult_t koloCommSetProgress(koloComm_t comm, koloProgressFunction_t function, void* context) {
  return guard(__func__, [&] { return setForWaits(comm, &UserProgress::set, function, context); });
}

KOLO_API koloResult_t koloCommSetWatch(koloComm_t comm, koloProgressFunction_t function, void* context) {
  return guard(__func__, [&] { return setForWaits(comm, &UserProgress::setWatch, function, context); });
}

KOLO_API koloResult_t koloSetMayWait(int mayWait) {
  return guard(__func__, [&]() -> Status {
    if (mayWait != 0 && mayWait != 1) return error(koloInvalidArgument, "mayWait is {}, expected 0 or 1", mayWait);
    caller.mayWait = mayWait == 1;
    return {};
  });
}

KOLO_API koloResult_t koloCommGetPlan(koloComm_t comm, koloCollective_t collective, size_t count,
                                      koloDataType_t datatype, koloRedOp_t op, int registered, koloPlan_t* plan) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("plan", plan));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    KOLO_ASSIGN(planner::Query query, makeQuery(collective, count, datatype, registered));
    describeReduction(communicator.get(), datatype, op, query);
    *plan = communicator->planning().describe(query, communicator->backend().transportNames());
    return {};
  });
}

KOLO_API koloResult_t koloExplain(koloComm_t comm, int nranks, koloCollective_t collective, size_t count,
                                  koloDataType_t datatype, koloRedOp_t op, int registered, char* text, size_t size,
                                  size_t* needed) {
  return guardProcess(__func__, [&]() -> Status {
    KOLO_ASSIGN(planner::Query query, makeQuery(collective, count, datatype, registered));
    if (collective == koloCollectiveSendRecv) {
      return giveText("send_recv: a message has no algorithm; it is inline, eager, or fetched by its size\n", text,
                      size, needed);
    }
    if (comm != nullptr) {
      KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
      describeReduction(communicator.get(), datatype, op, query);
      return giveText(communicator->planning().explain(query), text, size, needed);
    }
    if (nranks < 1) return error(koloInvalidRankCount, "nranks is {}, expected 1 or more", nranks);
    KOLO_ASSIGN(const comm::Options options, comm::Options::make(nullptr, nullptr));
    KOLO_ASSIGN(const std::vector<planner::Wish> wishes, planner::parseWishes(options.algorithm));
    describeReduction(nullptr, datatype, op, query);
    query.inOrder = options.reproducible || collectives::needsWholeFold(op, datatype);
    planner::Machine machine;
    machine.ranks = nranks;
    machine.cores = topology::availableCores();
    return giveText(planner::explain(query, machine, wishes), text, size, needed);
  });
}

KOLO_API koloResult_t koloGetInfo(koloInfoTopic_t topic, char* text, size_t size, size_t* needed) {
  return guardProcess(__func__, [&]() -> Status {
    const auto make = [&]() -> Result<std::string> {
      switch (topic) {
        case koloInfoBuild: return diagnostics::buildInfo();
        case koloInfoTopology: return diagnostics::topologyInfo();
        case koloInfoTransports: return diagnostics::transportsInfo();
        case koloInfoSettings: return diagnostics::settingsInfo();
      }
      return error(koloInvalidArgument, "topic is {}, expected a koloInfoTopic_t", static_cast<int>(topic));
    };
    KOLO_ASSIGN(const std::string made, make());
    return giveText(made, text, size, needed);
  });
}

}  // extern "C"
