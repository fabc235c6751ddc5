// Choices and their reasons, and what this process can tell about itself.
#include "api/checks.h"
#include "api/guard.h"
#include "base/datatypes.h"
#include "collectives/choices.h"
#include "collectives/list.h"
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
void describeReduction(comm::Communicator* communicator, const collectives::Choices& choices, koloDataType_t datatype,
                       koloRedOp_t op, planner::Query& query) {
  comm::Operation operation{{.collective = query.collective, .datatype = datatype, .op = op}, {}, {}};
  if (communicator != nullptr && op >= koloNumOps) operation.custom = communicator->reductions().find(op);
  query.reduction = collectives::reductionOf(operation);
  query.inOrder = operation.reduces() && choices.inOrder(operation);
}

// The operation that a call over the list would be.
Result<comm::Operation> makeOperation(comm::Communicator* communicator, const collectives::ListCall& call,
                                      const koloItem_t* items, size_t count, koloRedOp_t op) {
  comm::Operation operation{{.op = op}, {}, {}};
  if (device::isIn(call.collective, device::kRooted)) KOLO_TRY(checkRoot(call.root, call.ranks));
  KOLO_ASSIGN(std::shared_ptr<const collectives::List> list,
              collectives::makeList(call, collectives::ItemsCall{items, count}));
  operation.over(std::move(list));
  if (communicator != nullptr && op >= koloNumOps) operation.custom = communicator->reductions().find(op);
  return operation;
}

// Whether lists may be read and written where they lie between windows, as far as the communicator decides it.
std::string explainSharing(comm::Communicator& communicator, std::uint64_t bytes) {
  const collectives::CopyPolicy& copies = communicator.planning().site().copies;
  if (communicator.ranks() == 1 || copies.sharesLists(bytes)) return {};
  return copies.sharesLists(UINT64_MAX)
             ? "a list as short as this one goes through staging between windows, too, unless a zero-copy algorithm "
               "was asked for\n"
             : "lists go through staging here, between windows, too\n";
}

// The choices of a communicator, or those for so many ranks on this machine: use(communicator, choices), where the
// communicator may be null.
template <class Use>
Status withChoices(koloComm_t comm, int nranks, const Use& use) {
  if (comm != nullptr) {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    return use(communicator.get(), communicator->planning().choices());
  }
  KOLO_TRY(checkRanks(nranks));
  KOLO_ASSIGN(const comm::Options options, comm::Options::make(nullptr, nullptr));
  planner::Machine machine;
  machine.ranks = nranks;
  machine.cores = topology::availableCores();
  collectives::Choices choices(machine, options.reproducible);
  KOLO_TRY(choices.set(options.algorithm));
  return use(nullptr, choices);
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
    describeReduction(communicator.get(), communicator->planning().choices(), datatype, op, query);
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
    return withChoices(comm, nranks, [&](comm::Communicator* communicator, const collectives::Choices& choices) {
      describeReduction(communicator, choices, datatype, op, query);
      return giveText(choices.explain(query), text, size, needed);
    });
  });
}

KOLO_API koloResult_t koloExplainList(koloComm_t comm, int nranks, koloCollective_t collective, const koloItem_t* items,
                                      size_t count, koloRedOp_t op, int root, int registered, char* text, size_t size,
                                      size_t* needed) {
  return guardProcess(__func__, [&]() -> Status {
    if (collective < 0 || collective >= koloCollectiveBarrier) {
      return error(koloInvalidArgument,
                   "collective is {}, expected one that takes a list: from koloCollectiveAllReduce to "
                   "koloCollectiveScatter",
                   static_cast<int>(collective));
    }
    return withChoices(
        comm, nranks, [&](comm::Communicator* communicator, const collectives::Choices& choices) -> Status {
          const collectives::ListCall call{.collective = static_cast<device::Collective>(collective),
                                           .rank = communicator != nullptr ? communicator->rank() : 0,
                                           .ranks = communicator != nullptr ? communicator->ranks() : nranks,
                                           .root = root};
          KOLO_ASSIGN(const comm::Operation operation, makeOperation(communicator, call, items, count, op));
          planner::Query query = choices.queryFor(operation);
          query.bytes = query.elements = collectives::plannedBytes(operation);
          query.registered = registered != 0;
          std::string explained = choices.explain(query);
          if (communicator != nullptr) explained += explainSharing(*communicator, query.bytes);
          return giveText(explained, text, size, needed);
        });
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
