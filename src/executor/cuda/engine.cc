#include "executor/cuda/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "device/packet_front.h"

namespace kolo::executor::cuda {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t roundUp(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Of a buffer of packets, and of all that a channel has for them: whole pages, else NICs get no file of the arena.
constexpr std::uint64_t kPacketBuffer =
    roundUp(device::packetsFor(ArenaLayout::kPacketBytes) * sizeof(device::Packet), 128);
constexpr std::uint64_t kPacketsOfChannel =
    roundUp(device::kPacketBuffers * kPacketBuffer + ArenaLayout::kPacketBytes, kPage);

unsigned residentBlocks(const ArenaLayout& layout) {
  return static_cast<unsigned>(std::min(kResidentBlocks, layout.channels));
}

}  // namespace

std::uint64_t ArenaLayout::slotsIn(int lane) const {
  return roundUp(leftIn() + 64, kPage) + static_cast<std::uint64_t>(lane) * slots * slotBytes;
}

std::uint64_t ArenaLayout::packetsIn(int channel) const {
  return slotsIn(lanes()) + static_cast<std::uint64_t>(channel) * kPacketsOfChannel;
}

void ArenaLayout::shrinkTo(std::uint64_t mostBytes) {
  constexpr std::uint32_t kLeastSlotBytes = 16 << 10;
  constexpr int kFewChannels = 2;
  while (bytes() > mostBytes && slotBytes > kLeastSlotBytes) slotBytes /= 2;
  while (bytes() > mostBytes && channels > kFewChannels) {
    channels /= 2;
    messageChannels = std::min(channels, messageChannels);
  }
}

// ---- the rank

Result<std::unique_ptr<Engine>> Engine::create(const std::shared_ptr<Gpu>& gpu, const Setup& setup) {
  std::unique_ptr<Engine> engine(new Engine(gpu, setup));
  KOLO_TRY(engine->allocate());
  return engine;
}

Status Engine::allocate() {
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  const auto ranks = static_cast<std::uint64_t>(setup_.ranks),
             channels = static_cast<std::uint64_t>(setup_.layout.channels);
  const auto allocate = [&](Lent& memory, std::uint64_t bytes) -> Status {
    KOLO_ASSIGN(memory, gpu_->lend(Lent::Where::kDevice, bytes));
    return gpu_->clear(reinterpret_cast<CUdeviceptr>(memory.as<void>()), bytes);
  };
  KOLO_TRY(allocate(links_, static_cast<std::uint64_t>(setup_.layout.lanes()) * ranks * sizeof(device::Link)));
  KOLO_TRY(allocate(channels_, channels * sizeof(ChannelState)));
  KOLO_TRY(allocate(windows_, ranks * setup_.windows * sizeof(device::WindowPart)));
  KOLO_ASSIGN(void* const control, lendPinned(sizeof(Control)));
  control_ = new (control) Control{};
  if (setup_.beforeLaunch) KOLO_TRY(allocateRings());
  KOLO_TRY(launches_.allocate());
  KOLO_TRY(lists_.allocate());
  if (!setup_.resident) return {};
  KOLO_TRY(allocate(resident_.memory, sizeof(Resident)));
  KOLO_ASSIGN(void* const places, lendPinned(kResidentPlaces * sizeof(LaunchParams)));
  resident_.places = static_cast<LaunchParams*>(places);
  KOLO_CUDA(driver, cuStreamCreate, (&resident_.stream, CU_STREAM_NON_BLOCKING));
  return {};
}

// Of the host, at the same address for the device, for as long as the engine lives.
Result<void*> Engine::lendPinned(std::uint64_t bytes) {
  KOLO_ASSIGN(Lent memory, gpu_->lend(Lent::Where::kHost, bytes));
  return pinned_.emplace_back(std::move(memory)).as<void>();
}

Status Engine::allocateRings() {
  const auto channels = static_cast<std::size_t>(setup_.layout.channels);
  KOLO_ASSIGN(void* const rings, lendPinned(channels * sizeof(device::PostRing)));
  rings_ = static_cast<device::PostRing*>(rings);
  std::vector<device::PostBox> boxes(channels);
  for (std::size_t channel = 0; channel < channels; ++channel)
    boxes[channel].ring = new (rings_ + channel) device::PostRing{};
  KOLO_ASSIGN(posts_, gpu_->lend(Lent::Where::kDevice, channels * sizeof(device::PostBox)));
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(posts_.as<void>()), boxes.data(),
                      channels * sizeof(device::PostBox));
}

