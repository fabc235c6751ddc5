#include "comm/gpu_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/datatypes.h"
#include "base/settings.h"
#include "collectives/call_log.h"
#include "comm/in_turn.h"
#include "device/segment_moves.h"

namespace kolo::comm {

using device::Collective;
using device::Fault;
using device::Signature;
using device::Work;

namespace {

// A message in a window of the sender's from this many bytes on is taken by the receiver; below, a slot costs less than
// the answer.
constexpr std::uint64_t kDirectMessageBytes = 16384;
// Tables of lists are memory of the device. After so many bytes of them operations are prepared anew, and their old
// tables are free for others.
constexpr std::uint64_t kMostTableBytes = 64 << 20;

// On GPUs other links make hosts of the ranks than in the host's memory: transports may be chosen such that only GPUs
// are mapped.
Status arrange(Communicator& owner, const gpu::GpuRank& rank, std::vector<planner::Uplink> uplinks) {
  planner::Machine& machine = owner.planning().machine();
  machine = rank.machine();
  const std::vector<int>& axes = owner.options().mesh;
  if (machine.mapped && axes.empty()) return {};
  std::vector<topology::Place> places;
  for (const int leader : rank.leaders()) places.push_back({.host = leader});
  const auto lend = [&](algorithms::GridOf which, const Grid& grid) {
    return rank.engine().lendGrid(grid.shape, owner.planning().site().grids[static_cast<int>(which)]);
  };
  Status given;
  if (!machine.mapped) {
    for (std::size_t i = 0; i < uplinks.size(); ++i) uplinks[i].host = rank.leaders()[i];
    planner::useUplinks(uplinks, machine);
    Hosts& hosts = owner.planning().hosts();
    hosts.arrange(places, owner.rank(), machine);
    if (machine.perHost > 1) given = lend(algorithms::GridOf::kHosts, hosts.grid);
    if (given.ok() && !hosts.order.empty()) given = rank.engine().setOrder(hosts.order);
  }
  owner.planning().mesh().arrangeMesh(axes, places, owner.rank(), machine);
  if (given.ok() && !axes.empty()) given = lend(algorithms::GridOf::kMesh, owner.planning().mesh());
  return owner.membership().agree(given);
}

}  // namespace

Result<std::unique_ptr<Backend>> makeGpuBackend(Communicator& owner, const std::vector<planner::Uplink>& uplinks,
                                                const std::string& nics) {
  const Options& options = owner.options();
  const gpu::GpuRank::Wishes wishes{
      .device = options.device,
      .mostChannels = static_cast<int>(settings::integer("KOLO_GPU_CHANNELS")),
      .resident = options.resident,
      .idleNs = static_cast<std::uint64_t>(settings::integer("KOLO_TEST_RESIDENT_IDLE_US")) * 1000,
      .transports = options.transports,
      .nearNics = nics,
      .onFault = [&owner] { owner.backend().check(); }};  // a fault is of a launch, which the backend has made
  KOLO_ASSIGN(std::unique_ptr<gpu::GpuRank> rank, gpu::GpuRank::connect(owner.membership(), wishes));
  KOLO_TRY(arrange(owner, *rank, uplinks));
  return std::unique_ptr<Backend>(std::make_unique<GpuBackend>(owner, std::move(rank)));
}

GpuBackend::GpuBackend(Communicator& owner, std::unique_ptr<gpu::GpuRank> rank)
    : owner_(owner), rank_(std::move(rank)) {
  collectives::Site& site = owner_.planning().site();
  site.copies.singleCopyBytes = UINT64_MAX;
  site.copies.canReadPeers = false;
  // Each chunk is a call of functions that save registers for their callers, so chunks fill the slots.
  site.mostChunkBytes = owner_.planning().machine().slotBytes;
  site.members = rank_->engine().order();
  owner_.planning().checkEachCall();
}

Status GpuBackend::runAgain() { return run(owner_.planning().recalled(), nullptr); }

Status GpuBackend::runMessages(Held<Communicator>& communicator, std::span<const Message> messages, void* stream) {
  std::optional<InTurn> served;
  if (!communicator.isInside()) served.emplace(owner_.turn());  // else it is the caller's already
  return runGroup(messages, {}, stream);
}

Status GpuBackend::runMessagesAt(std::uint64_t place, std::span<const Message> messages, void* stream) {
  return atStreamPlace(owner_, place, [&](Communicator&) { return runGroup(messages, {}, stream); });
}

// Asks the control plane for what all ranks say: collectives take no host memory.
Result<std::vector<std::string>> GpuBackend::hearAll(std::string_view mine) {
  check();
  if (owner_.failed()) return owner_.failure();
  Membership& membership = owner_.membership();
  Result<std::vector<std::string>> words = membership.allGather(mine);
  if (!words.ok())
    owner_.failureState().fail({words.status().code(), membership.jobRank(owner_.rank()), words.status().message()});
  return words;
}

Status GpuBackend::tell(int root, void* value, std::size_t bytes) {
  const bool isRoot = owner_.rank() == root;
  KOLO_ASSIGN(const std::vector<std::string> words,
              hearAll(isRoot ? std::string_view(static_cast<const char*>(value), bytes) : std::string_view()));
  const std::string& said = words[static_cast<std::size_t>(root)];
  if (said.size() != bytes)
    return error(koloMismatch, "rank {} is not the root of its call: expected the same root on all ranks", root);
  std::memcpy(value, said.data(), bytes);
  return {};
}

Status GpuBackend::reduceWords(std::span<std::uint64_t> words, koloRedOp_t op) {
  KOLO_ASSIGN(const std::vector<std::string> said,
              hearAll({reinterpret_cast<const char*>(words.data()), words.size_bytes()}));
  for (const std::string& theirs : said) {
    links::BlobReader reader(theirs);
    for (std::uint64_t& word : words) {
      const auto their = reader.get<std::uint64_t>();
      word = op == koloMax ? std::max(word, their) : word | their;
    }
  }
  return {};
}

Status GpuBackend::checkRequest() const {
  return error(koloUnsupported,
               "communicator {} is on GPUs, where calls do not wait anyway: expected one on host memory, or the form "
               "of the call that gives no request",
               owner_.options().name);
}

Status GpuBackend::checkStream(void* stream, bool isOwn) const {
  if (!isOwn) return rank_->engine().checkStream(static_cast<CUstream>(stream));
  return error(koloInvalidHandle,
               "the stream came from koloStreamCreate: expected a cudaStream_t, as the communicator is on GPUs");
}

Status GpuBackend::checkMessage(const Message& message) const {
  const bool anyAllowed = !message.isSend && !message.strict;
  if (!anyAllowed && message.tag == 0) return {};
  return error(koloUnsupported,
               "messages between GPUs have no tags: those of two ranks match in their order; expected koloSend and "
               "koloRecv");
}

Status GpuBackend::settle() {
  Status drained = rank_->engine().drain();
  check();
  return owner_.failed() ? owner_.failure() : std::move(drained);
}

// ---- windows

Result<Window*> GpuBackend::addWindow(void* buffer, std::size_t bytes) {
  owner_.planning().forget();
  Windows& windows = owner_.windows();
  KOLO_ASSIGN(Window* const window, windows.add(owner_.membership(), rank_->peers(), buffer, bytes));
  Status status;
  for (int rank = 0; rank < owner_.ranks() && status.ok() && window->zeroCopy; ++rank) {
    status = rank_->engine().setWindow(rank, window->index, windows.tableOf(rank)[window->index]);
  }
  const std::uint64_t begin = rank_->allocationId(buffer);
  // Of several allocations in a row, each has its own.
  const bool isOne = bytes != 0 && rank_->allocationId(static_cast<unsigned char*>(buffer) + bytes - 1) == begin;
  window->allocationId = isOne ? begin : 0;
  if (status = owner_.membership().agree(status); !status.ok()) {
    windows.drop(*window);
    return status;
  }
  return window;
}

Result<Window*> GpuBackend::addMappedWindow(void* const*, const std::size_t*) {
  return error(koloUnsupported, "the communicator is on GPUs, expected one on the host");
}

// ---- launches

Status GpuBackend::addToLaunch(const Operation& operation) {
  KOLO_TRY(collectives::checkFold(operation, owner_.planning().choices(), owner_.ranks()));
  if (operation.custom != nullptr && !operation.custom->isPreMulSum) {
    return error(koloUnsupported,
                 "a reduction by a function of the host's: a GPU cannot call it; expected a predefined operation or "
                 "a pre-multiplied sum");
  }
  if (operation.custom != nullptr || !owner_.planning().operations().recall(operation)) {
    collectives::prepare(owner_.planning().site(), owner_.planning().choices(), operation,
                         owner_.planning().operations().make());
    if (operation.custom == nullptr) owner_.planning().operations().remember(operation);
  }
  collectives::logCall(operation, owner_.planning().operations().current(), std::nullopt);
  Work& work = works_.emplace_back(owner_.planning().operations().current().work);
  counts_.push_back(owner_.planning().operations().current().counts);
  // Before the launch, for its kernels may find at once that the ranks differ.
  if (operation.list != nullptr) owner_.callTerms().note(owner_.boards().lastNumber() + counts_.size(), operation.list);
  KOLO_TRY(checkWindow("sendbuf", operation.send, work.sendRef));
  KOLO_TRY(checkWindow("recvbuf", operation.recv, work.recvRef));
  // Of each channel's part, and what cutting at multiples of 64 bytes adds for each rank's block.
  const std::uint64_t scratch = owner_.planning().operations().current().scratchBytes;
  const auto channels = static_cast<std::uint64_t>(work.channel.count);
  if (scratch != 0)
    work.channel.scratchBytes =
        (scratch / channels + 128 * static_cast<std::uint64_t>(owner_.ranks()) + 127) / 128 * 128;
  return operation.list != nullptr ? addList(owner_.planning().operations().current(), work) : Status();
}

// The segments of the list, in the device's memory; and each channel's edges, behind its scratch memory.
Status GpuBackend::addList(collectives::Prepared& prepared, Work& work) {
  const std::uint64_t edgesAt = work.channel.scratchBytes;
  work.channel.scratchBytes += device::kEdges * device::kEdgeBytes;
  if (prepared.table == nullptr) tableBytes_ += work.segments->bytes;
  KOLO_TRY(rank_->engine().place(work, edgesAt, prepared.table));
  tables_.push_back(prepared.table);
  if (tableBytes_ > kMostTableBytes) {
    owner_.planning().forget();
    tableBytes_ = 0;
  }
  return {};
}

// The launch that has been described; scratch memory for it first.
Status GpuBackend::launch(std::uint32_t messages, void* stream) {
  std::uint64_t scratch = 0;
  for (std::size_t i = 0; i < works_.size(); ++i) {
    Work& work = works_[i];
    scratch = std::max(scratch, static_cast<std::uint64_t>(work.channel.count) * work.channel.scratchBytes);
    // Messages are no operations of all ranks: they have the number of the next one.
    work.header.number = owner_.boards().lastNumber() + 1 + (i < messages ? 0 : i - messages);
  }
  KOLO_TRY(rank_->engine().reserveScratch(scratch));
  const std::uint64_t timeoutNs = static_cast<std::uint64_t>(owner_.options().timeoutMs) * 1'000'000u;
  return rank_->engine().enqueue(works_, messages, tables_, timeoutNs, static_cast<CUstream>(stream));
}

Work& GpuBackend::add(const Message& message) {
  Work& work = works_.emplace_back();
  work.signature.collective = Collective::kSendRecv;
  work.signature.datatype = static_cast<std::uint8_t>(message.datatype);
  work.signature.op = Signature::kNoOp;
  work.header.word = work.signature.pack();
  work.elementBytes = static_cast<std::uint32_t>(elementBytes(message.datatype));
  work.rank = owner_.rank();
  work.ranks = owner_.ranks();
  work.messageEnd.peer = message.peer;
  work.messageEnd.isSend = message.isSend;
  work.header.count = work.sendLayout.count = message.count;
  const std::uint64_t bytes = message.count * work.elementBytes;
  work.channel.count = static_cast<int>(std::clamp<std::uint64_t>(
      bytes / planner::kLeastPartBytes, 1, static_cast<std::uint64_t>(rank_->messageChannels())));
  work.channel.chunkBytes = owner_.planning().machine().slotBytes;
  work.streaming = bytes >= owner_.planning().site().streamingBytes;
  work.send = static_cast<const unsigned char*>(message.send);
  work.recv = static_cast<unsigned char*>(message.recv);
  if (message.isSend && bytes >= kDirectMessageBytes) work.sendRef = owner_.windows().find(message.send, bytes);
  return work;
}

// The k-th send of a rank to itself and its k-th receive from itself become one work. The other messages are chained,
// peer by peer, in order.
Status GpuBackend::addToLaunch(std::span<const Message> messages) {
  std::vector<std::size_t> ownSends, ownReceives;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].peer == owner_.rank()) (messages[i].isSend ? ownSends : ownReceives).push_back(i);
  }
  if (ownSends.size() != ownReceives.size()) {
    return error(
        koloInvalidUsage,
        "{} sends of rank {} to itself and {} receives in one call or group: on a GPU expected as many of each",
        ownSends.size(), owner_.rank(), ownReceives.size());
  }
  for (std::size_t k = 0; k < ownSends.size(); ++k) {
    const Message &send = messages[ownSends[k]], &receive = messages[ownReceives[k]];
    if (send.count != receive.count || send.datatype != receive.datatype) {
      return error(koloMismatch, "rank {} sends itself {} elements of {} and receives {} of {}", owner_.rank(),
                   send.count, koloDataTypeName(send.datatype), receive.count, koloDataTypeName(receive.datatype));
    }
    Work& work = add(send);
    work.recv = static_cast<unsigned char*>(receive.recv);
  }
  const std::size_t first = works_.size();
  for (const Message& message : messages) {
    if (message.peer == owner_.rank()) continue;
    Work& work = add(message);
    if (message.isSend) KOLO_TRY(checkWindow("sendbuf", message.send, work.sendRef));
  }
  std::map<std::pair<int, bool>, std::uint32_t> following;  // place + 1
  for (std::size_t i = works_.size(); i > first; --i) {
    Work& work = works_[i - 1];
    std::uint32_t& next = following[{work.messageEnd.peer, work.messageEnd.isSend}];
    work.messageEnd.next = std::exchange(next, static_cast<std::uint32_t>(i));
  }
  return {};
}

