// c10d's Work: an operation under way as a request of Kolo's.
//
// A thread that waits for a work makes progress itself (koloRequestWait). A future is made only when one is asked for:
// then Kolo's own thread makes progress, and one of callbacks.h completes the future. A work that is dropped before its
// end goes on, and keeps its tensors until then. Where the system gives no threads, a future is refused with an error.
//
// Thread safety: all functions.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>

#include "torch/operation.h"

namespace kolo::pytorch {

// What c10d wants to know of an operation beside its result.
struct Facts {
  int rank;
  std::uint64_t sequence;
  std::chrono::milliseconds timeout;
};

// An operation that has been started, shared by its work and, from when somebody wants a future or nobody wants the
// work, by the function that Kolo calls at its end.
class Started : public std::enable_shared_from_this<Started> {
 public:
  explicit Started(Operation&& operation);
  Started(const Started&) = delete;
  ~Started();

  Operation operation;
  koloRequest_t request = nullptr;  // nullptr: it has not been started

  bool isOver();
  // Whether it is over within the time; none: whenever it is.
  bool awaitEnd(std::chrono::milliseconds timeout);
  // Once it is over: nullptr for success.
  std::exception_ptr error() const { return error_; }
  c10::intrusive_ptr<c10::ivalue::Future> future();
  // Nobody looks any more.
  void letGo();

 private:
  void conclude(koloResult_t result, const char* text);
  void completeFuture();
  koloResult_t notify();
  static void onEnd(koloResult_t result, const char* message, void* context);

  std::once_flag concluded_;
  std::atomic<bool> over_{false};
  std::exception_ptr error_;
  std::optional<at::ThreadLocalState> locals_;  // for copies, which the thread that sees the end makes
  std::unique_ptr<at::RecordFunction> record_;
  std::mutex mutex_;  // of what follows
  bool notified_ = false;
  bool completed_ = false;  // somebody completes the future
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class KoloWork final : public c10d::Work {
 public:
  KoloWork(std::shared_ptr<Started> started, const Facts& facts);
  ~KoloWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return facts_.sequence; }
  std::chrono::milliseconds getTimeout() const override { return facts_.timeout; }

 private:
  const std::shared_ptr<Started> started_;
  const Facts facts_;
};

// A record of the profiler's that ends later, perhaps in another thread. nullptr: nobody is profiling.
std::unique_ptr<at::RecordFunction> beginRecord(Operation& operation);

}  // namespace kolo::pytorch
