// Host memory: the calling thread carries out each operation to its end.
//
// Thread safety: as Backend's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/prepared_operations.h"
#include "comm/backend.h"
#include "device/work.h"
#include "executor/context.h"

namespace kolo::comm {

class Communicator;

class HostBackend final : public Backend {
 public:
  explicit HostBackend(Communicator& owner);

  // For tests: communicators that are made from now on execute their operations by this executor; nullptr: by the
  // calling thread, as without it.
  static void useExecutor(executor::Executor* executor);

  bool waits() const override { return true; }
  Status run(const Operation& operation, void* stream) override;
  Status runAgain() override;
  Status runGroup(std::span<const Message> messages, std::span<const Operation> operations, void* stream) override;
  Status runMessages(Held<Communicator>& communicator, std::span<const Message> messages, void* stream) override;
  Status runMessage(Held<Communicator>& communicator, const Message& message, void* stream) override;
  Status runMessagesAt(std::uint64_t place, std::span<const Message> messages, void* stream) override;
  Status settle() override;
  bool settlesAtOnce() override;

  Status sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                   const ArrayDescription& description, int peer) override;
  Status receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation, int peer,
                      koloRecvStatus_t* status) override;
  Status tell(int root, void* value, std::size_t bytes) override;
  Status reduceWords(std::span<std::uint64_t> words, koloRedOp_t op) override;

  Status checkRequest() const override { return {}; }
  bool checksPlaces() const override { return usesCuda_; }
  Status checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const override;
  Status checkStream(void* stream, bool isOwn) const override {
    return stream == nullptr || isOwn ? Status() : Status(koloInvalidHandle, {});
  }
  Status checkMessage(const Message&) const override { return {}; }

  Result<Window*> addWindow(void* buffer, std::size_t bytes) override;
  Result<Window*> addMappedWindow(void* const* parts, const std::size_t* bytes) override;
  void drain() override {}
  void release(std::shared_ptr<const void>) override {}

  void stop() override {}
  void check() override {}
  void leave() override {}
  void close(bool) override {}
  std::string transportNames() const override;

 private:
  Result<Window*> agreedWindow(Result<Window*> added);
  bool runsAtOnce() const;
  void share(collectives::Prepared& now, device::Start start);
  Status prepareAndRun(const Operation& operation);
  Status execute();
  void followRoot(device::Work& work) const;
  void letOthersGoFirst();

  Communicator& owner_;
  executor::Executor& executor_;
  collectives::PreparedOperations& operations_;  // the communicator's
  collectives::Prepared* ran_;                   // the last that ran, or runs
  device::Fault fault_;
  device::Course course_ = device::Course::kStaged;  // of the last operation
  std::vector<unsigned char> scratch_;
  bool usesCuda_ = false;     // pointers may be a device's
  int rootThatGave_ = -1;     // in the last operation; -1: none
  bool tookFromAll_ = false;  // there, as its root
};

}  // namespace kolo::comm
