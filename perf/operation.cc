#include "perf/operation.h"

namespace kolo::perf {
namespace {

koloResult_t sendRecv(const Operation& operation, size_t count, const Placement& at, Ranks ranks, koloComm_t comm,
                      koloStream_t stream) {
  const int next = (ranks.self + 1) % ranks.count;
  const int previous = (ranks.self + ranks.count - 1) % ranks.count;
  if (const koloResult_t result = koloGroupStart(); result != koloSuccess) return result;
  const koloResult_t sent = koloSend(at.send, count, operation.datatype, next, comm, stream);
  const koloResult_t received = koloRecv(at.recv, count, operation.datatype, previous, comm, stream);
  const koloResult_t ended = koloGroupEnd();  // also when a call was refused: the group must be closed
  if (sent != koloSuccess) return sent;
  return received != koloSuccess ? received : ended;
}

}  // namespace

bool canBeInPlace(koloCollective_t collective) {
  return collective != koloCollectiveSendRecv && collective != koloCollectiveBarrier;
}

Placement place(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers) {
  const bool isRoot = ranks.self == operation.root;
  const size_t whole = shape.elements, block = shape.count;
  Placement at{.send = buffers.send(),
               .recv = buffers.recv(),
               .sendElements = whole,
               .recvElements = whole,
               .inPlace = operation.inPlace && canBeInPlace(operation.collective)};
  bool sendsOwnBlock = false, receivesOwnBlock = false;  // in place, the block is the one of this rank in the whole
  switch (operation.collective) {
    case koloCollectiveReduce:
      at.recvElements = isRoot ? whole : 0;
      at.inPlace &= isRoot;
      break;
    case koloCollectiveBroadcast: at.sendElements = isRoot ? whole : 0; break;
    case koloCollectiveGather:
      at.recvElements = isRoot ? whole : 0;
      at.inPlace &= isRoot;
      sendsOwnBlock = true;
      break;
    case koloCollectiveScatter:
      at.sendElements = isRoot ? whole : 0;
      at.inPlace &= isRoot;
      receivesOwnBlock = true;
      break;
    case koloCollectiveAllGather: sendsOwnBlock = true; break;
    case koloCollectiveReduceScatter: receivesOwnBlock = true; break;
    default: break;
  }
  if (sendsOwnBlock) at.sendElements = block;
  if (receivesOwnBlock) at.recvElements = block;
  if (at.inPlace) {
    const size_t own = static_cast<size_t>(ranks.self) * block * koloDataTypeSize(operation.datatype);
    at.send = buffers.recv() + (sendsOwnBlock ? own : 0);
    at.recv = buffers.recv() + (receivesOwnBlock ? own : 0);
  }
  return at;
}

koloResult_t runOnce(const Operation& operation, const Shape& shape, const Placement& at, Ranks ranks, koloComm_t comm,
                     koloStream_t stream) {
  const size_t count = shape.count;
  const koloDataType_t type = operation.datatype;
  switch (operation.collective) {
    case koloCollectiveAllReduce: return koloAllReduce(at.send, at.recv, count, type, operation.op, comm, stream);
    case koloCollectiveReduce:
      return koloReduce(at.send, at.recv, count, type, operation.op, operation.root, comm, stream);
    case koloCollectiveBroadcast: return koloBroadcast(at.send, at.recv, count, type, operation.root, comm, stream);
    case koloCollectiveAllGather: return koloAllGather(at.send, at.recv, count, type, comm, stream);
    case koloCollectiveReduceScatter:
      return koloReduceScatter(at.send, at.recv, count, type, operation.op, comm, stream);
    case koloCollectiveAllToAll: return koloAllToAll(at.send, at.recv, count, type, comm, stream);
    case koloCollectiveGather: return koloGather(at.send, at.recv, count, type, operation.root, comm, stream);
    case koloCollectiveScatter: return koloScatter(at.send, at.recv, count, type, operation.root, comm, stream);
    case koloCollectiveBarrier: return koloBarrier(comm, stream);
    case koloCollectiveSendRecv: return sendRecv(operation, count, at, ranks, comm, stream);
    case koloNumCollectives: break;
  }
  return koloInvalidArgument;
}

}  // namespace kolo::perf
