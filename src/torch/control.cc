// What a group does beside moving data: it begins, ends, fails, and makes other groups.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "torch/backend.h"
#include "torch/signals.h"

namespace kolo::pytorch {
namespace {

constexpr char kOnHost[] = "kolo/host";

}  // namespace

KoloBackend::KoloBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<Options> options, const Kin& kin)
    : Backend(rank, size), options_(std::move(options)), store_(store),
      host_(Communicator::meet(membership(kin), kOnHost, KOLO_HOST)) {
  if (options_->settings.windows) windows_.emplace();
}

KoloBackend::KoloBackend(std::shared_ptr<Communicator> host, const c10::intrusive_ptr<c10d::Store>& store,
                         c10::intrusive_ptr<Options> options)
    : Backend(host->rank(), host->size()), options_(std::move(options)), store_(store), host_(std::move(host)) {
  if (options_->settings.windows) windows_.emplace();
}

KoloBackend::~KoloBackend() {
  end();
  signals::endWaitQuietly();
}

Membership KoloBackend::membership(Kin kin) const {
  return {store_,
          rank_,
          size_,
          options_->timeout,
          options_->group_name.empty() ? "kolo" : options_->group_name,
          options_->settings,
          std::move(kin)};
}

Communicator& KoloBackend::communicator(at::Device device) {
  if (device.is_cpu()) [[likely]]
    return *host_;
  TORCH_CHECK_VALUE(device.is_cuda(), "kolo takes tensors on cpu and cuda, got one on ", device.str());
  (void)host_->get();  // which throws after the end of the group
  {
    const std::lock_guard lock(mutex_);
    if (gpu_ == nullptr) {
      Kin kin{host_, std::vector<int>(static_cast<std::size_t>(size_)), "its communicator on the host"};
      std::iota(kin.ranks.begin(), kin.ranks.end(), 0);
      gpu_ = Gpu::make(membership(std::move(kin)), device);
    }
  }
  return gpu_->communicator(device);  // may wait for all ranks; abort() does not wait for that
}

WorkPtr KoloBackend::runOnGpu(Operation&& operation, bool asyncOp, Milliseconds timeout, const Call& call) {
  const Deadline limit(timeout, communicator(operation.device));
  return gpu_->run(std::move(operation), asyncOp, Facts{rank_, getSequenceNumberForGroup(), timeout}, call);
}

void KoloBackend::eagerConnectSingleDevice(at::Device device) { (void)communicator(device); }

// A child's members meet by its own store; ranks that are not among them have nothing to do.
c10::intrusive_ptr<c10d::Backend> KoloBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  if (found == ranks.end()) return nullptr;
  auto childs = c10::make_intrusive<Options>(*options_);
  if (options != nullptr) {
    childs->timeout = options->timeout;
    childs->group_name = options->group_name;
    if (const auto own = c10::dynamic_intrusive_pointer_cast<Options>(options)) childs->settings = own->settings;
  }
  childs->global_ranks_in_group.clear();
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    const auto& global = options_->global_ranks_in_group;
    childs->global_ranks_in_group.push_back(at < global.size() ? global[at] : static_cast<std::uint64_t>(rank));
  }
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("kolo/" + childs->group_name, store);
  const Membership member{prefixed,
                          static_cast<int>(found - ranks.begin()),
                          static_cast<int>(ranks.size()),
                          childs->timeout,
                          childs->group_name,
                          childs->settings,
                          {host_, ranks, "the group that is split"}};
  return c10::make_intrusive<KoloBackend>(Communicator::meet(member, kOnHost, KOLO_HOST), prefixed, std::move(childs));
}

c10::intrusive_ptr<c10d::Backend> KoloBackend::shrink(const std::vector<std::int64_t>& excluded, int /*flags*/,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  auto childs = c10::make_intrusive<Options>(*options_);
  if (options != nullptr) {
    childs->timeout = options->timeout;
    if (const auto own = c10::dynamic_intrusive_pointer_cast<Options>(options)) childs->settings = own->settings;
  }
  childs->group_name = membership().name + ":shrunk";
  Membership member = membership();
  member.timeout = childs->timeout;
  member.name = childs->group_name;
  member.settings = childs->settings;
  std::shared_ptr<Communicator> host = host_->shrink({excluded.begin(), excluded.end()}, member);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("kolo/" + host->token(), store_);
  return c10::make_intrusive<KoloBackend>(std::move(host), store, std::move(childs));
}

