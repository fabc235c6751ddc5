#include "comm/arrays.h"

#include <fmt/ranges.h>

#include <array>

#include "base/caller.h"
#include "base/datatypes.h"
#include "collectives/list_calls.h"
#include "comm/in_turn.h"

namespace kolo::comm {
namespace {

// Whether all ranks have what they need. mine: why this one has not.
Status vote(Communicator& communicator, const Status& mine) {
  std::uint64_t worst = mine.ok() ? 0 : static_cast<std::uint64_t>(communicator.rank()) + 1;
  KOLO_TRY(communicator.backend().reduceWords({&worst, 1}, koloMax));
  if (!mine.ok() || worst == 0) return mine;
  return error(koloRemoteError, "rank {} has no memory for the array: its allocate function returned none, or was NULL",
               worst - 1);
}

// One rank's part of a scatter.
Status divide(ArrayDescription& description, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  const int axis = description.axis;
  if (description.ndim == 0) {
    return error(koloInvalidArgument, "the array is a scalar: expected an axis {} to scatter among {} ranks", axis,
                 ranks);
  }
  if (axis >= description.ndim) {
    return error(koloInvalidArgument, "axis is {}, expected 0 to {}: the array has the shape ({})", axis,
                 description.ndim - 1,
                 fmt::join(description.shape.begin(), description.shape.begin() + description.ndim, ", "));
  }
  std::uint64_t& length = description.shape[static_cast<std::size_t>(axis)];
  if (length % n != 0) {
    return error(koloInvalidArgument, "axis {} has length {}, which {} ranks do not divide: expected a multiple of {}",
                 axis, length, ranks, ranks);
  }
  length /= n;
  return {};
}

// A scatter along another axis than the first one, in which the parts of the root's array do not lie in a row: as a
// list of one item.
Result<Operation> scatterAlongAxis(Communicator& communicator, const ArrayCall& call, const ArrayDescription& part,
                                   void* memory) {
  const auto ranks = static_cast<std::uint64_t>(communicator.ranks());
  std::array<std::size_t, KOLO_MAX_DIMS> wholeShape{}, partShape{};
  std::array<std::ptrdiff_t, KOLO_MAX_DIMS> strides{};
  std::uint64_t stride = 1;
  for (std::size_t d = part.ndim; d-- > 0;) {
    partShape[d] = part.shape[d];
    wholeShape[d] = part.shape[d] * (d == part.axis ? ranks : 1);
    strides[d] = static_cast<std::ptrdiff_t>(stride);
    stride *= wholeShape[d];
  }
  const koloArray_t whole{part.ndim, wholeShape.data(), nullptr};
  koloItem_t item = KOLO_ITEM_INITIALIZER;
  item.sendbuf = call.data;
  item.recvbuf = memory;
  item.sendtype = part.type();
  item.sendarray = &whole;
  item.axis = part.axis;
  // The root's own part stays where it is: in place.
  koloArray_t own{part.ndim, partShape.data(), strides.data()};
  if (communicator.rank() == call.root && memory == nullptr) {
    const std::uint64_t before =
        static_cast<std::uint64_t>(call.root) * part.shape[part.axis] * static_cast<std::uint64_t>(strides[part.axis]);
    item.recvbuf =
        const_cast<unsigned char*>(static_cast<const unsigned char*>(call.data)) + before * elementBytes(part.type());
    item.recvarray = &own;
  }
  const collectives::ListCall given{.collective = device::Collective::kScatter,
                                    .rank = communicator.rank(),
                                    .ranks = communicator.ranks(),
                                    .root = call.root};
  KOLO_ASSIGN(std::shared_ptr<const collectives::List> list,
              collectives::findList(communicator.planning().operations(), given, collectives::ItemsCall{&item, 1}));
  Operation operation;
  operation.over(std::move(list));
  return operation;
}

Status moveData(Communicator& communicator, const ArrayCall& call, const ArrayDescription& part, void* memory,
                void* stream) {
  const std::uint64_t bytes = part.bytes();
  if (bytes == 0) return {};
  const bool isRoot = communicator.rank() == call.root;
  if (call.scatters && part.axis != 0) {
    KOLO_ASSIGN(const Operation scatter, scatterAlongAxis(communicator, call, part, memory));
    return communicator.backend().run(scatter, stream);
  }
  const auto own = call.scatters ? static_cast<std::uint64_t>(call.root) * bytes : 0;
  // The root's own part stays where it is: in place.
  if (isRoot && memory == nullptr)
    memory = const_cast<unsigned char*>(static_cast<const unsigned char*>(call.data)) + own;
  const Call moves{.send = isRoot ? call.data : nullptr,
                   .recv = memory,
                   .count = part.elements(),
                   .collective = call.scatters ? device::Collective::kScatter : device::Collective::kBroadcast,
                   .datatype = part.type(),
                   .root = call.root};
  return communicator.backend().run({moves, {}, {}}, stream);
}

// In the turn. gpuStream: where calls do not wait.
Status runCollective(Communicator& communicator, const ArrayCall& call, void* gpuStream = nullptr) {
  const MayWait asEver;
  const bool isRoot = communicator.rank() == call.root;
  ArrayDescription part = call.description;
  if (isRoot) part.problem = call.problem.code();
  KOLO_TRY(communicator.backend().tell(call.root, &part, sizeof part));
  // From here on all ranks decide alike.
  if (part.problem != koloSuccess) {
    if (isRoot) return call.problem;
    const koloResult_t why = failureCode(part.problem);
    return error(why, "rank {}, the root, cannot send its array: {}", call.root, koloGetErrorString(why));
  }
  KOLO_TRY(check(part));
  if (call.scatters) KOLO_TRY(divide(part, communicator.ranks()));
  const bool keepsOwn = isRoot && call.allocation.function == nullptr;
  void* const memory = keepsOwn ? nullptr : allocate(call.allocation, part);
  const Status refused = keepsOwn ? Status() : checkMemory(communicator.backend(), call.allocation, part, memory);
  KOLO_TRY(vote(communicator, refused));
  return moveData(communicator, call, part, memory, gpuStream);
}

}  // namespace

Status checkMemory(const Backend& backend, const Allocation& allocation, const ArrayDescription& description,
                   const void* memory) {
  if (allocation.function == nullptr)
    return error(koloInvalidPointer, "allocate is NULL, expected a function on every rank but the root");
  const std::uint64_t bytes = description.bytes();
  if (memory == nullptr && bytes != 0) {
    return error(koloOutOfMemory, "allocate returned NULL, expected memory for {} bytes ({} dimensions of {})", bytes,
                 description.ndim, koloDataTypeName(description.type()));
  }
  if (!backend.checksPlaces() || bytes == 0) return {};
  return backend.checkPlace("allocate's memory", memory, bytes);
}

Status runArrayCall(Held<Communicator>& communicator, const Target& target, const ArrayCall& call) {
  if (target.stream)
    return enqueueStep(communicator, target, [call](Communicator& its) { return runCollective(its, call); });
  return inNextTurn(communicator, [&](Communicator& its) { return runCollective(its, call, target.gpuStream); });
}

}  // namespace kolo::comm
