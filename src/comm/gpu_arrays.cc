// Arrays that are sent between GPUs: the description through the control plane, the data as a message.
#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/arrays.h"
#include "comm/gpu_backend.h"
#include "comm/in_turn.h"
#include "common/clock.h"
#include "memory/device_memory.h"

namespace kolo::comm {
namespace {

Status checkPeerOfGpu(const Communicator& communicator, int peer) {
  if (peer >= 0 && peer != communicator.rank()) return {};
  return error(koloUnsupported, "peer is {}: between GPUs an array goes from one rank to another one that both name",
               peer == KOLO_ANY_SOURCE ? std::string("KOLO_ANY_SOURCE") : fmt::format("{}, this rank", peer));
}

// In the turn. Success, or why to wait for an array of the peer's no longer.
Status checkArrayWait(Communicator& communicator, int peer, std::int64_t beginNs) {
  communicator.backend().check();
  if (communicator.failed()) return communicator.failure();
  const int limitMs = failure::timeoutInUse(communicator.options().timeoutMs);
  const std::int64_t waitedMs = (nowNs() - beginNs) / 1'000'000;
  if (limitMs <= 0 || waitedMs < limitMs) return {};
  communicator.failureState().fail(
      {koloTimeout, communicator.membership().jobRank(peer),
       fmt::format("rank {} waited {} ms for an array from rank {}; the limit is {} ms (KOLO_TIMEOUT_MS)",
                   communicator.rank(), waitedMs, peer, limitMs)});
  return communicator.failure();
}

}  // namespace

// In the turn. The description of the peer's next array, which the peer may not have sent yet.
Result<std::string> GpuBackend::awaitDescription(int peer) {
  constexpr int kSliceMs = 20, kMostSlices = 50;
  // A peer that has made the communicator a moment later, or one that has destroyed it.
  constexpr std::int64_t kSilenceNs = 10'000'000'000, kLongestNapUs = 2000;
  const Membership& all = owner_.membership();
  const std::string question = sentArrays_.question(owner_.rank(), peer);
  const std::int64_t beginNs = nowNs();
  for (std::int64_t napUs = 50, heardNs = beginNs;; napUs = std::min(2 * napUs, kLongestNapUs)) {
    const auto answer = all.control->ask(all.key, all.jobRank(peer), question);
    const std::string* text = nullptr;
    // An answer of a peer that goes may be lost: then it is asked again.
    for (int slice = 0; slice < kMostSlices && (text = answer->wait(kSliceMs)) == nullptr; ++slice)
      KOLO_TRY(checkArrayWait(owner_, peer, beginNs));
    if (text != nullptr) {
      if (const std::string_view found = SentArrays::descriptionIn(*text); !found.empty()) return std::string(found);
      if (!text->empty()) heardNs = nowNs();
    }
    KOLO_TRY(checkArrayWait(owner_, peer, beginNs));
    if (nowNs() - heardNs > kSilenceNs) {
      return error(koloRemoteError,
                   "rank {} has not answered for {} s: it may have destroyed the communicator, and arrays with it that "
                   "it had sent; expected it to keep the communicator until they have been received",
                   peer, kSilenceNs / 1'000'000'000);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(napUs));
  }
}

// In the turn.
Status GpuBackend::sendNext(const void* data, const ArrayDescription& description, int peer, void* stream) {
  KOLO_TRY(checkPeerOfGpu(owner_, peer));
  if (owner_.failed()) return owner_.failure();
  const Message message{
      .isSend = true, .send = data, .count = description.bytes(), .datatype = koloUint8, .peer = peer};
  if (message.count != 0) KOLO_TRY(runGroup({&message, 1}, {}, stream));
  const std::vector<unsigned char> packed = pack(description, nullptr);
  sentArrays_.add(peer, {packed.begin(), packed.end()});
  return {};
}

// In the turn. Memory into which an array goes that the receiver has no memory for: its sender's kernel waits for it.
Result<void*> GpuBackend::memoryToDrop(std::uint64_t bytes) {
  if (void* const kept = sentArrays_.memoryToDrop(bytes)) return kept;
  auto memory = memory::DeviceMemory::create(owner_.options().device, bytes, false);
  if (memory.ok()) return sentArrays_.keepToDrop(memory.take());
  const Status why = memory.status();
  owner_.failureState().fail({why, owner_.membership().jobRank(owner_.rank())});
  return why;
}

// In the turn.
Status GpuBackend::receiveNext(const Allocation& allocation, int peer, koloRecvStatus_t* status, void* stream) {
  KOLO_TRY(checkPeerOfGpu(owner_, peer));
  KOLO_ASSIGN(const std::string packed, awaitDescription(peer));
  ArrayDescription description;
  const unsigned char* along = nullptr;
  KOLO_TRY(unpack(peer, reinterpret_cast<const unsigned char*>(packed.data()), packed.size(), description, &along));
  sentArrays_.count(peer);
  void* memory = allocate(allocation, description);
  const Status refused = checkMemory(*this, allocation, description, memory);
  if (const std::uint64_t bytes = description.bytes(); bytes != 0) {
    if (!refused.ok()) {
      KOLO_ASSIGN(memory, memoryToDrop(bytes));
    }
    const Message message{.recv = memory, .count = bytes, .datatype = koloUint8, .peer = peer};
    KOLO_TRY(runGroup({&message, 1}, {}, stream));
  }
  if (!refused.ok()) return error(refused.code(), "{}; an array from rank {} was dropped", refused.message(), peer);
  if (status != nullptr) *status = {peer, 0, description.elements()};
  return {};
}

Status GpuBackend::sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                             const ArrayDescription& description, int peer) {
  return inNextTurn(communicator, [&](Communicator&) { return sendNext(data, description, peer, target.gpuStream); });
}

Status GpuBackend::receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation,
                                int peer, koloRecvStatus_t* status) {
  return inNextTurn(communicator,
                    [&](Communicator&) { return receiveNext(allocation, peer, status, target.gpuStream); });
}

}  // namespace kolo::comm
