// The collectives: arguments checked, then submitted.
#include <algorithm>
#include <numeric>

#include "api/checks.h"
#include "api/guard.h"

namespace kolo::api {
namespace {

using comm::Operation;
using comm::VectorCounts;
using device::Collective;

// What is common to the collectives: finds the handles, lets `check` complete and examine the operation, submits it.
template <class Check>
koloResult_t collective(const char* function, Operation&& operation, koloComm_t comm, koloStream_t stream,
                        Check&& check) noexcept {
  return guard(function, [&]() -> Status {
    const Status status = [&]() -> Status {
      KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
      KOLO_ASSIGN(const Pin<comm::Stream> found, find(stream));
      KOLO_TRY(refuseInReduction());
      if (communicator->isFinalized()) {
        return error(koloInvalidUsage, "the communicator was finalised; expected no operations after koloCommFinalize");
      }
      KOLO_TRY(checkDatatype(operation.datatype));
      if (operation.reduces()) KOLO_TRY(checkReduction(operation.op, operation.datatype, *communicator));
      if (operation.reduces() && operation.op >= koloNumOps) operation.custom = communicator->reductions().find(operation.op);
      KOLO_TRY(check(*communicator, operation));
      return comm::submit(communicator, found, operation);
    }();
    if (!status.ok()) comm::groupRefuse(status);
    return status;
  });
}

std::uint64_t ranksOf(const comm::Communicator& communicator) { return static_cast<std::uint64_t>(communicator.ranks()); }

const unsigned char* at(const void* buffer, std::uint64_t bytes) { return static_cast<const unsigned char*>(buffer) + bytes; }

// Copies an array of one count for each rank; displacements too, or blocks in a row. extent: elements up to the last block's end.
Status takeCounts(const char* name, const size_t* counts, const size_t* displs, const comm::Communicator& communicator,
                  koloDataType_t datatype, std::vector<std::uint64_t>& outCounts, std::vector<std::uint64_t>& outDispls,
                  std::uint64_t& extent) {
  if (counts == nullptr) {
    return error(koloInvalidPointer, "{} is NULL, expected an array of {} counts", name, communicator.ranks());
  }
  extent = 0;
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < ranksOf(communicator); ++i) {
    const std::uint64_t begin = displs != nullptr ? displs[i] : next;
    KOLO_TRY(checkCount(counts[i], datatype, 1));
    KOLO_TRY(checkCount(begin, datatype, 1));
    KOLO_TRY(checkCount(begin + counts[i], datatype, 1));
    outCounts.push_back(counts[i]);
    outDispls.push_back(begin);
    next = begin + counts[i];
    if (counts[i] != 0) extent = std::max(extent, next);
  }
  return {};
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloAllReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                    koloRedOp_t op, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllReduce;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.op = op;
  return collective(__func__, std::move(operation), comm, stream, [](const auto&, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, 1));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.send == o.recv, "sendbuf == recvbuf");
  });
}

KOLO_API koloResult_t koloReduce(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                 koloRedOp_t op, int root, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kReduce;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.op = op;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, 1));
    KOLO_TRY(checkRoot(o.root, c.ranks()));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(send));
    if (c.rank() != o.root) return {};
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.send == o.recv, "sendbuf == recvbuf");
  });
}

KOLO_API koloResult_t koloBroadcast(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, int root,
                                    koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kBroadcast;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, 1));
    KOLO_TRY(checkRoot(o.root, c.ranks()));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(recv));
    if (c.rank() != o.root) return {};
    KOLO_TRY(checkPointer(send));
    return checkOverlap(send, recv, o.send == o.recv, "sendbuf == recvbuf");
  });
}

KOLO_API koloResult_t koloAllGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype,
                                    koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = sendcount;
  operation.datatype = datatype;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, ranksOf(c)));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes * ranksOf(c)};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.send == at(o.recv, bytes * static_cast<std::uint64_t>(c.rank())),
                        "sendbuf == recvbuf + rank * sendcount");
  });
}

KOLO_API koloResult_t koloReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                        koloRedOp_t op, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kReduceScatter;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = recvcount;
  operation.datatype = datatype;
  operation.op = op;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, ranksOf(c)));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes * ranksOf(c)}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.recv == at(o.send, bytes * static_cast<std::uint64_t>(c.rank())),
                        "recvbuf == sendbuf + rank * recvcount");
  });
}

KOLO_API koloResult_t koloAllToAll(const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype,
                                   koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllToAll;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, ranksOf(c)));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype) * ranksOf(c);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.send == o.recv, "sendbuf == recvbuf");
  });
}

KOLO_API koloResult_t koloGather(const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype, int root,
                                 koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kGather;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = sendcount;
  operation.datatype = datatype;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, ranksOf(c)));
    KOLO_TRY(checkRoot(o.root, c.ranks()));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes}, recv{"recvbuf", o.recv, bytes * ranksOf(c)};
    KOLO_TRY(checkPointer(send));
    if (c.rank() != o.root) return {};
    KOLO_TRY(checkPointer(recv));
    return checkOverlap(send, recv, o.send == at(o.recv, bytes * static_cast<std::uint64_t>(o.root)),
                        "sendbuf == recvbuf + root * sendcount");
  });
}