Engine::~Engine() {
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  if (!launches_.hasEnded()) {
    for (Lent* const memory : {&links_, &channels_, &windows_, &posts_, &order_, &resident_.memory})
      memory->setMayStayInUse();
    for (std::vector<Lent>* const all : {&grids_, &pinned_}) {
      for (Lent& memory : *all) memory.setMayStayInUse();
    }
    lists_.setMayStayInUse();
    tables_.setMayStayInUse();
  }
  // What is large stays for kernels that may run, and not for graphs: these go before their communicator, and their
  // last replay has ended.
  if (mayRunUnseen()) {
    scratch_.setMayStayInUse();
    for (Lent& memory : outgrown_) memory.setMayStayInUse();
  }
  if (control_ != nullptr) device::storeRelease(control_->quit, 1);  // [quit]
  if (resident_.stream != nullptr) {
    (void)driver.cuStreamSynchronize(resident_.stream);
    (void)driver.cuStreamDestroy(resident_.stream);
  }
}

Status Engine::connect(std::span<const Pair> pairs) {
  const ArenaLayout& layout = setup_.layout;
  std::vector<device::Link> links(static_cast<std::size_t>(layout.lanes()) * static_cast<std::size_t>(setup_.ranks));
  for (int lane = 0; lane < layout.lanes(); ++lane) {
    for (int peer = 0; peer < setup_.ranks; ++peer) {
      if (peer == setup_.rank) continue;
      const Pair& pair = pairs[static_cast<std::size_t>(peer)];
      device::Link& link = links[static_cast<std::size_t>(lane) * static_cast<std::size_t>(setup_.ranks) +
                                 static_cast<std::size_t>(peer)];
      link.peer = peer;
      link.inbox = reinterpret_cast<device::Mailbox*>(pair.mine + layout.mailboxIn(lane));
      link.inSlots = pair.mine + layout.slotsIn(lane);
      link.outbox = reinterpret_cast<device::Mailbox*>(pair.theirs + layout.mailboxIn(lane));
      link.outSlots = pair.theirs + layout.slotsIn(lane);
      if (lane < layout.channels && !pair.isPosted) {
        unsigned char* const mine = pair.mine + layout.packetsIn(lane);
        unsigned char* const theirs = pair.theirs + layout.packetsIn(lane);
        for (std::uint64_t i = 0; i < device::kPacketBuffers; ++i) {
          link.packets.in[i] = reinterpret_cast<const device::Packet*>(mine + i * kPacketBuffer);
          link.packets.out[i] = reinterpret_cast<device::Packet*>(theirs + i * kPacketBuffer);
        }
        link.packets.unpacked = mine + device::kPacketBuffers * kPacketBuffer;
      }
      link.isPosted = pair.isPosted;
      link.railMask = pair.rails - 1;
      link.mirror = pair.isPosted ? pair.theirs : nullptr;
      link.marks.left = reinterpret_cast<const device::Counter*>(pair.left);
      if (!pair.isPosted) {  // what is posted comes out of mirrors, not out of the peer's buffers
        link.marks.gaveUp = reinterpret_cast<const device::Counter*>(pair.mine + layout.gaveUpIn());
        link.marks.gaveUpThere = reinterpret_cast<device::Counter*>(pair.theirs + layout.gaveUpIn());
      }
      link.windows = windows_.as<device::WindowPart>() + static_cast<std::uint64_t>(peer) * setup_.windows;
    }
  }
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(links_.as<void>()), links.data(),
                      links.size() * sizeof(device::Link));
}

Status Engine::setWindow(int rank, std::uint32_t index, const device::WindowPart& part) {
  device::WindowPart* const place =
      windows_.as<device::WindowPart>() + static_cast<std::uint64_t>(rank) * setup_.windows + index;
  KOLO_TRY(drain());  // what runs may still use the window that was in this place
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(place), &part, sizeof part);
}

Status Engine::reserveScratch(std::uint64_t bytes) {
  if (bytes <= scratch_.bytes()) return {};
  KOLO_ASSIGN(Lent larger, gpu_->lend(Lent::Where::kMapped, bytes));
  outgrown_.push_back(std::exchange(scratch_, std::move(larger)));
  return {};
}

