// The collectives: arguments checked, then submitted.
#include <algorithm>
#include <memory>

#include "api/submit.h"

namespace kolo::api {
namespace {

using comm::Call;
using comm::CountArrays;
using comm::Operation;
using comm::VectorCounts;
using device::Collective;

// One that the call, and the counts of a v-variant, describe in full.
template <Collective collective, class Check, class... Counts>
koloResult_t run(const char* function, Call& call, koloComm_t comm, const Where& where, Check&& check,
                 const Counts&... counts) noexcept {
  call.collective = collective;
  const auto body = [&]() -> Status {
    if (where.isHere()) {
      const Inside<comm::Communicator> communicator =
          findRepeated(call, communicators.remember(reinterpret_cast<std::uintptr_t>(comm)), counts...);
      if (communicator && !communicator->requests().hasCollectives()) {
        return communicator->backend().runAgain();
      }
    }
    Operation operation{call, {}, {}};
    return submitCollective(operation, comm, where, check, counts...);
  };
  return guard<device::isIn(collective, device::kReducing)>(function, body);
}

using Blocks = CollectiveRow::Blocks;
using Flow = CollectiveRow::Flow;

std::uint64_t ranksOf(const comm::Communicator& communicator) {
  return static_cast<std::uint64_t>(communicator.ranks());
}

const unsigned char* at(const void* buffer, std::uint64_t bytes) {
  return static_cast<const unsigned char*>(buffer) + bytes;
}

Status checkPlaces(comm::Communicator& communicator, const Operation& o, const Extent& send, const Extent& recv) {
  if (!communicator.backend().checksPlaces()) return {};
  const bool isRoot = communicator.rank() == o.root;
  const bool sends = isRoot || !device::isIn(o.collective, device::kFromRoot);
  const bool receives = isRoot || !device::isIn(o.collective, device::kToRoot);
  if (sends) KOLO_TRY(checkPlace(communicator, send));
  return receives ? checkPlace(communicator, recv) : Status();
}

Status checkBuffers(const Extent& send, const Extent& recv, bool inPlace, const char* rule) {
  KOLO_TRY(checkPointer(send));
  KOLO_TRY(checkPointer(recv));
  return checkOverlap(send, recv, inPlace, rule);
}

// The arguments of a collective whose blocks are equally long. The collective is a parameter of the template so that
// nothing of its row is left to decide in a call.
template <Collective which>
Status checkBlocks(comm::Communicator& communicator, const Operation& o) {
  constexpr const CollectiveRow& row = device::rowOf(which);
  KOLO_TRY(checkCount(o.count, o.datatype, row.isDivided() ? ranksOf(communicator) : 1));
  const std::uint64_t block = o.count * elementBytes(o.datatype);
  const Extent send{"sendbuf", o.send, row.sends == Blocks::kEach ? block * ranksOf(communicator) : block};
  const Extent recv{"recvbuf", o.recv, row.receives == Blocks::kEach ? block * ranksOf(communicator) : block};
  KOLO_TRY(checkPlaces(communicator, o, send, recv));
  if constexpr (row.isRooted()) {
    KOLO_TRY(checkRoot(o.root, communicator.ranks()));
    KOLO_TRY(checkPointer(row.flow == Flow::kToRoot ? send : recv));
    if (communicator.rank() != o.root) return {};
  }
  const auto own = static_cast<std::uint64_t>(row.isRooted() ? o.root : communicator.rank()) * block;
  const bool inPlace = row.sends == row.receives       ? o.send == o.recv
                       : row.receives == Blocks::kEach ? o.send == at(o.recv, own)
                                                       : o.recv == at(o.send, own);
  return checkBuffers(send, recv, inPlace, row.inPlace(false));
}

template <Collective which>
koloResult_t collective(const char* function, Call call, koloComm_t comm, const Where& where) noexcept {
  return run<which>(function, call, comm, where, checkBlocks<which>);
}

// The arrays of one buffer of a v-variant, as the caller gave them; displs may be NULL.
struct Given {
  const char* name = nullptr;
  const size_t* counts = nullptr;
  const size_t* displs = nullptr;
};

// Copies an array of one count for each rank; displacements too, or blocks in a row. extent: elements up to the last
// block's end.
Status takeCounts(const Given& given, const comm::Communicator& communicator, koloDataType_t datatype,
                  std::vector<std::uint64_t>& outCounts, std::vector<std::uint64_t>& outDispls, std::uint64_t& extent) {
  const auto& [name, counts, displs] = given;
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

// The v-variant of a collective. sends, recvs: the arrays of a buffer that holds the blocks of all ranks, else nothing.
// With a root only the root's arrays count, and operation.count is the one block's length; without, it is found in
// them.
template <Collective which>
koloResult_t vectorCollective(const char* function, Call call, const Given& sends, const Given& recvs, koloComm_t comm,
                              const Where& where) noexcept {
  constexpr const CollectiveRow& row = device::rowOf(which);
  constexpr bool sendsEach = row.sends == Blocks::kEach, receivesEach = row.receives == Blocks::kEach;
  const auto check = [&](comm::Communicator& communicator, Operation& o) -> Status {
    const std::uint64_t size = elementBytes(o.datatype);
    auto taken = std::make_shared<VectorCounts>();
    auto& [sendCounts, sendDispls, recvCounts, recvDispls] = *taken;
    Extent send{"sendbuf", o.send, o.count * size}, recv{"recvbuf", o.recv, o.count * size};
    if constexpr (row.isRooted()) {
      const Extent& one = sendsEach ? recv : send;
      KOLO_TRY(checkCount(o.count, o.datatype, 1));
      KOLO_TRY(checkRoot(o.root, communicator.ranks()));
      KOLO_TRY(checkPointer(one));
      KOLO_TRY(checkPlace(communicator, one));
      if (communicator.rank() != o.root) {
        o.counts = std::move(taken);
        return {};
      }
    }
    std::uint64_t sendExtent = 0, recvExtent = 0;
    if (sendsEach) KOLO_TRY(takeCounts(sends, communicator, o.datatype, sendCounts, sendDispls, sendExtent));
    if (receivesEach) KOLO_TRY(takeCounts(recvs, communicator, o.datatype, recvCounts, recvDispls, recvExtent));
    const auto mine = static_cast<std::size_t>(communicator.rank());
    const std::uint64_t own = (sendsEach ? sendCounts : recvCounts)[mine];
    if (row.isRooted() && own != o.count) {
      return error(koloInvalidCount,
                   "{}[{}] is {} and {} is {}: expected the root's own block to be equally long in both",
                   (sendsEach ? sends : recvs).name, mine, own, sendsEach ? "recvcount" : "sendcount", o.count);
    }
    if (sendsEach && receivesEach && own != recvCounts[mine]) {
      return error(koloInvalidCount,
                   "sendcounts[{0}] is {1} and recvcounts[{0}] is {2}: expected this rank's own block to "
                   "be equally long in both",
                   mine, own, recvCounts[mine]);
    }
    send.bytes = (sendsEach ? sendExtent : own) * size;
    recv.bytes = (receivesEach ? recvExtent : own) * size;
    KOLO_TRY(checkPlace(communicator, send));
    KOLO_TRY(checkPlace(communicator, recv));
    o.counts = taken;
    if (sendsEach && receivesEach) return checkBuffers(send, recv, false, "");
    const bool inPlace = sendsEach ? recv.data == at(send.data, sendDispls[mine] * size)
                                   : send.data == at(recv.data, recvDispls[mine] * size);
    return checkBuffers(send, recv, inPlace, row.inPlace(true));
  };
  call.vector = true;
  return run<which>(function, call, comm, where, check,
                    CountArrays{sends.counts, sends.displs, recvs.counts, recvs.displs});
}

koloResult_t barrier(const char* function, koloComm_t comm, const Where& where) noexcept {
  Call call;
  return run<Collective::kBarrier>(function, call, comm, where, [](const auto&, const Operation&) { return Status(); });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_TWO_FORMS(koloAllReduce, koloIallReduce,
               (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, koloRedOp_t op),
               collective<Collective::kAllReduce>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .op = op}, comm,
                   where))

KOLO_TWO_FORMS(koloReduce, koloIreduce,
               (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, koloRedOp_t op, int root),
               collective<Collective::kReduce>(
                   __func__,
                   {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .op = op, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloBroadcast, koloIbroadcast,
               (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, int root),
               collective<Collective::kBroadcast>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloAllGather, koloIallGather,
               (const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype),
               collective<Collective::kAllGather>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype}, comm, where))

KOLO_TWO_FORMS(koloReduceScatter, koloIreduceScatter,
               (const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype, koloRedOp_t op),
               collective<Collective::kReduceScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .op = op},
                   comm, where))

