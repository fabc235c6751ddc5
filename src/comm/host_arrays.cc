// Arrays that are sent between ranks in host memory: a message with the description, and behind it one with the data,
// unless that is short and goes along. Both have tags that no user's message has. The data's tag is from the
// description, so several threads may receive arrays from one rank.
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/arrays.h"
#include "comm/host_backend.h"
#include "comm/in_turn.h"

namespace kolo::comm {
namespace {

int dataTagOf(const ArrayDescription& description) {
  return kFirstArrayDataTag - static_cast<int>(description.number % (1u << 30));
}

// In the turn. Messages that other threads start meanwhile go on as well.
Status runInTurn(Communicator& communicator, const Message* messages, std::size_t count) {
  return communicator.backend().runGroup({messages, count}, {}, nullptr);
}

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
  KOLO_TRY(unpack(came.source, packed.data(), came.count, description, &along));
  void* const memory = allocate(allocation, description);
  const Status refused = checkMemory(communicator.backend(), allocation, description, memory);
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

}  // namespace

Status HostBackend::sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                              const ArrayDescription& description, int peer) {
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

Status HostBackend::receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation,
                                 int peer, koloRecvStatus_t* status) {
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

}  // namespace kolo::comm
