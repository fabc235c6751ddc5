#include "comm/arrays.h"

#include "base/caller.h"
#include "base/datatypes.h"
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

// One rank's part of a scatter along dimension 0.
Status divide(ArrayDescription& description, int ranks) {
  const auto n = static_cast<std::uint64_t>(ranks);
  if (description.ndim == 0)
    return error(koloInvalidArgument, "the array is a scalar: expected an axis 0 to scatter among {} ranks", ranks);
  if (description.shape[0] % n != 0) {
    return error(koloInvalidArgument, "axis 0 has length {}, which {} ranks do not divide: expected a multiple of {}",
                 description.shape[0], ranks, ranks);
  }
  description.shape[0] /= n;
  return {};
}

Status moveData(Communicator& communicator, const ArrayCall& call, const ArrayDescription& part, void* memory,
                void* stream) {
  const std::uint64_t bytes = part.bytes();
  if (bytes == 0) return {};
  const bool isRoot = communicator.rank() == call.root;
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
    const auto why = static_cast<koloResult_t>(part.problem);
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
