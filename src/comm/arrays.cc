#include "comm/arrays.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/caller.h"
#include "base/clock.h"
#include "base/datatypes.h"
#include "comm/communicator.h"
#include "comm/sent_arrays.h"
#include "failure/cause.h"
#include "memory/device_memory.h"

namespace kolo::comm {
namespace {

// Data up to this length goes in the message of the description, which then costs less than a second one.
constexpr std::uint64_t kMostAlong = 256;
constexpr std::size_t kHeadBytes = offsetof(ArrayDescription, shape);
constexpr std::size_t kMostMessageBytes = sizeof(ArrayDescription) + kMostAlong;
static_assert(kHeadBytes == 16 && sizeof(ArrayDescription) == 16 + 8 * KOLO_MAX_DIMS);

int dataTagOf(const ArrayDescription& description) {
  return kFirstArrayDataTag - static_cast<int>(description.number % (1u << 30));
}

// The description with the lengths that it has, and the data if that is short.
std::vector<unsigned char> pack(const ArrayDescription& description, const void* data) {
  const std::size_t head = kHeadBytes + description.ndim * sizeof(std::uint64_t);
  std::vector<unsigned char> packed(head + (description.hasData != 0 ? description.bytes() : 0));
  std::memcpy(packed.data(), &description, head);
  if (packed.size() > head) std::memcpy(packed.data() + head, data, packed.size() - head);
  return packed;
}

// Into a description; *data: where the data is that follows.
Status unpack(const unsigned char* packed, std::size_t bytes, ArrayDescription& description,
              const unsigned char** data) {
  if (bytes < kHeadBytes)
    return error(koloRemoteError, "a description of {} bytes, expected {} or more", bytes, kHeadBytes);
  std::memcpy(static_cast<void*>(&description), packed, kHeadBytes);
  if (description.ndim > KOLO_MAX_DIMS) return check(description);
  const std::size_t head = kHeadBytes + description.ndim * sizeof(std::uint64_t);
  if (bytes >= head) std::memcpy(&description.shape, packed + kHeadBytes, head - kHeadBytes);
  KOLO_TRY(check(description));
  const std::uint64_t along = description.hasData != 0 ? description.bytes() : 0;
  if (along > kMostAlong || bytes != head + along)
    return error(koloRemoteError, "a description of {} bytes, expected {}", bytes, head + along);
  *data = packed + head;
  return {};
}

// The receiver's memory for an array. null: it has none.
void* allocate(const Allocation& allocation, const ArrayDescription& description) {
  if (allocation.function == nullptr) return nullptr;
  std::array<std::size_t, KOLO_MAX_DIMS> shape{};
  std::copy(description.shape.begin(), description.shape.end(), shape.begin());
  const InUserFunction running;
  return allocation.function(allocation.context, description.type(), description.ndim, shape.data());
}

// Why there is no memory for an array, or success.
Status checkMemory(const Communicator& communicator, const Allocation& allocation, const ArrayDescription& description,
                   const void* memory) {
  if (allocation.function == nullptr)
    return error(koloInvalidPointer, "allocate is NULL, expected a function on every rank but the root");
  const std::uint64_t bytes = description.bytes();
  if (memory == nullptr && bytes != 0) {
    return error(koloOutOfMemory, "allocate returned NULL, expected memory for {} bytes ({} dimensions of {})", bytes,
                 description.ndim, koloDataTypeName(description.type()));
  }
  if (!communicator.backend().checksPlaces() || bytes == 0) return {};
  return communicator.backend().checkPlace("allocate's memory", memory, bytes);
}

// ---- to streams

Status wasDestroyedMeanwhile(bool isStream) {
  return error(koloInvalidHandle, "the {} was destroyed during the call", isStream ? "stream" : "communicator");
}

// Enqueues step(communicator), to be done in the communicator's turn, at the operation's place. The turn lasts until
// the step is done: behind the place come those of later operations in the stream, which this thread executes itself.
template <class Step>
Status enqueueStep(Held<Communicator>& communicator, const Target& target, const Step& step) {
  const Pin<Stream> stream = target.stream.lock();
  const Pin<Communicator> pinned = communicator.weak().lock();
  if (!stream || !pinned) return wasDestroyedMeanwhile(static_cast<bool>(pinned));
  const std::uint64_t place = pinned->requests().takeStreamPlace();
  stream->enqueue([pinned, place, step, timeoutMs = caller.timeoutMs] {
    const WithTimeout its(timeoutMs);
    Status status;
    {
      const InTurn served(pinned->turn(), place);
      status = step(*pinned);
    }
    pinned->requests().endStreamPlace();
    return status;
  });
  return {};
}

// In the turn. Messages that other threads start meanwhile go on as well.
Status runInTurn(Communicator& communicator, const Message* messages, std::size_t count) {
  return communicator.backend().runGroup({messages, count}, {}, nullptr);
}

// ---- receiving

// run(message, isFirst): the message with the description, or that with the data.
template <class Run>
Status receiveBoth(Communicator& communicator, const Allocation& allocation, int peer, koloRecvStatus_t* status,
                   const Run& run) {
  std::array<unsigned char, kMostMessageBytes> packed;
  koloRecvStatus_t came{};
  const Message first{.recv = packed.data(),
                      .count = packed.size(),
                      .datatype = koloUint8,
                      .peer = peer,
                      .tag = kArrayTag,
                      .status = &came};
  KOLO_TRY(run(first, true));
  ArrayDescription description;
  const unsigned char* along = nullptr;
  if (Status wrong = unpack(packed.data(), came.count, description, &along); !wrong.ok()) {
    return error(koloRemoteError, "rank {} sent an array that cannot be: {}", came.source, wrong.message());
  }
  void* const memory = allocate(allocation, description);
  const Status refused = checkMemory(communicator, allocation, description, memory);
  const std::uint64_t bytes = description.bytes();
  if (description.hasData != 0) {
    if (refused.ok() && bytes != 0) std::memcpy(memory, along, bytes);
  } else {
    unsigned char dropped = 0;  // of an array for which there is no memory, so that its sender does not wait
    const Message second{.recv = refused.ok() ? memory : &dropped,
                         .count = refused.ok() ? bytes : 1,
                         .datatype = koloUint8,
                         .peer = came.source,
                         .tag = dataTagOf(description)};
    Status received = run(second, false);
    if (refused.ok() || received.code() != koloTruncated) KOLO_TRY(received);
  }
  if (!refused.ok()) {
    return error(refused.code(), "{}; an array from rank {} was dropped", refused.message(), came.source);
  }
  if (status != nullptr) *status = {came.source, 0, description.elements()};
  return {};
}

// ---- messages between GPUs

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
  communicator.fail({koloTimeout, communicator.membership().jobRank(peer),
                     fmt::format("rank {} waited {} ms for an array from rank {}; the limit is {} ms (KOLO_TIMEOUT_MS)",
                                 communicator.rank(), waitedMs, peer, limitMs)});
  return communicator.failure();
}

// In the turn. The description of the peer's next array, which the peer may not have sent yet.
Result<std::string> awaitDescription(Communicator& communicator, int peer) {
  constexpr int kSliceMs = 20, kMostSlices = 50;
  // A peer that has made the communicator a moment later, or one that has destroyed it.
  constexpr std::int64_t kSilenceNs = 10'000'000'000, kLongestNapUs = 2000;
  const Membership& all = communicator.membership();
  const std::string question = communicator.backend().sentArrays()->question(communicator.rank(), peer);
  const std::int64_t beginNs = nowNs();
  for (std::int64_t napUs = 50, heardNs = beginNs;; napUs = std::min(2 * napUs, kLongestNapUs)) {
    const auto answer = all.control->ask(all.key, all.jobRank(peer), question);
    const std::string* text = nullptr;
    // An answer of a peer that goes may be lost: then it is asked again.
    for (int slice = 0; slice < kMostSlices && (text = answer->wait(kSliceMs)) == nullptr; ++slice)
      KOLO_TRY(checkArrayWait(communicator, peer, beginNs));
    if (text != nullptr) {
      if (const std::string_view found = SentArrays::descriptionIn(*text); !found.empty()) return std::string(found);
      if (!text->empty()) heardNs = nowNs();
    }
    KOLO_TRY(checkArrayWait(communicator, peer, beginNs));
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
Status sendBetweenGpus(Communicator& communicator, const void* data, const ArrayDescription& description, int peer,
                       void* stream) {
  KOLO_TRY(checkPeerOfGpu(communicator, peer));
  if (communicator.failed()) return communicator.failure();
  const Message message{
      .isSend = true, .send = data, .count = description.bytes(), .datatype = koloUint8, .peer = peer};
  if (message.count != 0) KOLO_TRY(communicator.backend().runGroup({&message, 1}, {}, stream));
  const std::vector<unsigned char> packed = pack(description, nullptr);
  communicator.backend().sentArrays()->add(peer, {packed.begin(), packed.end()});
  return {};
}

// In the turn. Memory into which an array goes that the receiver has no memory for: its sender's kernel waits for it.
Result<void*> memoryToDrop(Communicator& communicator, std::uint64_t bytes) {
  SentArrays& arrays = *communicator.backend().sentArrays();
  if (void* const kept = arrays.memoryToDrop(bytes)) return kept;
  auto memory = memory::DeviceMemory::create(communicator.options().device, bytes, false);
  if (memory.ok()) return arrays.keepToDrop(memory.take());
  const Status why = memory.status();
  communicator.fail({why.code(), communicator.membership().jobRank(communicator.rank()), why.message()});
  return why;
}

// In the turn.
Status receiveBetweenGpus(Communicator& communicator, const Allocation& allocation, int peer, koloRecvStatus_t* status,
                          void* stream) {
  KOLO_TRY(checkPeerOfGpu(communicator, peer));
  KOLO_ASSIGN(const std::string packed, awaitDescription(communicator, peer));
  ArrayDescription description;
  const unsigned char* along = nullptr;
  if (Status wrong = unpack(reinterpret_cast<const unsigned char*>(packed.data()), packed.size(), description, &along);
      !wrong.ok())
    return error(koloRemoteError, "rank {} sent an array that cannot be: {}", peer, wrong.message());
  communicator.backend().sentArrays()->count(peer);
  void* memory = allocate(allocation, description);
  const Status refused = checkMemory(communicator, allocation, description, memory);
  if (const std::uint64_t bytes = description.bytes(); bytes != 0) {
    if (!refused.ok()) {
      KOLO_ASSIGN(memory, memoryToDrop(communicator, bytes));
    }
    const Message message{.recv = memory, .count = bytes, .datatype = koloUint8, .peer = peer};
    KOLO_TRY(communicator.backend().runGroup({&message, 1}, {}, stream));
  }
  if (!refused.ok()) return error(refused.code(), "{}; an array from rank {} was dropped", refused.message(), peer);
  if (status != nullptr) *status = {peer, 0, description.elements()};
  return {};
}

// ---- collectives

// In the turn. stream: of a device.
Status runStep(Communicator& communicator, const Call& call, void* stream = nullptr) {
  return communicator.backend().run({call, {}, {}}, stream);
}

// In the turn, on GPUs, whose collectives take no host memory: what all ranks say, by the control plane.
Result<std::vector<std::string>> hearAll(Communicator& communicator, std::string_view mine) {
  communicator.backend().check();
  if (communicator.failed()) return communicator.failure();
  Membership& membership = communicator.membership();
  Result<std::vector<std::string>> words = membership.allGather(mine);
  if (!words.ok())
    communicator.fail({words.status().code(), membership.jobRank(communicator.rank()), words.status().message()});
  return words;
}

// The root's description, on all ranks.
Status tellDescription(Communicator& communicator, int root, ArrayDescription& description) {
  if (communicator.backend().waits()) {
    return runStep(communicator, {.send = &description,
                                  .recv = &description,
                                  .count = sizeof description,
                                  .collective = device::Collective::kBroadcast,
                                  .datatype = koloUint8,
                                  .root = root});
  }
  const std::string own = communicator.rank() == root ? BlobWriter().put(description).text() : "";
  KOLO_ASSIGN(const std::vector<std::string> words, hearAll(communicator, own));
  const std::string& said = words[static_cast<std::size_t>(root)];
  if (said.size() != sizeof description)
    return error(koloMismatch, "rank {} is not the root of its call: expected the same root on all ranks", root);
  std::memcpy(static_cast<void*>(&description), said.data(), sizeof description);
  return {};
}

// The largest number of all ranks'.
Status findLargest(Communicator& communicator, std::int32_t own, std::int32_t& largest) {
  if (communicator.backend().waits()) {
    return runStep(communicator, {.send = &own,
                                  .recv = &largest,
                                  .count = 1,
                                  .collective = device::Collective::kAllReduce,
                                  .datatype = koloInt32,
                                  .op = koloMax});
  }
  KOLO_ASSIGN(const std::vector<std::string> words, hearAll(communicator, BlobWriter().put(own).text()));
  for (const std::string& word : words) largest = std::max(largest, BlobReader(word).get<std::int32_t>());
  return {};
}

// Whether all ranks have what they need. mine: why this one has not.
Status vote(Communicator& communicator, const Status& mine) {
  std::int32_t worst = 0;
  KOLO_TRY(findLargest(communicator, mine.ok() ? 0 : communicator.rank() + 1, worst));
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
  return runStep(communicator,
                 {.send = isRoot ? call.data : nullptr,
                  .recv = memory,
                  .count = part.elements(),
                  .collective = call.scatters ? device::Collective::kScatter : device::Collective::kBroadcast,
                  .datatype = part.type(),
                  .root = call.root},
                 stream);
}

// In the turn. gpuStream: where calls do not wait.
Status runCollective(Communicator& communicator, const ArrayCall& call, void* gpuStream = nullptr) {
  const MayWait asEver;
  const bool isRoot = communicator.rank() == call.root;
  ArrayDescription part = call.description;
  if (isRoot) part.problem = call.problem.code();
  KOLO_TRY(tellDescription(communicator, call.root, part));
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
  const Status refused = keepsOwn ? Status() : checkMemory(communicator, call.allocation, part, memory);
  KOLO_TRY(vote(communicator, refused));
  return moveData(communicator, call, part, memory, gpuStream);
}

}  // namespace

std::uint64_t ArrayDescription::elements() const {
  std::uint64_t all = 1;
  for (std::size_t i = 0; i < ndim; ++i) all *= shape[i];
  return all;
}

std::uint64_t ArrayDescription::bytes() const { return elements() * elementBytes(type()); }

Status check(const ArrayDescription& description) {
  if (description.ndim > KOLO_MAX_DIMS)
    return error(koloInvalidArgument, "ndim is {}, expected 0..{} (KOLO_MAX_DIMS)", description.ndim, KOLO_MAX_DIMS);
  if (description.datatype >= koloNumDatatypes) {
    return error(koloInvalidDatatype, "datatype is {}, expected a koloDataType_t from 0 to {}", description.datatype,
                 koloNumDatatypes - 1);
  }
  // Without zeros: the product of the others is to fit, too.
  std::uint64_t most = static_cast<std::uint64_t>(PTRDIFF_MAX) / elementBytes(description.type());
  for (std::size_t i = 0; i < description.ndim; ++i) {
    const std::uint64_t length = description.shape[i];
    if (length > most)
      return error(koloInvalidCount, "shape[{}] is {}: the array exceeds the address space", i, length);
    if (length != 0) most /= length;
  }
  return {};
}

namespace {

// step(communicator), behind the collectives that the calling thread has started.
template <class Step>
Status runInItsTurn(Held<Communicator>& communicator, const Step& step) {
  if (communicator->requests().hasCollectives()) {
    communicator.stepOut();
    communicator->requests().executeCollectives();
  }
  if (communicator.isInside()) return step(*communicator);
  const InTurn served(communicator->turn());
  return step(*communicator);
}

}  // namespace

Status sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                 const ArrayDescription& description, int peer) {
  if (!communicator->backend().waits()) {
    return runInItsTurn(communicator, [&](Communicator& its) {
      return sendBetweenGpus(its, data, description, peer, target.gpuStream);
    });
  }
  static std::atomic<std::uint32_t> sent{0};
  ArrayDescription whole = description;
  whole.number = sent.fetch_add(1, std::memory_order_relaxed);
  whole.hasData = whole.bytes() <= kMostAlong ? 1 : 0;
  const auto packed = std::make_shared<const std::vector<unsigned char>>(pack(whole, data));
  const std::array<Message, 2> messages = {Message{.isSend = true,
                                                   .send = packed->data(),
                                                   .count = packed->size(),
                                                   .datatype = koloUint8,
                                                   .peer = peer,
                                                   .tag = kArrayTag},
                                           Message{.isSend = true,
                                                   .send = data,
                                                   .count = whole.bytes(),
                                                   .datatype = koloUint8,
                                                   .peer = peer,
                                                   .tag = dataTagOf(whole)}};
  const std::size_t count = whole.hasData != 0 ? 1 : 2;
  if (!target.stream) return Requests::run(communicator, messages.data(), count);
  return enqueueStep(communicator, target,
                     [messages, count, packed](Communicator& its) { return runInTurn(its, messages.data(), count); });
}

Status receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation, int peer,
                    koloRecvStatus_t* status) {
  if (!communicator->backend().waits()) {
    return runInItsTurn(communicator, [&](Communicator& its) {
      return receiveBetweenGpus(its, allocation, peer, status, target.gpuStream);
    });
  }
  if (target.stream) {
    return enqueueStep(communicator, target, [allocation, peer, status](Communicator& its) {
      return receiveBoth(its, allocation, peer, status,
                         [&](const Message& message, bool) { return runInTurn(its, &message, 1); });
    });
  }
  return receiveBoth(*communicator, allocation, peer, status, [&](const Message& message, bool isFirst) {
    if (!isFirst) return communicator->requests().runBegun(&message, 1);
    Status received = Requests::run(communicator, &message, 1);
    communicator.stepOut();  // other threads may have their turns while the function allocates
    return received;
  });
}

Status runArrayCall(Held<Communicator>& communicator, const Target& target, const ArrayCall& call) {
  if (target.stream)
    return enqueueStep(communicator, target, [call](Communicator& its) { return runCollective(its, call); });
  return runInItsTurn(communicator, [&](Communicator& its) { return runCollective(its, call, target.gpuStream); });
}

}  // namespace kolo::comm