void Engine::complete(device::Work& work, bool isMessage) const {
  work.channel.links = links_.as<device::Link>() + (isMessage ? setup_.layout.channels * setup_.ranks : 0);
  work.channel.slots = setup_.layout.slots;
  work.channel.slotBytes = setup_.layout.slotBytes;
  work.channel.scratch = scratch_.as();
}

Status Engine::checkStream(CUstream stream) const {
  const drivers::CudaDriver& driver = gpu_->driver();
  const bool isDefault = stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (isDefault && setup_.sharesContext) {
    return error(koloInvalidUsage,
                 "a default stream on device {}, which ranks share: their kernels wait for each other and a default "
                 "stream may run them one after the other; expected a stream of each rank's own, made with "
                 "cudaStreamNonBlocking",
                 gpu_->ordinal());
  }
  if (isDefault) return {};
  KOLO_ASSIGN(const CUcontext context, gpu_->contextOf(stream));
  if (context == gpu_->context()) return {};
  CUdevice device = -1;
  if (driver.cuCtxPushCurrent(context) == CUDA_SUCCESS) {
    (void)driver.cuCtxGetDevice(&device);
    (void)driver.cuCtxPopCurrent(nullptr);
  }
  return error(koloInvalidArgument,
               "the stream belongs to {} of device {}: expected a stream of the primary context of device {}, which "
               "this communicator uses",
               device == gpu_->ordinal() ? "another context" : "a context", device, gpu_->ordinal());
}

// The launch, but for its order; the list that it needs, if any: for more operations than `mostInline`, or arrays.
Status Engine::describe(std::span<device::Work> works, std::uint32_t messages, std::uint64_t timeoutNs,
                        std::size_t mostInline, LaunchParams& params, Lists::List** list) {
  params.control = control_;
  params.channels = channels_.as<ChannelState>();
  params.posts = posts_.as<device::PostBox>();
  params.timeoutNs = timeoutNs;
  params.apart = nullptr;
  params.count = static_cast<std::uint32_t>(works.size());
  params.messages = messages;
  params.messageChannels = static_cast<std::uint32_t>(setup_.layout.messageChannels);
  std::uint64_t bytes = works.size_bytes();
  for (std::size_t i = 0; i < works.size(); ++i) {
    complete(works[i], i < messages);
    bytes += Lists::arrayBytes(works[i]);
  }
  *list = nullptr;
  if (works.size() <= mostInline && bytes == works.size_bytes()) {
    std::copy(works.begin(), works.end(), params.works);
    return {};
  }
  KOLO_ASSIGN(*list, lists_.take(bytes));
  params.apart = (*list)->works();
  return lists_.put(works, bytes, **list);
}

// ---- lists of items

Status Engine::place(device::Work& work, std::uint64_t edgesAt, std::shared_ptr<Table>& table) {
  if (table == nullptr) {
    KOLO_ASSIGN(table, tables_.make(work, edgesAt, launches_.lastEnded()));
  }
  Tables::use(*table, work);
  return {};
}

// The launch that is being made reads the tables of its lists.
Status Engine::hold(const HeldTables& tables, const LaunchOrder::Capture& capture) {
  for (const std::shared_ptr<Table>& table : tables) {
    if (capture.active) KOLO_TRY(tables_.keepForGraph(*table, capture.id, capture.graph));
    else table->lastLaunch = launches_.next();
  }
  return {};
}