KOLO_TWO_FORMS(koloAllToAll, koloIallToAll, (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype),
               collective<Collective::kAllToAll>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype}, comm, where))

KOLO_TWO_FORMS(koloGather, koloIgather,
               (const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype, int root),
               collective<Collective::kGather>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloScatter, koloIscatter,
               (const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype, int root),
               collective<Collective::kScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS_OF_NO_BUFFERS(koloBarrier, koloIbarrier, barrier(__func__, comm, where))

KOLO_TWO_FORMS(koloAllGatherv, koloIallGatherv,
               (const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                koloDataType_t datatype),
               vectorCollective<Collective::kAllGather>(__func__,
                                                        {.send = sendbuf, .recv = recvbuf, .datatype = datatype}, {},
                                                        {"counts", counts, displs}, comm, where))

KOLO_TWO_FORMS(koloReduceScatterv, koloIreduceScatterv,
               (const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs, koloDataType_t datatype,
                koloRedOp_t op),
               vectorCollective<Collective::kReduceScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .datatype = datatype, .op = op},
                   {"counts", counts, displs}, {}, comm, where))

KOLO_TWO_FORMS(koloGatherv, koloIgatherv,
               (const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts, const size_t* displs,
                koloDataType_t datatype, int root),
               vectorCollective<Collective::kGather>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype, .root = root},
                   {}, {"recvcounts", recvcounts, displs}, comm, where))

KOLO_TWO_FORMS(koloScatterv, koloIscatterv,
               (const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf, size_t recvcount,
                koloDataType_t datatype, int root),
               vectorCollective<Collective::kScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .root = root},
                   {"sendcounts", sendcounts, displs}, {}, comm, where))

KOLO_TWO_FORMS(koloAllToAllv, koloIallToAllv,
               (const void* sendbuf, const size_t* sendcounts, const size_t* senddispls, void* recvbuf,
                const size_t* recvcounts, const size_t* recvdispls, koloDataType_t datatype),
               vectorCollective<Collective::kAllToAll>(__func__,
                                                       {.send = sendbuf, .recv = recvbuf, .datatype = datatype},
                                                       {"sendcounts", sendcounts, senddispls},
                                                       {"recvcounts", recvcounts, recvdispls}, comm, where))

}  // extern "C"