KOLO_API koloResult_t koloScatter(const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype,
                                  int root, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kScatter;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = recvcount;
  operation.datatype = datatype;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, ranksOf(c)));
    KOLO_TRY(checkRoot(o.root, c.ranks()));
    const std::uint64_t bytes = o.count * koloDataTypeSize(o.datatype);
    const Extent send{"sendbuf", o.send, bytes * ranksOf(c)}, recv{"recvbuf", o.recv, bytes};
    KOLO_TRY(checkPointer(recv));
    if (c.rank() != o.root) return {};
    KOLO_TRY(checkPointer(send));
    return checkOverlap(send, recv, o.recv == at(o.send, bytes * static_cast<std::uint64_t>(o.root)),
                        "recvbuf == sendbuf + root * recvcount");
  });
}

KOLO_API koloResult_t koloBarrier(koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kBarrier;
  return collective(__func__, std::move(operation), comm, stream, [](const auto&, const Operation&) { return Status(); });
}

KOLO_API koloResult_t koloAllGatherv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                     koloDataType_t datatype, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllGather;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.datatype = datatype;
  return collective(__func__, std::move(operation), comm, stream, [&](const auto& c, Operation& o) -> Status {
    auto taken = std::make_shared<VectorCounts>();
    std::uint64_t extent = 0;
    KOLO_TRY(takeCounts("counts", counts, displs, c, datatype, taken->recvCounts, taken->recvDispls, extent));
    const auto mine = static_cast<std::size_t>(c.rank());
    o.count = taken->recvCounts[mine];
    const std::uint64_t size = koloDataTypeSize(datatype);
    const Extent send{"sendbuf", sendbuf, o.count * size}, recv{"recvbuf", recvbuf, extent * size};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    KOLO_TRY(checkOverlap(send, recv, sendbuf == at(recvbuf, taken->recvDispls[mine] * size),
                          "sendbuf == recvbuf + displs[rank]"));
    o.counts = std::move(taken);
    return {};
  });
}

KOLO_API koloResult_t koloReduceScatterv(const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                                         koloDataType_t datatype, koloRedOp_t op, koloComm_t comm,
                                         koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kReduceScatter;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.datatype = datatype;
  operation.op = op;
  return collective(__func__, std::move(operation), comm, stream, [&](const auto& c, Operation& o) -> Status {
    auto taken = std::make_shared<VectorCounts>();
    std::uint64_t extent = 0;
    KOLO_TRY(takeCounts("counts", counts, displs, c, datatype, taken->sendCounts, taken->sendDispls, extent));
    const auto mine = static_cast<std::size_t>(c.rank());
    o.count = taken->sendCounts[mine];
    const std::uint64_t size = koloDataTypeSize(datatype);
    const Extent send{"sendbuf", sendbuf, extent * size}, recv{"recvbuf", recvbuf, o.count * size};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    KOLO_TRY(checkOverlap(send, recv, recvbuf == at(sendbuf, taken->sendDispls[mine] * size),
                          "recvbuf == sendbuf + displs[rank]"));
    o.counts = std::move(taken);
    return {};
  });
}

KOLO_API koloResult_t koloAllToAllv(const void* sendbuf, const size_t* sendcounts, const size_t* senddispls,
                                    void* recvbuf, const size_t* recvcounts, const size_t* recvdispls,
                                    koloDataType_t datatype, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kAllToAll;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.datatype = datatype;
  return collective(__func__, std::move(operation), comm, stream, [&](const auto& c, Operation& o) -> Status {
    auto taken = std::make_shared<VectorCounts>();
    std::uint64_t sendExtent = 0, recvExtent = 0;
    KOLO_TRY(takeCounts("sendcounts", sendcounts, senddispls, c, datatype, taken->sendCounts, taken->sendDispls, sendExtent));
    KOLO_TRY(takeCounts("recvcounts", recvcounts, recvdispls, c, datatype, taken->recvCounts, taken->recvDispls, recvExtent));
    const auto mine = static_cast<std::size_t>(c.rank());
    if (taken->sendCounts[mine] != taken->recvCounts[mine]) {
      return error(koloInvalidCount, "sendcounts[{0}] is {1} and recvcounts[{0}] is {2}: expected this rank's own block to be "
                   "equally long in both", mine, taken->sendCounts[mine], taken->recvCounts[mine]);
    }
    const std::uint64_t size = koloDataTypeSize(datatype);
    const Extent send{"sendbuf", sendbuf, sendExtent * size}, recv{"recvbuf", recvbuf, recvExtent * size};
    KOLO_TRY(checkPointer(send));
    KOLO_TRY(checkPointer(recv));
    KOLO_TRY(checkOverlap(send, recv, false, ""));
    o.counts = std::move(taken);
    return {};
  });
}

