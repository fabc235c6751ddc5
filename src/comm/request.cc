#include "comm/request.h"

#include <utility>

namespace kolo::comm {

Request* Request::make() {
  auto* const request = new Request(1);
  request->state_.store(0, std::memory_order_relaxed);
  return request;
}

bool Request::end(Status status) {
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  moved();
  // [part] what the others did comes before the end. Alone, nobody else writes here, and a plain look is enough.
  const bool isLast = left_.load(std::memory_order_acquire) == 1 || left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  if (!isLast) return false;
  if (state_.load(std::memory_order_relaxed) == kBare) {
    state_.store(kBare | kOver, std::memory_order_release);  // [over] all that was done, and where it lies may go now
    return false;
  }
  const std::uint32_t state = add(kOver);
  if ((state & kAsked) != 0) return true;
  if (isDone(state)) delete this;
  return false;
}

std::int64_t Request::waitsSince(std::int64_t nowNs) {
  std::int64_t since = sinceNs_.load(std::memory_order_relaxed);
  if (since == 0) sinceNs_.store(since = nowNs, std::memory_order_relaxed);
  return since;
}

bool Request::notify(koloNotifyFunction_t function, void* context, bool* isLate) {
  auto notice = std::make_unique<Notice>(Notice{function, context, Stream::prepare([this](std::uint64_t) {
                                                  const InNotice inside;
                                                  giveNotice();
                                                  return Status();
                                                })});
  const std::lock_guard lock(mutex_);
  if ((state_.load(std::memory_order_relaxed) & kAsked) != 0) return false;
  notice_ = std::move(notice);
  *isLate = (add(kAsked) & kOver) != 0;
  return true;
}

void Request::giveNotice() {
  callUsers(notice_->function, status_.code(), status_.message().c_str(), notice_->context);
  if (isDone(add(kTold))) delete this;
}

bool Request::letGo() {
  const std::uint32_t state = state_.load(std::memory_order_acquire);  // [over]
  return state == kOver || isDone(add(kLetGo));                        // where it is over nobody else looks at it
}

void Request::renew() {
  left_.store(1, std::memory_order_relaxed);
  state_.store(0, std::memory_order_relaxed);
  sinceNs_.store(0, std::memory_order_relaxed);
  timeoutMs_ = caller.timeoutMs;
  status_ = {};
  notice_.reset();
  first_ = {};
  others_.clear();
}

}  // namespace kolo::comm