// Memory that was freed under a window, and perhaps allocated anew, is not what the peers have mapped.
Status GpuBackend::checkWindow(const char* name, const void* buffer, const device::WindowRef& ref) const {
  if (ref.index == 0) return {};
  const std::uint64_t registered = owner_.windows().at(ref.index - 1).allocationId;
  if (registered == 0 || rank_->allocationId(buffer) == registered) return {};
  return error(koloInvalidPointer,
               "{} is {}, in window {}, whose memory has been freed since it was registered; expected "
               "koloWindowDeregister before",
               name, fmt::ptr(buffer), ref.index - 1);
}

Status GpuBackend::enqueue(std::span<const Message> messages, std::span<const Operation> operations, void* stream) {
  const Visit visit(*this);
  if (rank_->fault().has_value()) check();
  if (owner_.failed()) return owner_.failure();
  works_.clear();
  counts_.clear();
  tables_.clear();
  KOLO_TRY(addToLaunch(messages));
  const auto messageWorks = static_cast<std::uint32_t>(works_.size());
  for (const Operation& operation : operations) KOLO_TRY(addToLaunch(operation));
  if (Status status = launch(messageWorks, stream); !status.ok()) {
    if (owner_.failed()) return owner_.failure();
    // The others count on what this rank has not launched: without it nothing that follows would fit.
    owner_.failureState().fail(
        {status.code(), owner_.membership().jobRank(owner_.rank()),
         fmt::format("rank {} could not launch operation {} of communicator {}: {}", owner_.rank(),
                     owner_.boards().lastNumber() + 1, owner_.options().name, status.message())});
    return status;
  }
  const std::lock_guard lock(mutex_);
  owner_.boards().takeNumbers(counts_.size());
  if (!works_.empty()) last_ = works_.back();
  return {};
}

void GpuBackend::check() {
  if (owner_.failed()) return;
  const std::optional<Fault> fault = rank_->fault();
  if (!fault.has_value()) {
    if (const Status broken = rank_->engine().broken(); !broken.ok()) {
      const std::lock_guard lock(mutex_);
      owner_.failureState().fail(
          {koloSystemError, owner_.membership().jobRank(owner_.rank()),
           fmt::format("device {} of rank {} failed in or before {}: {}", owner_.options().device, owner_.rank(),
                       owner_.conclusions().label(last_), broken.message())});
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  Work given;
  given.signature = Signature::unpack(fault->mine);
  given.header.count = fault->mineCount;
  given.header.number = fault->number;
  if (fault->kind == Fault::kLost) owner_.conclusions().reasons().noteLostLink(fault->peer, rank_->lossOf(fault->peer));
  if (!owner_.failed()) (void)owner_.conclusions().of(given, *fault);
}

}  // namespace kolo::comm
