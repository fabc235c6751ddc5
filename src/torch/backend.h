// Kolo as a backend of torch.distributed. collectives.cc, lists.cc, messages.cc, sparse.cc and control.cc hold its
// functions, each of which describes an operation and gives it to run().
//
// Thread safety: as c10d's backends: calls of several threads are executed in the order in which they come, and that
// order has to be the same on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "torch/communicator.h"
#include "torch/errors.h"
#include "torch/gpu.h"
#include "torch/memory.h"
#include "torch/operation.h"
#include "torch/work.h"

namespace kolo::pytorch {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Milliseconds = std::chrono::milliseconds;

class KoloBackend final : public c10d::Backend {
 public:
  // pg_options of init_process_group and new_group.
  struct Options : c10d::Backend::Options {
    explicit Options(Milliseconds timeout = kBackendDefaultTimeout) : c10d::Backend::Options("kolo", timeout) {}
    // Of c10d's since torch 2.15; so it says no "override". NOLINTNEXTLINE(modernize-use-override)
    virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const { return c10::make_intrusive<Options>(*this); }

    Settings settings;
  };

  // Collective over the group: its communicator on the host is made at once, for messages may come before all ranks
  // have called a collective. One on GPUs is made when it is first needed.
  // kin: hears of the deaths of members meanwhile.
  KoloBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options,
              const Kin& kin);
  // A group whose communicator on the host is there already.
  KoloBackend(std::shared_ptr<Communicator> host, const c10::intrusive_ptr<c10d::Store>& store,
              c10::intrusive_ptr<Options> options);
  ~KoloBackend() override;

  const std::shared_ptr<Communicator>& onHost() const { return host_; }

 private:
  // ---- what c10d calls, by its own class: control.cc
  const std::string getBackendName() const override { return "kolo"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_.load(std::memory_order_relaxed); }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& excluded, int flags = 0,
      const c10::intrusive_ptr<c10d::Backend::Options>& options = nullptr) override;
  void abort() override;
  void shutdown() override;
  c10d::ErrorType getError() override;
  void eagerConnectSingleDevice(at::Device device) override;
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waitAllRanks = false) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // ---- collectives.cc
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                        std::vector<std::int64_t>& inputSplits, const c10d::AllToAllOptions& options) override;
  // Of c10d's since torch 2.15; so it says no "override". NOLINTNEXTLINE(modernize-use-override)
  virtual WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options);

  // ---- lists.cc
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;

  // ---- sparse.cc
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;

  // ---- messages.cc
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  // ---- and what these have in common
  using Call = std::function<koloResult_t(const Place&, Operation&)>;

  struct Coalesced {
    std::unique_ptr<Operation> operation;
    Call call;
    Milliseconds timeout;
  };

  // ranks of this group by their members' names, for messages.
  Membership membership(Kin kin = {}) const;
  void end();
  Communicator& communicator(at::Device device);
  koloComm_t comm(at::Device device) { return communicator(device).get(); }
  bool coalesces() const { return coalescer_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Whether the caller's tensors have to be kept: the call returns before the operation's end.
  bool lasts(bool asyncOp, at::Device device) const { return asyncOp || coalesces() || !device.is_cpu(); }
  // Whether several tensors are one list of Kolo's. On GPUs they are a group of single calls, which is one launch, too.
  static bool takesLists(at::Device device) { return device.is_cpu(); }
  Milliseconds deadline(Milliseconds given) const { return given == c10d::kUnsetTimeout ? options_->timeout : given; }

  // call(place, operation) gives the operation to Kolo, in the form that the place asks for. Returns nullptr where the
  // operation is over, or waits for the end of coalesced calls.
  template <class Given>
  WorkPtr run(Operation&& operation, bool asyncOp, Milliseconds timeout, Given&& call) {
    if (coalesces()) [[unlikely]]
      return defer(std::move(operation), timeout, std::forward<Given>(call));
    if (isCollective(operation)) sequence_.fetch_add(1, std::memory_order_relaxed);
    if (!operation.device.is_cpu()) [[unlikely]]
      return runOnGpu(std::move(operation), asyncOp, deadline(timeout), Call(std::forward<Given>(call)));
    Communicator& host = communicator(operation.device);
    const Place place{host.get()};
    const Deadline limit(deadline(timeout), host);
    if (windows_ && isCollective(operation)) [[unlikely]]
      windows_->look(host);
    if (asyncOp) return launch(std::move(operation), deadline(timeout), place, call);
    const auto record = beginRecord(operation);
    check(call(place, operation), operation.title);
    operation.conclude(true);
    if (record) record->end();
    return nullptr;
  }

  template <class Given>
  WorkPtr launch(Operation&& operation, Milliseconds timeout, Place place, Given&& call) {
    auto started = std::make_shared<Started>(std::move(operation));
    place.request = &started->request;
    check(call(place, started->operation), started->operation.title);
    return c10::make_intrusive<KoloWork>(std::move(started), Facts{rank_, getSequenceNumberForGroup(), timeout});
  }

  // All ranks of the group take part, in the same order; of messages only some know.
  static bool isCollective(const Operation& operation) {
    switch (operation.type) {
      case c10d::OpType::SEND:
      case c10d::OpType::RECV:
      case c10d::OpType::RECVANYSOURCE: return false;
      case c10d::OpType::COALESCED: return isCollective(*operation.parts.front());
      default: return true;
    }
  }
  WorkPtr defer(Operation&& operation, Milliseconds timeout, Call call);
  WorkPtr runOnGpu(Operation&& operation, bool asyncOp, Milliseconds timeout, const Call& call);
  WorkPtr receive(Tensors& tensors, int source, int tag, const char* title, c10d::OpType type);

  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<Communicator> host_;
  std::unique_ptr<Gpu> gpu_;
  std::mutex mutex_;  // of gpu_
  std::atomic<std::uint64_t> sequence_{0};
  std::uint64_t monitoredBarriers_ = 0;

  std::optional<Windows> windows_;            // for groups that have them
  std::atomic<std::thread::id> coalescer_{};  // whose calls are coalesced; relaxed: a thread looks for itself alone
  std::vector<Coalesced> coalesced_;
};

// The tensors of an operation are dense, defined and on one device that Kolo knows.
void checkTensor(const at::Tensor& tensor);
const at::Tensor& only(const Tensors& tensors);

}  // namespace kolo::pytorch
