// A GPU's memory: the messages and collectives of a call, or of a group, become one launch in a stream.
//
// Thread safety: as Backend's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/prepared_operations.h"
#include "comm/backend.h"
#include "comm/parts.h"
#include "comm/sent_arrays.h"
#include "device/work.h"
#include "gpu/gpu_rank.h"

namespace kolo::comm {

class GpuBackend final : public Backend {
 public:
  GpuBackend(Communicator& owner, std::unique_ptr<gpu::GpuRank> rank);

  bool waits() const override { return false; }
  Status run(const Operation& operation, void* stream) override { return enqueue({}, {&operation, 1}, stream); }
  Status runGroup(std::span<const Message> messages, std::span<const Operation> operations, void* stream) override {
    return enqueue(messages, operations, stream);
  }
  Status runAgain() override;
  Status runMessages(Held<Communicator>& communicator, std::span<const Message> messages, void* stream) override;
  Status runMessagesAt(std::uint64_t place, std::span<const Message> messages, void* stream) override;
  Status settle() override;
  bool settlesAtOnce() override { return true; }

  Status sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                   const ArrayDescription& description, int peer) override;
  Status receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation, int peer,
                      koloRecvStatus_t* status) override;
  std::optional<std::string> answer(int asker, std::string_view question) override {
    return sentArrays_.answer(asker, question);
  }
  Status tell(int root, void* value, std::size_t bytes) override;
  Status reduceWords(std::span<std::uint64_t> words, koloRedOp_t op) override;

  Status checkRequest() const override;
  bool checksPlaces() const override { return true; }
  Status checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const override {
    return rank_->checkBuffer(name, buffer, bytes);
  }
  Status checkStream(void* stream, bool isOwn) const override;
  Status checkMessage(const Message& message) const override;

  Result<Window*> addWindow(void* buffer, std::size_t bytes) override;
  Result<Window*> addMappedWindow(void* const* parts, const std::size_t* bytes) override;
  void drain() override { (void)rank_->engine().drain(); }
  void release(std::shared_ptr<const void> used) override { rank_->release(std::move(used)); }

  void stop() override { rank_->stop(); }
  void check() override;
  void leave() override { rank_->leave(); }
  void close(bool failed) override { rank_->close(failed); }
  std::string transportNames() const override { return rank_->transportNames(); }

 protected:
  const void* enter() const override { return rank_->gpu().enter(); }
  void exit(const void* before) const override { rank_->gpu().leave(static_cast<const executor::cuda::Gpu*>(before)); }

 private:
  Status enqueue(std::span<const Message> messages, std::span<const Operation> operations, void* stream);
  Status addToLaunch(std::span<const Message> messages);
  Status addToLaunch(const Operation& operation);
  Status addList(collectives::Prepared& prepared, device::Work& work);
  device::Work& add(const Message& message);
  Status launch(std::uint32_t messages, void* stream);
  Status sendNext(const void* data, const ArrayDescription& description, int peer, void* stream);
  Status receiveNext(const Allocation& allocation, int peer, koloRecvStatus_t* status, void* stream);
  Result<std::string> awaitDescription(int peer);
  Result<void*> memoryToDrop(std::uint64_t bytes);
  Result<std::vector<std::string>> hearAll(std::string_view mine);
  Status checkWindow(const char* name, const void* buffer, const device::WindowRef& ref) const;

  Communicator& owner_;
  SentArrays sentArrays_;  // its memory is freed when kernels have ended: with the rank, or before
  std::unique_ptr<gpu::GpuRank> rank_;
  // Of the launch that is being made: messages, then collectives; and of each collective the counts, and the tables,
  // that it points to.
  std::vector<device::Work> works_;
  std::vector<std::shared_ptr<const VectorCounts>> counts_;
  executor::cuda::HeldTables tables_;
  std::uint64_t tableBytes_ = 0;  // of tables that were made since operations were forgotten because of them
  std::mutex mutex_;              // of what follows, and of failing because of a kernel: questions come from any thread
  device::Work last_;             // that was launched: what a failure names
};

}  // namespace kolo::comm