void KoloBackend::abort() {
  host_->abort();
  const std::lock_guard lock(mutex_);
  if (gpu_ != nullptr) gpu_->end(true);
}

void KoloBackend::shutdown() {
  end();
  signals::endWait();
}

void KoloBackend::end() {
  {
    const std::lock_guard lock(mutex_);
    if (gpu_ != nullptr) gpu_->end(false);
  }
  host_->end();
}

c10d::ErrorType KoloBackend::getError() {
  koloResult_t failure = host_->failure();
  {
    const std::lock_guard lock(mutex_);
    if (failure == koloSuccess && gpu_ != nullptr) failure = gpu_->failure();
  }
  switch (failure) {
    case koloSuccess: return c10d::ErrorType::SUCCESS;
    case koloTimeout: return c10d::ErrorType::TIMEOUT;
    case koloRemoteError: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

// Memory for tensors on the CPU, whose device has no index or 0. Without windows there is nothing to be gained by it.
// A device of another kind may have the index 0, too: it gets torch's own memory.
bool KoloBackend::supportsTensorAlloc(c10::DeviceIndex device) { return windows_.has_value() && device <= 0; }

at::Tensor KoloBackend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) return at::empty({size}, options);
  const auto bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  void* const block = Pool::ofProcess().take(bytes);
  TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "kolo has no memory for ", bytes,
                   " bytes: ", koloGetLastError(nullptr));
  return at::from_blob(
      block, {size}, [](void* pointer) { Pool::ofProcess().give(pointer); }, options);
}

// Calls are only noted until the end. After an exception between the two, c10d does not come to the end: the calls of
// this thread are noted, and dropped, until its next batch, as torch itself then adds them to a list that nobody ends.
void KoloBackend::startCoalescing() {
  coalesced_.clear();
  coalescer_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

WorkPtr KoloBackend::defer(Operation&& operation, Milliseconds timeout, Call call) {
  auto kept = std::make_unique<Operation>(std::move(operation));
  coalesced_.push_back({std::move(kept), std::move(call), deadline(timeout)});
  return nullptr;
}

WorkPtr KoloBackend::endCoalescing() {
  coalescer_.store({}, std::memory_order_relaxed);
  std::vector<Coalesced> taken = std::move(coalesced_);
  coalesced_.clear();
  if (taken.empty()) return nullptr;
  const at::Device device = taken.front().operation->device;
  Operation all("kolo:coalesced", c10d::OpType::COALESCED, device, true);
  std::vector<std::pair<Operation*, Call>> calls;
  Milliseconds soonest = taken.front().timeout;
  for (Coalesced& each : taken) {
    soonest = std::min(soonest, each.timeout);
    all.outputs.insert(all.outputs.end(), each.operation->outputs.begin(), each.operation->outputs.end());
    calls.emplace_back(each.operation.get(), std::move(each.call));
    all.parts.push_back(std::move(each.operation));
  }
  return run(std::move(all), true, soonest, [calls = std::move(calls)](const Place& at, Operation&) {
    return startGroup(at, [&](const Place& inside) {
      for (const auto& [operation, call] : calls) (void)call(inside, *operation);
    });
  });
}

WorkPtr KoloBackend::barrier(const c10d::BarrierOptions& options) {
  const at::Device device = options.device && options.device->is_cuda() ? *options.device : at::Device(at::kCPU);
  Operation operation("kolo:barrier", c10d::OpType::BARRIER, device, lasts(options.asyncOp, device));
  return run(std::move(operation), options.asyncOp, options.timeout,
             [](const Place& at, Operation&) { return start(at, koloBarrier, koloIbarrier); });
}

}  // namespace kolo::pytorch
