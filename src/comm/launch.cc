// The operations of a communicator on GPUs: from a group's messages and collectives to one launch, and from what a
// kernel found to words.
#include <algorithm>
#include <map>
#include <utility>

#include "base/datatypes.h"
#include "comm/communicator.h"

namespace kolo::comm {

using device::Collective;
using device::Fault;
using device::Signature;
using device::Work;

Status Communicator::addToLaunch(const Operation& operation) {
  KOLO_TRY(checkFold(operation));
  if (operation.custom != nullptr && !operation.custom->isPreMulSum) {
    return error(koloUnsupported,
                 "a reduction by a function of the host's: a GPU cannot call it; expected a predefined operation or "
                 "a pre-multiplied sum");
  }
  Work& work = gpuWorks_.emplace_back();
  prepare(operation, work);
  KOLO_TRY(checkWindow("sendbuf", operation.send, work.sendRef));
  KOLO_TRY(checkWindow("recvbuf", operation.recv, work.recvRef));
  // Of each channel's part, and what cutting at multiples of 64 bytes adds for each rank's block.
  const std::uint64_t scratch =
      planner::scratchBytes(work.signature.algorithm, operation.collective, inputBytes(operation, work));
  const auto channels = static_cast<std::uint64_t>(work.channels);
  if (scratch != 0)
    work.scratchBytes = (scratch / channels + 128 * static_cast<std::uint64_t>(ranks()) + 127) / 128 * 128;
  return {};
}

// The launch that has been described; scratch memory for it first.
Status Communicator::launch(std::uint32_t messages, void* stream) {
  std::uint64_t scratch = 0;
  for (Work& work : gpuWorks_) {
    scratch = std::max(scratch, static_cast<std::uint64_t>(work.channels) * work.scratchBytes);
    work.number = sequence_ + static_cast<std::uint64_t>(&work - gpuWorks_.data()) + 1;
  }
  KOLO_TRY(gpu_->reserveScratch(scratch));
  return gpu_->enqueue(gpuWorks_, messages, options_.timeoutMs, stream);
}

namespace {

// A message in a window of the sender's from this many bytes on is taken by the receiver; below, a slot costs less than
// the answer.
constexpr std::uint64_t kDirectMessageBytes = 16384;

}  // namespace

// Those of a rank to itself become one work each: the k-th send is the k-th receive's. The others are chained, peer by
// peer, in order.
Status Communicator::addToLaunch(const std::vector<Message>& messages) {
  std::vector<std::size_t> ownSends, ownReceives;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].peer == rank()) (messages[i].isSend ? ownSends : ownReceives).push_back(i);
  }
  if (ownSends.size() != ownReceives.size()) {
    return error(
        koloInvalidUsage,
        "{} sends of rank {} to itself and {} receives in one call or group: on a GPU expected as many of each",
        ownSends.size(), rank(), ownReceives.size());
  }
  const auto add = [&](const Message& message) -> Work& {
    Work& work = gpuWorks_.emplace_back();
    work.signature.collective = Collective::kSendRecv;
    work.signature.datatype = static_cast<std::uint8_t>(message.datatype);
    work.signature.op = Signature::kNoOp;
    work.word = work.signature.pack();
    work.elementBytes = static_cast<std::uint32_t>(elementBytes(message.datatype));
    work.rank = rank();
    work.ranks = ranks();
    work.peer = message.peer;
    work.isSend = message.isSend;
    work.headerCount = work.sendLayout.count = message.count;
    const std::uint64_t bytes = message.count * work.elementBytes;
    work.channels = static_cast<int>(
        std::clamp<std::uint64_t>(bytes >> 16, 1, static_cast<std::uint64_t>(gpu_->messageChannels())));
    work.chunkBytes = machine_.slotBytes;
    work.streaming = bytes >= streamingBytes_;
    work.send = static_cast<const unsigned char*>(message.send);
    work.recv = static_cast<unsigned char*>(message.recv);
    if (message.isSend && bytes >= kDirectMessageBytes) work.sendRef = windows_.find(message.send, bytes);
    return work;
  };
  for (std::size_t k = 0; k < ownSends.size(); ++k) {
    const Message &send = messages[ownSends[k]], &receive = messages[ownReceives[k]];
    if (send.count != receive.count || send.datatype != receive.datatype) {
      return error(koloMismatch, "rank {} sends itself {} elements of {} and receives {} of {}", rank(), send.count,
                   koloDataTypeName(send.datatype), receive.count, koloDataTypeName(receive.datatype));
    }
    Work& work = add(send);
    work.recv = static_cast<unsigned char*>(receive.recv);
  }
  const std::size_t first = gpuWorks_.size();
  for (const Message& message : messages) {
    if (message.peer == rank()) continue;
    Work& work = add(message);
    if (message.isSend) KOLO_TRY(checkWindow("sendbuf", message.send, work.sendRef));
  }
  std::map<std::pair<int, bool>, std::uint32_t> following;  // place + 1
  for (std::size_t i = gpuWorks_.size(); i > first; --i) {
    Work& work = gpuWorks_[i - 1];
    std::uint32_t& next = following[{work.peer, work.isSend}];
    work.next = std::exchange(next, static_cast<std::uint32_t>(i));
  }
  return {};
}

