#include "mpi/order.h"

namespace kolo::mpi {

// The displacements of MPI_Allgatherv may differ between ranks. Kolo wants the same on all, so all give none.
koloResult_t Order::run(const Call& call) {
  Reduction its{koloUint8, koloSum};
  if (op) {
    const koloResult_t result = session.findReduction(*op, datatype, its);
    if (result != koloSuccess) return result;
  }
  const koloComm_t kolo = session.kolo();
  const auto countsOf = [](const std::optional<Region>& region) { return region ? region->counts() : nullptr; };
  const auto displsOf = [](const std::optional<Region>& region) { return region ? region->displs() : nullptr; };
  switch (name) {
    case Hook::kBcast: return call(koloBroadcast, koloIbroadcast, input, output, count, its.datatype, root, kolo);
    case Hook::kAllreduce: return call(koloAllReduce, koloIallReduce, input, output, count, its.datatype, its.op, kolo);
    case Hook::kReduce: return call(koloReduce, koloIreduce, input, output, count, its.datatype, its.op, root, kolo);
    case Hook::kReduce_scatter_block:
      return call(koloReduceScatter, koloIreduceScatter, input, output, count, its.datatype, its.op, kolo);
    case Hook::kReduce_scatter:
      return call(koloReduceScatterv, koloIreduceScatterv, input, output, counts.data(), nullptr, its.datatype, its.op,
                  kolo);
    case Hook::kScan:
    case Hook::kExscan: return scan->run(call);
    case Hook::kAllgather: return call(koloAllGather, koloIallGather, input, output, count, its.datatype, kolo);
    case Hook::kAllgatherv:
      return call(koloAllGatherv, koloIallGatherv, input, output, countsOf(to), nullptr, its.datatype, kolo);
    case Hook::kGather: return call(koloGather, koloIgather, input, output, count, its.datatype, root, kolo);
    case Hook::kGatherv:
      return call(koloGatherv, koloIgatherv, input, count, output, countsOf(to), displsOf(to), its.datatype, root,
                  kolo);
    case Hook::kScatter: return call(koloScatter, koloIscatter, input, output, count, its.datatype, root, kolo);
    case Hook::kScatterv:
      return call(koloScatterv, koloIscatterv, input, countsOf(from), displsOf(from), output, count, its.datatype, root,
                  kolo);
    case Hook::kAlltoall: return call(koloAllToAll, koloIallToAll, input, output, count, its.datatype, kolo);
    case Hook::kAlltoallv:
    case Hook::kAlltoallw:
      return call(koloAllToAllv, koloIallToAllv, input, countsOf(from), displsOf(from), output, countsOf(to),
                  displsOf(to), its.datatype, kolo);
    default: return call(koloBarrier, koloIbarrier, kolo);
  }
}

void Order::store() {
  if (!differing.empty()) throw MpiError{MPI_ERR_TRUNCATE, kDiffer};
  if (scan) scan->store();
  if (to) to->store();
}

}  // namespace kolo::mpi