Status Engine::enqueue(std::span<device::Work> works, std::uint32_t messages, const HeldTables& tables,
                       std::uint64_t timeoutNs, CUstream stream) {
  if (works.empty()) return {};
  const Gpu::Visit visit(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  KOLO_ASSIGN(const LaunchOrder::Capture capture, launches_.captureOf(stream));
  LaunchParams params;
  Lists::List* list = nullptr;
  const bool overLists = !tables.empty();
  KOLO_TRY(describe(works, messages, timeoutNs, overLists ? kFewWorks : kInlineWorks, params, &list));
  unsigned blocks = 0;
  for (const device::Work& work : works) blocks = std::max(blocks, static_cast<unsigned>(work.channel.count));
  if (list != nullptr && capture.active) KOLO_TRY(lists_.keepForGraph(*list, capture.graph));
  KOLO_TRY(hold(tables, capture));

  if (!capture.active) KOLO_TRY(launches_.awaitMilestone(control_->stop));
  const bool staysResident = !overLists && goesToResident(params, blocks, capture, stream);
  if (setup_.beforeLaunch) setup_.beforeLaunch(staysResident ? residentBlocks(setup_.layout) : blocks, capture.active);
  KOLO_TRY(launches_.begin(stream, capture));
  if (staysResident) {
    KOLO_TRY(ring(params, stream));
  } else if (overLists) {
    KOLO_TRY(gpu_->launchLists(params, blocks, stream));
  } else {
    KOLO_TRY(gpu_->launch(params, blocks, stream));
  }
  KOLO_TRY(launches_.end(stream, capture));
  if (list != nullptr && !capture.active) KOLO_CUDA(driver, cuEventRecord, (list->used, stream));
  return {};
}

// ---- the resident kernel; see resident.h for the agreement

bool Engine::goesToResident(const LaunchParams& params, unsigned blocks, const LaunchOrder::Capture& capture,
                            CUstream stream) const {
  if (!setup_.resident || capture.active || params.apart != nullptr) return false;
  if (blocks > residentBlocks(setup_.layout)) return false;
  if (resident_.given - device::loadAcquire(control_->completed) >= kResidentPlaces)
    return false;  // [completed] no place is free
  const Result<unsigned> flags = gpu_->flagsOf(stream);
  if (!flags.ok() || (flags.value() & CU_STREAM_NON_BLOCKING) == 0)
    return false;  // it would wait for the default stream
  // The ring has its place in the stream, so the kernel begins the launch after what stands before it, and what comes
  // after the launch waits for its end (ring()). But from now on until the ring the kernel stays, in its place on the
  // device, and what stands before may need the whole device, or wait for this thread: then neither goes on. Nobody
  // tells what is in a stream, so it is one of two:
  // - the program has said that what stands before can run beside the kernel. In the stream of the last launch that is
  //   all: launches are one after the other there. In another stream the ring would stand behind the last launch too,
  //   of which no such thing was said;
  //   So it is where a graph may have launched last, in whatever stream, until the graphs are gone;
  if (setup_.residentFollows && launches_.isInOrder(capture)) return true;
  // - nothing stands before it: the stream has nothing to do, and nothing to wait for in another one.
  const Gpu::Current current(*gpu_);
  const drivers::CudaDriver& driver = gpu_->driver();
  return driver.cuStreamQuery(stream) == CUDA_SUCCESS && (launches_.isInOrder(capture) || launches_.isOver());
}

Status Engine::ring(const LaunchParams& params, CUstream stream) {
  const drivers::CudaDriver& driver = gpu_->driver();
  auto* const resident = resident_.memory.as<Resident>();
  const std::uint64_t number = ++resident_.given;
  LaunchParams& place = resident_.places[number % kResidentPlaces];
  static_cast<LaunchHead&>(place) = params;
  std::copy_n(params.works, params.count, place.works);
  device::storeRelease(control_->enqueued, number);  // [enqueued]
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool opens = device::loadAcquire(control_->asleep) >= resident_.instances;  // [asleep]
  // The ring first: where a launch returns when the kernel has ended, what is rung for behind it would never be done.
  // The wait last: what waits in a queue of the hardware holds up what comes behind it.
  KOLO_CUDA(driver, cuStreamWriteValue64,
            (stream, reinterpret_cast<CUdeviceptr>(&resident->rung.value), ringOf(number, opens),
             CU_STREAM_WRITE_VALUE_DEFAULT));
  if (opens) {
    const ServeParams serve{.control = control_,
                            .channels = channels_.as<ChannelState>(),
                            .resident = resident,
                            .places = resident_.places,
                            .instance = ++resident_.instances,
                            .first = number,
                            .idleNs = setup_.idleNs};
    KOLO_TRY(gpu_->launchResident(serve, residentBlocks(setup_.layout), resident_.stream));
  }
  KOLO_CUDA(driver, cuStreamWaitValue64,
            (stream, reinterpret_cast<CUdeviceptr>(&resident->done.value), number, CU_STREAM_WAIT_VALUE_GEQ));
  return {};
}

// ---- failure

std::optional<device::Fault> Engine::fault() const {
  if (device::loadAcquire(control_->faults) == 0) return std::nullopt;  // [fault]
  return control_->fault;
}

void Engine::stop() { device::storeRelease(control_->stop, 1); }  // [stop]

}  // namespace kolo::executor::cuda