// Memory that was freed under a window, and perhaps allocated anew, is not what the peers have mapped.
Status Communicator::checkWindow(const char* name, const void* buffer, const device::WindowRef& ref) const {
  if (ref.index == 0) return {};
  const std::uint64_t registered = windows_.at(ref.index - 1).allocationId;
  if (registered == 0 || gpu_->allocationId(buffer) == registered) return {};
  return error(koloInvalidPointer,
               "{} is {}, in window {}, whose memory has been freed since it was registered; expected "
               "koloWindowDeregister before",
               name, fmt::ptr(buffer), ref.index - 1);
}

Status Communicator::enqueue(const std::vector<Message>& messages, const std::vector<Operation>& operations,
                             void* stream) {
  const GpuRank::Visit visit(gpu_.get());
  if (gpu_->fault().has_value()) checkGpu();
  if (failed()) return failure();
  forget();
  gpuWorks_.clear();
  KOLO_TRY(addToLaunch(messages));
  const auto messageWorks = static_cast<std::uint32_t>(gpuWorks_.size());
  for (const Operation& operation : operations) KOLO_TRY(addToLaunch(operation));
  if (Status status = launch(messageWorks, stream); !status.ok()) {
    if (failed()) return failure();
    // The others count on what this rank has not launched: without it nothing that follows would fit.
    fail({status.code(), membership_.members[static_cast<std::size_t>(rank())],
          fmt::format("rank {} could not launch operation {} of communicator {}: {}", rank(), sequence_ + 1,
                      options_.name, status.message())});
    return status;
  }
  const std::lock_guard lock(gpuMutex_);
  sequence_ += gpuWorks_.size();
  if (!gpuWorks_.empty()) now_->work = gpuWorks_.back();  // what a failure names
  return {};
}

void Communicator::checkGpu() {
  if (gpu_ == nullptr || failed()) return;
  const std::optional<Fault> fault = gpu_->fault();
  if (!fault.has_value()) {
    if (const Status broken = gpu_->broken(); !broken.ok()) {
      const std::lock_guard lock(gpuMutex_);
      fail({koloSystemError, membership_.members[static_cast<std::size_t>(rank())],
            fmt::format("device {} of rank {} failed in or before {}: {}", options_.device, rank(), label(now_->work),
                        broken.message())});
    }
    return;
  }
  const std::lock_guard lock(gpuMutex_);
  Work given;
  given.signature = Signature::unpack(fault->mine);
  given.headerCount = fault->mineCount;
  given.number = fault->number;
  if (fault->kind == Fault::kLost) lostLink_ = gpu_->lossOf(fault->peer);
  if (!failed()) (void)conclude(given, *fault);
}

}  // namespace kolo::comm
