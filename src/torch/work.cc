#include "torch/work.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

#include "torch/callbacks.h"
#include "torch/errors.h"
#include "torch/signals.h"
#include "torch/without_gil.h"

namespace kolo::pytorch {
namespace {

int millisecondsOf(std::chrono::milliseconds timeout) {
  if (timeout <= std::chrono::milliseconds::zero()) return -1;
  return static_cast<int>(std::min<std::int64_t>(timeout.count(), std::numeric_limits<int>::max()));
}

}  // namespace

std::unique_ptr<at::RecordFunction> beginRecord(Operation& operation) {
  if (!operation.profile) [[likely]]
    return nullptr;
  const std::unique_ptr<Profile> profile = std::move(operation.profile);
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return nullptr;
  auto record = std::make_unique<at::RecordFunction>(std::move(*callbacks));
  record->_setAsync();
  const std::vector<c10::IValue> values(profile->shown().begin(), profile->shown().end());
  record->before(operation.title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
  return record;
}

Started::Started(Operation&& given) : operation(std::move(given)), record_(beginRecord(operation)) {
  if (operation.needsLocals()) locals_.emplace();
}

Started::~Started() {
  if (request != nullptr) (void)koloRequestFree(request);
}

// By the thread that sees the end first; others wait until what is left to do is done. Letting a tensor go, or
// completing a future, may take Python's lock. So no thread waits here with that lock: torch asks whether a work is
// over, and drops it, with the lock held.
void Started::conclude(koloResult_t result, const char* text) {
  const WithoutGil others;
  std::call_once(concluded_, [&] {
    try {
      error_ = result != koloSuccess ? exceptionFor(result, operation.title, text) : operation.complaint();
      std::optional<at::ThreadLocalStateGuard> guard;
      if (locals_) guard.emplace(*locals_);
      operation.conclude(error_ == nullptr);
    } catch (...) {
      error_ = std::current_exception();
    }
    if (record_) record_->end();
    record_.reset();
    over_.store(true, std::memory_order_release);
  });
  completeFuture();
}

bool Started::isOver() {
  if (over_.load(std::memory_order_acquire)) return true;
  const koloResult_t result = koloRequestTest(request);
  if (result == koloInProgress) return false;
  conclude(result, koloGetLastError(nullptr));
  return true;
}

bool Started::awaitEnd(std::chrono::milliseconds timeout) {
  if (over_.load(std::memory_order_acquire)) return true;
  const koloResult_t result = koloRequestWait(request, millisecondsOf(timeout));
  if (result == koloInProgress) return false;
  conclude(result, koloGetLastError(nullptr));
  return true;
}

// A thread that has waited for the work finds its future completed, by itself or by another thread.
void Started::completeFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool others = false;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
    others = std::exchange(completed_, true);
  }
  if (future == nullptr) return;
  if (others) return future->wait();
  if (error_ != nullptr) return future->setError(error_);
  future->markCompleted(c10::IValue(operation.outputs));
}

// Kolo's thread goes on at once: a continuation may take long, and may wait.
void Started::onEnd(koloResult_t result, const char* message, void* context) {
  const std::unique_ptr<std::shared_ptr<Started>> holder(static_cast<std::shared_ptr<Started>*>(context));
  callbacks::run(
      [started = std::move(*holder), result, text = std::string(message)] { started->conclude(result, text.c_str()); });
}

// REQUIRES: mutex_
koloResult_t Started::notify() {
  if (notified_) return koloSuccess;
  auto holder = std::make_unique<std::shared_ptr<Started>>(shared_from_this());
  const koloResult_t result = koloRequestNotify(request, onEnd, holder.get());
  notified_ = result == koloSuccess;
  if (notified_) (void)holder.release();
  return result;
}

// What is over needs no thread.
c10::intrusive_ptr<c10::ivalue::Future> Started::future() {
  (void)isOver();
  const std::lock_guard lock(mutex_);
  if (future_ != nullptr) return future_;
  auto made = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  if (!completed_) {
    callbacks::prepare();
    check(notify(), operation.title);
  } else if (error_ != nullptr) {
    made->setError(error_);
  } else {
    made->markCompleted(c10::IValue(operation.outputs));
  }
  return future_ = std::move(made);
}

// Where Kolo has no thread to tell the end, one of the callbacks' waits for it.
void Started::letGo() {
  if (request == nullptr || isOver()) return;
  const std::lock_guard lock(mutex_);
  if (notify() != koloSuccess) callbacks::run([started = shared_from_this()] { started->awaitEnd(kNoTimeout); });
}

KoloWork::KoloWork(std::shared_ptr<Started> started, const Facts& facts)
    : Work(facts.rank, started->operation.type), started_(std::move(started)), facts_(facts) {}

KoloWork::~KoloWork() { started_->letGo(); }

bool KoloWork::isCompleted() { return started_->isOver(); }

bool KoloWork::isSuccess() const { return started_->isOver() && started_->error() == nullptr; }

std::exception_ptr KoloWork::exception() const { return started_->isOver() ? started_->error() : nullptr; }

int KoloWork::sourceRank() const { return started_->isOver() ? started_->operation.received.source : -1; }

std::vector<at::Tensor> KoloWork::result() { return started_->operation.outputs; }

bool KoloWork::wait(std::chrono::milliseconds timeout) {
  const bool isOver = started_->awaitEnd(timeout);
  signals::endWait();
  if (!isOver) {
    std::rethrow_exception(
        exceptionFor(koloTimeout, started_->operation.title,
                     "not over after " + std::to_string(timeout.count()) + " ms of waiting; the operation goes on"));
  }
  if (started_->error() != nullptr) std::rethrow_exception(started_->error());
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> KoloWork::getFuture() { return started_->future(); }

}  // namespace kolo::pytorch
