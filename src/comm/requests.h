// The operations of a communicator that are started and waited for later (D18): the order of collectives, messages that
// start while another thread has the turn, and which thread makes progress (D22).
//
// Collectives stand in a queue. A thread that waits for a collective, or that calls a blocking operation behind it,
// executes the queue up to it. This object's own thread executes what no other thread does. A message joins the queue
// only behind an operation on a stream. Otherwise, if another thread has the turn, it goes to a list, the post, from
// which that thread starts it while it waits.
//
// Thread safety: any thread, but for what says otherwise.
// Invariants
//  - Operations take their places in the turn in the order of the queue. An operation of the queue takes its place when
//    it is executed. There is one exception: an operation that is added to the queue while one on a stream is in
//    progress, and a message, takes its place at once, and so do all that stand before it.
//  - A thread of the user's that waits for what another thread executes has no place in the turn yet. A thread that
//    waits for its place calls no progress function of the user's.
//  - The object's own thread never waits for the turn on behalf of messages. It takes the turn only when no other
//    thread has looked after messages since its last look, so a thread that waits keeps its bias (base/bias.h).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/handle_table.h"
#include "base/status.h"
#include "comm/operation.h"
#include "comm/request.h"
#include "comm/stream.h"
#include "comm/turn.h"
#include "common/patience.h"
#include "executor/context.h"

namespace kolo::comm {

class Communicator;
class Messages;

class Requests {
 public:
  static constexpr std::int64_t kNever = INT64_MAX;  // a deadline that does not come

  Requests(Communicator& owner, Turn& turn) : owner_(owner), turn_(turn) {}

  // ---- started

  // Starts messages that belong to one request, a part each. isInside: the calling thread has the turn, by its bias.
  void start(const Message* messages, std::size_t count, Request& request, bool isInside);
  // Starts messages at a place that takeStreamPlace() gave. The place ends when they have started, because a message
  // that waits keeps no other operation from going.
  void startAt(std::uint64_t place, const Message* messages, std::size_t count, Request& request);
  // Starts a collective, or several one after the other, which are one part of the request. The vector of several is
  // swapped for an empty one with storage of its own.
  void start(const Operation& operation, Request& request);
  void start(std::vector<Operation>& operations, Request& request);
  // Starts another collective step, run in the communicator's turn, as one part of the request.
  void start(std::function<Status()> step, Request& request);

  // ---- waited for

  // Runs messages to their end. May leave the turn that the handle has by its bias.
  static Status run(Held<Communicator>& communicator, const Message* messages, std::size_t count);
  // Runs messages that continue an earlier one to their end. They do not wait behind operations that were called after
  // it. REQUIRES: the calling thread is not inside by its bias.
  Status runBegun(const Message* messages, std::size_t count) {
    Request request(static_cast<std::uint32_t>(count));
    post(messages, count, request);
    wait(request, kNever);
    return request.status();
  }
  // Waits until the request is over, or the time. Other communicators may have parts of it.
  void wait(Request& request, std::int64_t untilNs);
  // Executes the request's collectives that no thread has begun. REQUIRES: the thread is inside by its bias.
  void executeInside(const Request& request);
  // Makes progress without waiting. True if anything moved.
  bool look();
  // Makes the own thread begin at once with what is left.
  void hurry();
  // To be called before a request asks for a notice (Request::notify). koloSystemError: there is no thread that could
  // give it.
  Status prepareNotices();

  // ---- in order with other operations

  // Whether there are collectives that are not over. They come before what the calling thread does next.
  bool hasCollectives() const { return waiting_.load(std::memory_order_acquire) != 0; }  // [in line]
  void executeCollectives();
  // A place in the turn for an operation on a stream, and its end.
  std::uint64_t takeStreamPlace();
  void endStreamPlace() { streamed_.fetch_sub(1, std::memory_order_release); }

