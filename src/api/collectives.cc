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
koloResult_t run(const char* function, Call&& call, koloComm_t comm, const Where& where, Check&& check,
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

// How many blocks a buffer holds: one, or one for each rank.
enum class Blocks { kOne, kEach };
// Ranks other than the root give, or get, nothing in the other buffer.
enum class Root { kNone, kGives, kGets };

// What a collective does with its buffers. The buffers may overlap in one position only, "in place": where one of them
// holds the blocks of all ranks, the other is this rank's own block in it (the root's, if there is one), else both are
// the same.
struct Shape {
  Collective collective;
  Blocks send, recv;
  Root root;
  const char* inPlace;                  // that position in words
  const char* vectorInPlace = nullptr;  // and in the v-variant
};

using enum Blocks;
constexpr Shape kAllReduce{Collective::kAllReduce, kOne, kOne, Root::kNone, "sendbuf == recvbuf"};
constexpr Shape kReduce{Collective::kReduce, kOne, kOne, Root::kGets, "sendbuf == recvbuf"};
constexpr Shape kBroadcast{Collective::kBroadcast, kOne, kOne, Root::kGives, "sendbuf == recvbuf"};
constexpr Shape kAllGather{Collective::kAllGather,
                           kOne,
                           kEach,
                           Root::kNone,
                           "sendbuf == recvbuf + rank * sendcount",
                           "sendbuf == recvbuf + displs[rank]"};
constexpr Shape kReduceScatter{
    Collective::kReduceScatter,         kEach, kOne, Root::kNone, "recvbuf == sendbuf + rank * recvcount",
    "recvbuf == sendbuf + displs[rank]"};
constexpr Shape kAllToAll{Collective::kAllToAll, kEach, kEach, Root::kNone, "sendbuf == recvbuf"};
constexpr Shape kGather{Collective::kGather,
                        kOne,
                        kEach,
                        Root::kGets,
                        "sendbuf == recvbuf + root * sendcount",
                        "sendbuf == recvbuf + displs[root]"};
constexpr Shape kScatter{Collective::kScatter,
                         kEach,
                         kOne,
                         Root::kGives,
                         "recvbuf == sendbuf + root * recvcount",
                         "recvbuf == sendbuf + displs[root]"};

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

// The arguments of a collective whose blocks are equally long. The shape is a parameter of the template so that nothing
// of it is left to decide in a call.
template <const Shape& shape>
Status checkBlocks(comm::Communicator& communicator, const Operation& o) {
  constexpr bool each = shape.send == kEach || shape.recv == kEach;
  KOLO_TRY(checkCount(o.count, o.datatype, each ? ranksOf(communicator) : 1));
  const std::uint64_t block = o.count * elementBytes(o.datatype);
  const Extent send{"sendbuf", o.send, shape.send == kEach ? block * ranksOf(communicator) : block};
  const Extent recv{"recvbuf", o.recv, shape.recv == kEach ? block * ranksOf(communicator) : block};
  KOLO_TRY(checkPlaces(communicator, o, send, recv));
  if constexpr (shape.root != Root::kNone) {
    KOLO_TRY(checkRoot(o.root, communicator.ranks()));
    KOLO_TRY(checkPointer(shape.root == Root::kGets ? send : recv));
    if (communicator.rank() != o.root) return {};
  }
  const auto own = static_cast<std::uint64_t>(shape.root == Root::kNone ? communicator.rank() : o.root) * block;
  const bool inPlace = shape.send == shape.recv ? o.send == o.recv
                       : shape.recv == kEach    ? o.send == at(o.recv, own)
                                                : o.recv == at(o.send, own);
  return checkBuffers(send, recv, inPlace, shape.inPlace);
}

template <const Shape& shape>
koloResult_t collective(const char* function, Call call, koloComm_t comm, const Where& where) noexcept {
  return run<shape.collective>(function, std::move(call), comm, where, checkBlocks<shape>);
}

// The arrays of one buffer of a v-variant, as the caller gave them; displs may be NULL.
struct Given {
  const char* name;
  const size_t* counts;
  const size_t* displs;
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

// The v-variant of a collective with one block in one buffer and the blocks of all ranks, described by `given`, in the
// other. With a root only the root's arrays count, and operation.count is the one block's length; without, it is found
// in them.
template <const Shape& shape>
koloResult_t vectorCollective(const char* function, Call call, const Given& given, koloComm_t comm,
                              const Where& where) noexcept {
  static_assert(shape.send != shape.recv);
  constexpr bool gathers = shape.recv == kEach, rooted = shape.root != Root::kNone;
  const auto check = [&](comm::Communicator& communicator, Operation& o) -> Status {
    const std::uint64_t size = elementBytes(o.datatype);
    auto taken = std::make_shared<VectorCounts>();
    Extent send{"sendbuf", o.send, 0}, recv{"recvbuf", o.recv, 0};
    Extent& one = gathers ? send : recv;
    Extent& all = gathers ? recv : send;
    if constexpr (rooted) {
      KOLO_TRY(checkCount(o.count, o.datatype, 1));
      KOLO_TRY(checkRoot(o.root, communicator.ranks()));
      one.bytes = o.count * size;
      KOLO_TRY(checkPointer(one));
      KOLO_TRY(checkPlace(communicator, one));
      if (communicator.rank() != o.root) {
        o.counts = std::move(taken);
        return {};
      }
    }
    auto& counts = gathers ? taken->recvCounts : taken->sendCounts;
    auto& displs = gathers ? taken->recvDispls : taken->sendDispls;
    std::uint64_t extent = 0;
    KOLO_TRY(takeCounts(given, communicator, o.datatype, counts, displs, extent));
    const auto mine = static_cast<std::size_t>(communicator.rank());
    if (rooted && counts[mine] != o.count) {
      return error(koloInvalidCount,
                   "{}[{}] is {} and {} is {}: expected the root's own block to be equally long in both", given.name,
                   mine, counts[mine], gathers ? "sendcount" : "recvcount", o.count);
    }
    one.bytes = counts[mine] * size;
    all.bytes = extent * size;
    KOLO_TRY(checkPlace(communicator, send));
    KOLO_TRY(checkPlace(communicator, recv));
    KOLO_TRY(checkBuffers(send, recv, one.data == at(all.data, displs[mine] * size), shape.vectorInPlace));
    o.counts = std::move(taken);
    return {};
  };
  call.vector = true;
  return run<shape.collective>(function, std::move(call), comm, where, check,
                               gathers ? CountArrays{.recvCounts = given.counts, .recvDispls = given.displs}
                                       : CountArrays{.sendCounts = given.counts, .sendDispls = given.displs});
}

// The v-variant in which both buffers hold the blocks of all ranks.
koloResult_t exchange(const char* function, Call call, const Given& sends, const Given& recvs, koloComm_t comm,
                      const Where& where) noexcept {
  const auto check = [&](comm::Communicator& communicator, Operation& o) -> Status {
    auto taken = std::make_shared<VectorCounts>();
    auto& [sendCounts, sendDispls, recvCounts, recvDispls] = *taken;
    std::uint64_t sendExtent = 0, recvExtent = 0;
    KOLO_TRY(takeCounts(sends, communicator, o.datatype, sendCounts, sendDispls, sendExtent));
    KOLO_TRY(takeCounts(recvs, communicator, o.datatype, recvCounts, recvDispls, recvExtent));
    const auto mine = static_cast<std::size_t>(communicator.rank());
    if (sendCounts[mine] != recvCounts[mine]) {
      return error(koloInvalidCount,
                   "sendcounts[{0}] is {1} and recvcounts[{0}] is {2}: expected this rank's own block to "
                   "be equally long in both",
                   mine, sendCounts[mine], recvCounts[mine]);
    }
    const std::uint64_t size = elementBytes(o.datatype);
    const Extent send{"sendbuf", o.send, sendExtent * size}, recv{"recvbuf", o.recv, recvExtent * size};
    KOLO_TRY(checkPlace(communicator, send));
    KOLO_TRY(checkPlace(communicator, recv));
    KOLO_TRY(checkBuffers(send, recv, false, ""));
    o.counts = std::move(taken);
    return {};
  };
  call.vector = true;
  return run<Collective::kAllToAll>(function, std::move(call), comm, where, check,
                                    CountArrays{sends.counts, sends.displs, recvs.counts, recvs.displs});
}

koloResult_t barrier(const char* function, koloComm_t comm, const Where& where) noexcept {
  return run<Collective::kBarrier>(function, {}, comm, where, [](const auto&, const Operation&) { return Status(); });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_TWO_FORMS(
    koloAllReduce, koloIallReduce,
    (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, koloRedOp_t op),
    collective<kAllReduce>(__func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .op = op},
                           comm, where))

KOLO_TWO_FORMS(koloReduce, koloIreduce,
               (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, koloRedOp_t op, int root),
               collective<kReduce>(
                   __func__,
                   {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .op = op, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloBroadcast, koloIbroadcast,
               (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype, int root),
               collective<kBroadcast>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloAllGather, koloIallGather,
               (const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype),
               collective<kAllGather>(__func__,
                                      {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype},
                                      comm, where))

KOLO_TWO_FORMS(koloReduceScatter, koloIreduceScatter,
               (const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype, koloRedOp_t op),
               collective<kReduceScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .op = op},
                   comm, where))

KOLO_TWO_FORMS(koloAllToAll, koloIallToAll, (const void* sendbuf, void* recvbuf, size_t count, koloDataType_t datatype),
               collective<kAllToAll>(__func__, {.send = sendbuf, .recv = recvbuf, .count = count, .datatype = datatype},
                                     comm, where))

KOLO_TWO_FORMS(koloGather, koloIgather,
               (const void* sendbuf, void* recvbuf, size_t sendcount, koloDataType_t datatype, int root),
               collective<kGather>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS(koloScatter, koloIscatter,
               (const void* sendbuf, void* recvbuf, size_t recvcount, koloDataType_t datatype, int root),
               collective<kScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .root = root},
                   comm, where))

KOLO_TWO_FORMS_OF_NO_BUFFERS(koloBarrier, koloIbarrier, barrier(__func__, comm, where))

KOLO_TWO_FORMS(koloAllGatherv, koloIallGatherv,
               (const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs,
                koloDataType_t datatype),
               vectorCollective<kAllGather>(__func__, {.send = sendbuf, .recv = recvbuf, .datatype = datatype},
                                            {"counts", counts, displs}, comm, where))

KOLO_TWO_FORMS(koloReduceScatterv, koloIreduceScatterv,
               (const void* sendbuf, void* recvbuf, const size_t* counts, const size_t* displs, koloDataType_t datatype,
                koloRedOp_t op),
               vectorCollective<kReduceScatter>(__func__,
                                                {.send = sendbuf, .recv = recvbuf, .datatype = datatype, .op = op},
                                                {"counts", counts, displs}, comm, where))

KOLO_TWO_FORMS(koloGatherv, koloIgatherv,
               (const void* sendbuf, size_t sendcount, void* recvbuf, const size_t* recvcounts, const size_t* displs,
                koloDataType_t datatype, int root),
               vectorCollective<kGather>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = sendcount, .datatype = datatype, .root = root},
                   {"recvcounts", recvcounts, displs}, comm, where))

KOLO_TWO_FORMS(koloScatterv, koloIscatterv,
               (const void* sendbuf, const size_t* sendcounts, const size_t* displs, void* recvbuf, size_t recvcount,
                koloDataType_t datatype, int root),
               vectorCollective<kScatter>(
                   __func__, {.send = sendbuf, .recv = recvbuf, .count = recvcount, .datatype = datatype, .root = root},
                   {"sendcounts", sendcounts, displs}, comm, where))

KOLO_TWO_FORMS(koloAllToAllv, koloIallToAllv,
               (const void* sendbuf, const size_t* sendcounts, const size_t* senddispls, void* recvbuf,
                const size_t* recvcounts, const size_t* recvdispls, koloDataType_t datatype),
               exchange(__func__, {.send = sendbuf, .recv = recvbuf, .datatype = datatype},
                        {"sendcounts", sendcounts, senddispls}, {"recvcounts", recvcounts, recvdispls}, comm, where))

}  // extern "C"
