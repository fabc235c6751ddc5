// The operations of a communicator that were started and not waited for: the order of its collectives, messages that
// start while others have the turn, and who makes progress.
//
// Collectives stand in a queue. A thread that waits for a collective, or that calls a blocking operation behind it,
// executes the queue up to there. This object's own thread executes what no other thread comes for. Messages do not
// stand in the queue: a message that starts while another thread has the turn goes to a list, the post. The thread that
// has the turn takes the message out when it waits (Messages::progress).
//
// Thread safety: any thread, but for what says otherwise.
// Invariants
//  - Operations take their places in the turn in the order of the queue. An operation of the queue takes its place when
//    it is executed. There is one exception: while an operation on a stream is in progress, an operation that is added
//    to the queue takes its place at once, behind the stream's.
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
  // Starts a collective, or several one after the other, which are one part of the request. Of several the vector is
  // emptied, and gets storage of earlier ones in exchange for its own.
  void start(const Operation& operation, Request& request);
  void start(std::vector<Operation>& operations, Request& request);
  // Starts a step that is collective, too, and is done in the communicator's turn. It is one part of the request.
  void start(std::function<Status()> step, Request& request);

  // ---- waited for

  // Messages that a call waits for. May leave the turn that the handle has by its bias.
  static Status run(Held<Communicator>& communicator, const Message* messages, std::size_t count);
  // Messages that a call waits for, and that belong to a message that has been done: they do not stand in line behind
  // what was called after that message. REQUIRES: the calling thread is not inside by its bias.
  Status runBegun(const Message* messages, std::size_t count) {
    Request request(static_cast<std::uint32_t>(count));
    post(messages, count, request);
    wait(request, kNever);
    return request.status();
  }
  // Until the request is over, or the time has come. It may be of other communicators as well.
  void wait(Request& request, std::int64_t untilNs);
  // Executes what the request stands for, if nobody has begun with it. REQUIRES: the thread is inside by its bias.
  void executeInside(const Request& request);
  // Makes progress that needs no waiting. Whether anything moved.
  bool look();
  // The own thread begins at once with what nobody has begun.
  void hurry();
  // To be called before a request asks for a notice. koloSystemError: there is no thread that could give it.
  Status prepareNotices();

  // ---- in order with other operations

  // Whether there are collectives that are not over. They come before what the calling thread does next.
  bool hasCollectives() const { return waiting_.load(std::memory_order_acquire) != 0; }  // [in line]
  void executeCollectives();
  // A place in the turn for an operation on a stream, and its end.
  std::uint64_t takeStreamPlace();
  void endStreamPlace() { streamed_.fetch_sub(1, std::memory_order_release); }

  // Until nothing is under way but receives for which no message has come; these end with koloAborted. REQUIRES: the
  // turn.
  Status settle();
  // Whether settle() would wait for other ranks. REQUIRES: the turn.
  bool settlesAtOnce();
  // Ends the own thread, and all that is left. messages: the communicator's, if it has come to have any. REQUIRES:
  // nobody else uses the communicator. To be called before the end.
  void stop(Messages* messages);

  // ---- for Messages, under the turn

  // Starts messages that other calls have left here meanwhile. REQUIRES: the links are held (Traffic::hold()).
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
    std::function<Status()> step;       // or something else
    Request* request;
    std::optional<std::uint64_t> place;
    Status status;  // of what is no message

    void clear();
  };
  using Queue = std::list<Queued>;
  struct Posted {
    Message message;
    Request* request;
  };
  void holdAndTakePost();
  void startPosted();
  void begin(const Message* messages, std::size_t count, Request& request);
  void startNow(const Message* messages, std::size_t count, Request& request);
  void post(const Message* messages, std::size_t count, Request& request);
  void noteLook();
  // Whether a message comes behind an operation on a stream, or behind one that does.
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
  std::atomic<std::uint32_t> waiting_{0};         // of the queue, that are not over
  std::atomic<std::uint32_t> messagesInLine_{0};  // entries of it that begin messages, and have not
  std::atomic<std::uint32_t> streamed_{0};        // operations on streams that have not ended
  std::atomic<bool> hasPost_{false};
  std::atomic<bool> needsCare_{false};   // messages are under way
  std::atomic<std::uint64_t> looks_{0};  // how often somebody has looked after messages
  std::atomic<bool> isAsleep_{true};     // the own thread does not look by itself

  std::mutex mutex_;
  Queue queue_;
  Queue spare_;              // to be used again: allocating one costs as much as a short collective
  std::uint64_t begun_ = 0;  // of the queue's
  int executing_ = 0;        // of these, by whatever threads
  std::vector<Posted> post_;
  std::unique_ptr<Stream> notices_;  // gives them; nullptr: no request has asked for one
  bool isHurried_ = false;
  bool isStopping_ = false;
  std::condition_variable added_;
  std::thread thread_;
};

// Until the request is over, or the time has come: its result, or koloInProgress.
Status wait(Request& request, std::int64_t untilNs);
// Its result, or koloInProgress, after a look that makes progress.
Status test(Request& request);
// Somebody waits for the request, but makes no progress.
void hurry(const Request& request);
// To be called before the request asks for a notice.
Status prepareNotices(const Request& request);
// Until one of them is: its place; -1: the time has come. REQUIRES: there is one.
int waitAny(std::span<Request* const> requests, std::int64_t untilNs);

}  // namespace kolo::comm