  // Waits until only receives without a message are left, and ends these with koloAborted. REQUIRES: the turn.
  Status settle();
  // Whether settle() would wait for other ranks. REQUIRES: the turn.
  bool settlesAtOnce();
  // Ends the own thread, and all operations left. messages: the communicator's, or null. REQUIRES: no other thread uses
  // the communicator. Call it before the destructor.
  void stop(Messages* messages);

  // ---- for Messages, under the turn

  // Starts messages, behind those that other calls have left here meanwhile. What finds no memory ends the
  // communicator.
  void startNow(const Message* messages, std::size_t count, Request& request);
  // Starts the latter. REQUIRES: the links are held (Traffic::hold()).
  void takePost() {
    if (hasPost_.load(std::memory_order_relaxed)) startPosted();
  }
  void ended(Request& request, Status status) {
    if (request.end(std::move(status))) giveNoticeSoon(request);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Queued {
    std::vector<Operation> operations;  // collectives,
    std::vector<Message> messages;      // or messages that are to start,
    std::function<Status()> step;       // or another step
    Request* request;
    std::optional<std::uint64_t> place;
    Status status;  // except of messages

    void clear();
  };
  using Queue = std::list<Queued>;
  struct Posted {
    Message message;
    Request* request = nullptr;
  };
  void holdAndTakePost();
  void startPosted();
  void begin(const Message* messages, std::size_t count, Request& request);
  void post(const Message* messages, std::size_t count, Request& request);
  void noteLook();
  // Whether a message must queue behind a stream's operation or such a message.
  bool standsInLine() const {
    return streamed_.load(std::memory_order_acquire) != 0 ||
           messagesInLine_.load(std::memory_order_acquire) != 0;  // [in line]
  }
  bool needsCare() const {
    return needsCare_.load(std::memory_order_relaxed) || hasPost_.load(std::memory_order_relaxed);
  }
  bool executeUpTo(const Request& request);
  void executeNext(Lock& lock);
  void executeFirst(Lock& lock, bool isInside = false);
  Patience patience() const;
  void rest(Patience& patience) const;
  void execute(Queued& queued, std::uint64_t entered);
  void takePlaces(Lock& lock);
  template <class Fill>
  void give(Request& request, const Fill& fill);
  void giveNoticeSoon(Request& request);
  void watch();
  void wake(Lock& lock);
  void work();
  bool sleepFor(Lock& lock, std::chrono::nanoseconds time);
  bool fallAsleep();
  bool lookAfterMessages(executor::WaitState& state);

  Communicator& owner_;
  Turn& turn_;
  std::atomic<std::uint32_t> waiting_{0};         // entries that are not over
  std::atomic<std::uint32_t> messagesInLine_{0};  // entries whose messages have not begun
  std::atomic<std::uint32_t> streamed_{0};        // operations on streams that have not ended
  std::atomic<bool> hasPost_{false};
  std::atomic<bool> needsCare_{false};   // messages are under way
  std::atomic<std::uint64_t> looks_{0};  // how often somebody has looked after messages
  std::atomic<bool> isAsleep_{true};     // the own thread does not look by itself

  std::mutex mutex_;
  Queue queue_;
  Queue spare_;              // for reuse: allocating one costs as much as a short collective
  std::uint64_t begun_ = 0;  // of the queue's
  int executing_ = 0;        // of these, by any thread
  std::vector<Posted> post_;
  std::unique_ptr<Stream> notices_;  // gives notices; nullptr: none was asked for
  bool isHurried_ = false;
  bool isStopping_ = false;
  std::condition_variable added_;
  std::thread thread_;
};

// Waits until the request is over, or the time: its result, or koloInProgress.
Status wait(Request& request, std::int64_t untilNs);
// Makes progress once. Gives its result, or koloInProgress.
Status test(Request& request);
// Says that a thread waits without making progress.
void hurry(const Request& request);
// To be called before the request asks for a notice.
Status prepareNotices(const Request& request);
// Waits until one is over: its index; -1: the time came. REQUIRES: one.
int waitAny(std::span<Request* const> requests, std::int64_t untilNs);

}  // namespace kolo::comm
