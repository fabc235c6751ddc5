// Operations on tensors of a CUDA device. Never run so far: it has been compiled only, for want of a GPU.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>

#include "torch/errors.h"
#include "torch/gpu.h"

namespace kolo::pytorch {
namespace {

using c10::cuda::CUDAStream;

// A CUDA operation is over for its caller when the caller's stream waits for it. A failure belongs to the communicator,
// and so to all its works; a caller that asks or waits before it happens does not see it.
class GpuWork final : public c10d::Work {
 public:
  GpuWork(const Facts& facts, const char* title, c10d::OpType type, std::vector<at::Tensor> outputs, CUDAStream stream,
          std::shared_ptr<Communicator> communicator)
      : Work(facts.rank, type), facts_(facts), title_(title), outputs_(std::move(outputs)), stream_(stream),
        communicator_(std::move(communicator)) {
    end_.record(stream_);
  }

  bool isCompleted() override { return end_.query() || !isSuccess(); }
  bool isSuccess() const override { return communicator_->failure() == koloSuccess; }
  std::exception_ptr exception() const override {
    const koloResult_t failure = communicator_->failure();
    return failure == koloSuccess ? nullptr : exceptionFor(failure, title_, koloGetLastError(communicator_->get()));
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override { end_.block(c10::cuda::getCurrentCUDAStream(stream_.device_index())); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (retrieveOpType() == c10d::OpType::BARRIER) end_.synchronize();
    if (const std::exception_ptr failure = exception()) std::rethrow_exception(failure);
    return true;
  }
  void blockCurrentStream() override { synchronize(); }
  std::uint64_t getSequencenumber() const override { return facts_.sequence; }
  std::chrono::milliseconds getTimeout() const override { return facts_.timeout; }

  // Completed from the beginning: code that uses its value on a stream makes that wait for the operation.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr) {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         std::vector<c10::Device>{stream_.device()});
      future_->markCompleted(c10::IValue(outputs_));
    }
    return future_;
  }

 private:
  const Facts facts_;
  const char* const title_;
  const std::vector<at::Tensor> outputs_;
  const CUDAStream stream_;
  const std::shared_ptr<Communicator> communicator_;
  at::cuda::CUDAEvent end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(Membership member) : member_(std::move(member)) {}

  Communicator& communicator(at::Device device) override { return *of(device).communicator; }

  // On a stream of the group's own, so that the group's operations stay in order whatever streams they are called from.
  // PyTorch's pool makes its streams with cudaStreamNonBlocking, as ranks that share a device need them.
  c10::intrusive_ptr<c10d::Work> run(Operation&& operation, bool asyncOp, const Facts& facts,
                                     const std::function<koloResult_t(const Place&, Operation&)>& call) override {
    const Rank& rank = of(operation.device);
    const c10::cuda::CUDAGuard device(operation.device);
    const CUDAStream current = c10::cuda::getCurrentCUDAStream(rank.stream.device_index());
    at::cuda::CUDAEvent begin;
    begin.record(current);
    begin.block(rank.stream);
    auto record = beginRecord(operation);
    const koloResult_t result =
        call(Place{rank.communicator->get(), reinterpret_cast<koloStream_t>(rank.stream.stream())}, operation);
    if (result != koloSuccess) raise(result, operation.title);
    // The allocator may give memory to others only when this stream is done with it.
    operation.visitTensors([&](const at::Tensor& tensor) {
      c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), rank.stream);
    });
    {
      const c10::cuda::CUDAStreamGuard guard(rank.stream);
      operation.conclude(true);
    }
    if (record) record->end();
    auto work = c10::make_intrusive<GpuWork>(facts, operation.title, operation.type, std::move(operation.outputs),
                                             rank.stream, rank.communicator);
    if (asyncOp) return work;
    work->wait(kNoTimeout);
    return nullptr;
  }

  koloResult_t failure() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [index, rank] : ranks_) {
      if (const koloResult_t failure = rank.communicator->failure(); failure != koloSuccess) return failure;
    }
    return koloSuccess;
  }
  void end(bool abort) override {
    const std::lock_guard lock(mutex_);
    hasEnded_ = true;
    for (auto& [index, rank] : ranks_) abort ? rank.communicator->abort() : rank.communicator->end();
  }

 private:
  struct Rank {
    std::shared_ptr<Communicator> communicator;
    CUDAStream stream;
  };

  const Rank* find(c10::DeviceIndex index) {
    const std::lock_guard lock(mutex_);
    const auto found = ranks_.find(index);
    return found != ranks_.end() ? &found->second : nullptr;
  }

  // The first time it waits for all ranks, and keeps no other thread from ending what there is.
  const Rank& of(at::Device device) {
    const c10::DeviceIndex index = device.has_index() ? device.index() : c10::cuda::current_device();
    if (const Rank* const rank = find(index)) return *rank;
    const std::lock_guard making(making_);
    if (const Rank* const rank = find(index)) return *rank;
    const c10::cuda::CUDAGuard guard(index);
    auto communicator = Communicator::meet(member_, "kolo/cuda/" + std::to_string(ranks_.size()), index);
    const std::lock_guard lock(mutex_);
    if (hasEnded_) communicator->abort();
    return ranks_.emplace(index, Rank{std::move(communicator), c10::cuda::getStreamFromPool(false, index)})
        .first->second;
  }

  const Membership member_;
  std::mutex making_;  // while a communicator is made; taken before the other one
  std::mutex mutex_;   // of what follows
  std::map<c10::DeviceIndex, Rank> ranks_;
  bool hasEnded_ = false;
};

}  // namespace

std::unique_ptr<Gpu> Gpu::make(const Membership& member, at::Device) { return std::make_unique<CudaGpu>(member); }

}  // namespace kolo::pytorch
