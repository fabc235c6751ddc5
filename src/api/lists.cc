// Collectives over lists of items, and along the axes of arrays: arguments checked, then submitted.
#include <algorithm>

#include "api/submit.h"
#include "collectives/list_calls.h"
#include "collectives/list_item.h"

namespace kolo::api {
namespace {

using collectives::AxisCall;
using collectives::ItemsCall;
using collectives::ListCall;
using collectives::ReshardCall;
using device::Collective;

// The buffers of an item have to lie where the communicator's do.
Status checkPlaces(const comm::Communicator& communicator, const collectives::Item& item, std::size_t number) {
  if (!communicator.backend().checksPlaces()) return {};
  for (const auto& [name, side] : {std::pair("sendbuf", &item.send), std::pair("recvbuf", &item.recv)}) {
    const auto [begin, end] = side->place();
    if (begin == end) continue;
    const Status status = checkPlace(communicator, {name, begin, static_cast<std::uint64_t>(end - begin)});
    if (!status.ok()) return error(status.code(), "item {}: {}", number, status.message());
  }
  return {};
}

Status checkFold(const comm::Operation& operation, std::size_t number, comm::Communicator& communicator) {
  const Status status = checkReduction(operation.op, operation.list->items[number].transferType, communicator);
  return status.ok() ? status : error(status.code(), "item {}: {}", number, status.message());
}

// given: what the call says of its list.
template <class Given>
koloResult_t overList(const char* function, const comm::Call& call, const Given& given, koloComm_t comm,
                      koloStream_t stream) noexcept {
  const auto callIn = [&](const comm::Communicator& communicator) {
    return ListCall{.collective = call.collective,
                    .rank = communicator.rank(),
                    .ranks = communicator.ranks(),
                    .root = call.root,
                    .op = call.op};
  };
  const auto check = [&](comm::Communicator& communicator, comm::Operation& o) -> Status {
    if (device::isIn(o.collective, device::kRooted)) KOLO_TRY(checkRoot(o.root, communicator.ranks()));
    KOLO_ASSIGN(std::shared_ptr<const collectives::List> list,
                collectives::findList(communicator.planning().operations(), callIn(communicator), given));
    o.over(std::move(list));
    if (o.reduces() && o.op >= koloNumOps) o.custom = communicator.reductions().find(o.op);
    if (o.reduces() && o.list->items.empty())
      KOLO_TRY(checkReduction(o.op, o.custom != nullptr ? o.custom->datatype : koloInt32, communicator));
    for (std::size_t i = 0; i < o.list->items.size(); ++i) {
      if (o.reduces()) KOLO_TRY(checkFold(o, i, communicator));
      KOLO_TRY(checkPlaces(communicator, o.list->items[i], i));
    }
    return {};
  };
  const auto recalls = [&](comm::Communicator& communicator) {
    comm::Planning& planning = communicator.planning();
    return planning.recallsCalls() && planning.recall(collectives::wordsOf(callIn(communicator), given));
  };
  return guard(function, [&]() -> Status {
    if (stream == nullptr) {
      const Inside<comm::Communicator> communicator =
          findIf(communicators.remember(reinterpret_cast<std::uintptr_t>(comm)), recalls);
      if (communicator && !communicator->requests().hasCollectives()) return communicator->backend().runAgain();
    }
    comm::Operation operation{call, {}, {}, {}};
    return submitTo(operation, comm, stream, nullptr, check);
  });
}

// Elements of the longer of an item's buffers.
std::uint64_t elementsOf(const collectives::Item& item) {
  std::uint64_t sent = 0, received = 0;
  for (std::size_t block = 0; block < item.send.extents.size(); ++block) sent += item.send.elementsOf(block);
  for (std::size_t block = 0; block < item.recv.extents.size(); ++block) received += item.recv.elementsOf(block);
  return std::max(sent, received);
}

}  // namespace

Result<Transfer> transferOf(const koloItem_t& item, std::size_t number, koloCollective_t collective, koloComm_t comm) {
  const auto communicator = find(comm);
  if (!communicator.ok())
    return error(communicator.status().code(), "items[{}].comm: {}", number, communicator.status().message());
  const ListCall call{.collective = static_cast<Collective>(collective),
                      .rank = communicator.value()->rank(),
                      .ranks = communicator.value()->ranks(),
                      .root = 0};
  KOLO_ASSIGN(const collectives::Item read, collectives::readItem(call, item, number));
  return Transfer{read.transferType, elementsOf(read) * elementBytes(read.transferType)};
}

}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloAllReduceList(const koloItem_t* items, size_t count, koloRedOp_t op, koloComm_t comm,
                                        koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kAllReduce, .op = op}, ItemsCall{items, count}, comm, stream);
}

KOLO_API koloResult_t koloReduceList(const koloItem_t* items, size_t count, koloRedOp_t op, int root, koloComm_t comm,
                                     koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kReduce, .op = op, .root = root}, ItemsCall{items, count}, comm,
                  stream);
}

KOLO_API koloResult_t koloBroadcastList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                        koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kBroadcast, .root = root}, ItemsCall{items, count}, comm,
                  stream);
}

KOLO_API koloResult_t koloAllGatherList(const koloItem_t* items, size_t count, koloComm_t comm, koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kAllGather}, ItemsCall{items, count}, comm, stream);
}

KOLO_API koloResult_t koloReduceScatterList(const koloItem_t* items, size_t count, koloRedOp_t op, koloComm_t comm,
                                            koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kReduceScatter, .op = op}, ItemsCall{items, count}, comm,
                  stream);
}

KOLO_API koloResult_t koloGatherList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                     koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kGather, .root = root}, ItemsCall{items, count}, comm, stream);
}

KOLO_API koloResult_t koloScatterList(const koloItem_t* items, size_t count, int root, koloComm_t comm,
                                      koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kScatter, .root = root}, ItemsCall{items, count}, comm, stream);
}

KOLO_API koloResult_t koloAllToAllList(const koloItem_t* items, size_t count, koloComm_t comm, koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kAllToAll}, ItemsCall{items, count}, comm, stream);
}

KOLO_API koloResult_t koloAllToAllAxis(const koloItem_t* item, int splitAxis, int concatAxis, const size_t* splits,
                                       const size_t* concats, koloComm_t comm, koloStream_t stream) {
  return overList(__func__, {.collective = Collective::kAllToAll},
                  AxisCall{item, splitAxis, concatAxis, splits, concats}, comm, stream);
}

KOLO_API koloResult_t koloReshard(const koloItem_t* item, const koloArray_t* whole, int from, int to,
                                  const size_t* fromParts, const size_t* toParts, koloComm_t comm,
                                  koloStream_t stream) {
  return overList(__func__, {}, ReshardCall{item, whole, from, to, fromParts, toParts}, comm, stream);
}

}  // extern "C"
