#include "perf/operation.h"

#include "common/collectives.h"

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
  return rowOf(collective).flow != CollectiveRow::Flow::kPair && rowOf(collective).moves();
}

Placement place(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers) {
  const bool isRoot = ranks.self == operation.root;
  const size_t whole = shape.elements, block = shape.count;
  Placement at{.send = buffers.send(),
               .recv = buffers.recv(),
               .sendElements = whole,
               .recvElements = whole,
               .inPlace = operation.inPlace && canBeInPlace(operation.collective)};
  const CollectiveRow& row = rowOf(operation.collective);
  // In place, the block is the one of this rank in the whole.
  const bool sendsOwnBlock = row.isDivided() && row.sends == CollectiveRow::Blocks::kOne;
  const bool receivesOwnBlock = row.isDivided() && row.receives == CollectiveRow::Blocks::kOne;
  if (sendsOwnBlock) at.sendElements = block;
  if (receivesOwnBlock) at.recvElements = block;
  if (row.flow == CollectiveRow::Flow::kFromRoot && !isRoot) at.sendElements = 0;
  if (row.flow == CollectiveRow::Flow::kToRoot && !isRoot) at.recvElements = 0;
  if (row.isRooted() && operation.collective != koloCollectiveBroadcast) at.inPlace &= isRoot;
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