KOLO_API koloResult_t koloGatherv(const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts,
                                  const size_t* displs, koloDataType_t datatype, int root, koloComm_t comm,
                                  koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kGather;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = sendcount;
  operation.datatype = datatype;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [&](const auto& c, Operation& o) -> Status {
    KOLO_TRY(checkCount(sendcount, datatype, 1));
    KOLO_TRY(checkRoot(root, c.ranks()));
    const std::uint64_t size = koloDataTypeSize(datatype);
    const Extent send{"sendbuf", sendbuf, sendcount * size};
    KOLO_TRY(checkPointer(send));
    auto taken = std::make_shared<VectorCounts>();
    if (c.rank() == root) {
      std::uint64_t extent = 0;
      KOLO_TRY(takeCounts("recvcounts", recvcounts, displs, c, datatype, taken->recvCounts, taken->recvDispls, extent));
      const auto mine = static_cast<std::size_t>(root);
      if (taken->recvCounts[mine] != sendcount) {
        return error(koloInvalidCount, "recvcounts[{}] is {} and sendcount is {}: expected the root's own block to be equally "
                     "long in both", mine, taken->recvCounts[mine], sendcount);
      }
      const Extent recv{"recvbuf", recvbuf, extent * size};
      KOLO_TRY(checkPointer(recv));
      KOLO_TRY(checkOverlap(send, recv, sendbuf == at(recvbuf, taken->recvDispls[mine] * size),
                            "sendbuf == recvbuf + displs[root]"));
    }
    o.counts = std::move(taken);
    return {};
  });
}

KOLO_API koloResult_t koloScatterv(const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf,
                                   size_t recvcount, koloDataType_t datatype, int root, koloComm_t comm,
                                   koloStream_t stream) {
  Operation operation;
  operation.collective = Collective::kScatter;
  operation.send = sendbuf;
  operation.recv = recvbuf;
  operation.count = recvcount;
  operation.datatype = datatype;
  operation.root = root;
  return collective(__func__, std::move(operation), comm, stream, [&](const auto& c, Operation& o) -> Status {
    KOLO_TRY(checkCount(recvcount, datatype, 1));
    KOLO_TRY(checkRoot(root, c.ranks()));
    const std::uint64_t size = koloDataTypeSize(datatype);
    const Extent recv{"recvbuf", recvbuf, recvcount * size};
    KOLO_TRY(checkPointer(recv));
    auto taken = std::make_shared<VectorCounts>();
    if (c.rank() == root) {
      std::uint64_t extent = 0;
      KOLO_TRY(takeCounts("sendcounts", sendcounts, displs, c, datatype, taken->sendCounts, taken->sendDispls, extent));
      const auto mine = static_cast<std::size_t>(root);
      if (taken->sendCounts[mine] != recvcount) {
        return error(koloInvalidCount, "sendcounts[{}] is {} and recvcount is {}: expected the root's own block to be equally "
                     "long in both", mine, taken->sendCounts[mine], recvcount);
      }
      const Extent send{"sendbuf", sendbuf, extent * size};
      KOLO_TRY(checkPointer(send));
      KOLO_TRY(checkOverlap(send, recv, recvbuf == at(sendbuf, taken->sendDispls[mine] * size),
                            "recvbuf == sendbuf + displs[root]"));
    }
    o.counts = std::move(taken);
    return {};
  });
}

static koloResult_t message(const char* function, Operation&& operation, koloComm_t comm, koloStream_t stream) {
  operation.collective = Collective::kSendRecv;
  return collective(function, std::move(operation), comm, stream, [](const auto& c, const Operation& o) -> Status {
    KOLO_TRY(checkCount(o.count, o.datatype, 1));
    const bool anyAllowed = !o.isSend && !o.strict;
    KOLO_TRY(checkPeer(o.peer, c.ranks(), anyAllowed));
    KOLO_TRY(checkTag(o.tag, anyAllowed));
    const void* const buffer = o.isSend ? o.send : o.recv;
    return checkPointer({o.isSend ? "sendbuf" : "recvbuf", buffer, o.count * koloDataTypeSize(o.datatype)});
  });
}

KOLO_API koloResult_t koloSendTag(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.isSend = true;
  operation.send = sendbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.peer = peer;
  operation.tag = tag;
  return message(__func__, std::move(operation), comm, stream);
}

KOLO_API koloResult_t koloSend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream) {
  return koloSendTag(sendbuf, count, datatype, peer, 0, comm, stream);
}

KOLO_API koloResult_t koloRecvTag(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloRecvStatus_t* status, koloComm_t comm, koloStream_t stream) {
  Operation operation;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.peer = peer;
  operation.tag = tag;
  operation.status = status;
  return message(__func__, std::move(operation), comm, stream);
}

KOLO_API koloResult_t koloRecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream) {
  Operation operation;
  operation.recv = recvbuf;
  operation.count = count;
  operation.datatype = datatype;
  operation.peer = peer;
  operation.strict = true;
  return message(__func__, std::move(operation), comm, stream);
}

}  // extern "C"
