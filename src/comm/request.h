// What becomes of something that was started: a message, a collective, or a group of both.
//
// A blocking call has a request on its stack, which nobody else knows (bare). One of the user's is made by make(), and
// is freed by the last of these three: the user, the end of its last part, its notice.
//
// Thread safety: end() by those who execute the parts; the other functions from any thread.
// Invariants: end() is called once for each part. A bare request may be gone as soon as its last part has ended.
#pragma once

#include <kolo/kolo.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/caller.h"
#include "base/handle_table.h"
#include "base/status.h"
#include "comm/stream.h"

namespace kolo::comm {

class Communicator;

class Request {
 public:
  // Bare, of so many parts.
  explicit Request(std::uint32_t parts) : left_(parts), timeoutMs_(caller.timeoutMs) {}
  // One of the user's, of one part unless expect() says otherwise.
  static Request* make();
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  // REQUIRES: nothing has begun.
  void expect(std::uint32_t parts) { left_.store(parts, std::memory_order_relaxed); }
  void addPlace(const Weak<Communicator>& communicator) {
    if (!first_) {
      first_ = communicator;
    } else {
      others_.push_back(communicator);
    }
  }
  // The communicators on which its parts are: function(place) for each.
  bool hasOnePlace() const { return first_ && others_.empty(); }
  const Weak<Communicator>& firstPlace() const { return first_; }
  template <class Function>
  void forEachPlace(const Function& function) const {
    if (first_) function(first_);
    for (const Weak<Communicator>& place : others_) function(place);
  }

  // A part is over. True if this was the last one, and the user is to be told: then giveNotice() must follow.
  bool end(Status status);
  bool isOver() const { return (state_.load(std::memory_order_acquire) & kOver) != 0; }  // [over]
  // The first error among its parts. REQUIRES: isOver().
  const Status& status() const { return status_; }

  // Deadlines. Since when it has waited; it waits anew when something of it has moved.
  int timeoutMs() const { return timeoutMs_; }
  void moved() { sinceNs_.store(0, std::memory_order_relaxed); }
  std::int64_t waitsSince(std::int64_t nowNs);

  // The user's function, to be called when the request is over. False if there is one already. *isLate: it is over, and
  // giveNotice() must follow. Throws where there is no memory for the notice: once asked for, it needs none.
  bool notify(koloNotifyFunction_t function, void* context, bool* isLate);
  // After end() has said that giveNotice() must follow: that, for a stream.
  Stream::Prepared takeNotice() { return std::move(notice_->task); }
  // Calls the function, and may free the request.
  void giveNotice();
  // The user has given it back. True: it is over, and the caller's; else it deletes itself when that is so.
  [[nodiscard]] bool letGo();
  // As make() gives it. REQUIRES: it is the caller's.
  void renew();

 private:
  // What has happened to a request of the user's. The thread whose add() makes isDone() true frees it.
  static constexpr std::uint32_t kOver = 1, kAsked = 2, kTold = 4, kLetGo = 8, kBare = 16;
  static bool isDone(std::uint32_t state) {
    const bool isTold = (state & kAsked) == 0 || (state & kTold) != 0;
    return (state & kOver) != 0 && (state & kLetGo) != 0 && isTold;
  }
  std::uint32_t add(std::uint32_t what) { return state_.fetch_or(what, std::memory_order_acq_rel) | what; }  // [over]

  std::atomic<std::uint32_t> left_;
  std::atomic<std::uint32_t> state_{kBare};
  std::atomic<std::int64_t> sinceNs_{0};
  int timeoutMs_;
  std::mutex mutex_;
  Status status_;
  struct Notice {
    koloNotifyFunction_t function;
    void* context;
    Stream::Prepared task;  // which gives it
  };
  std::unique_ptr<Notice> notice_;  // where one was asked for
  Weak<Communicator> first_;
  std::vector<Weak<Communicator>> others_;  // few requests have parts on several
};

}  // namespace kolo::comm
