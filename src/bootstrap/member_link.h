// A rank's end of its connection to the hub.
//
// Thread safety: reactor thread only, except Exchange, subscriptions(), and what Handover guards.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/channel.h"
#include "bootstrap/control.h"
#include "bootstrap/subscriptions.h"

namespace kolo::bootstrap {

// Something that happens once, on the reactor thread, and is waited for on another.
class Handover {
 public:
  // Only the first call counts.
  void finish(Status status) {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    status_ = std::move(status);
    done_ = true;
    changed_.notify_all();
  }
  // False: the deadline came first.
  bool wait(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return done_; });
  }
  Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status status_;
};

// An all-gather in flight. The reactor writes blobs, finishes, and never touches it again; the caller reads them after
// that.
struct Exchange {
  Handover over;
  std::vector<std::string> blobs;
  std::size_t have = 0;
  std::uint32_t index = 0;
};

// The reactor writes the text, finishes, and never touches it again.
struct PendingAnswer final : Answer {
  Handover over;
  std::string text;
  const std::string* wait(int ms) override {
    return over.wait(Clock::now() + std::chrono::milliseconds(ms)) ? &text : nullptr;
  }
};

class MemberLink : public std::enable_shared_from_this<MemberLink> {
 public:
  using ExchangeKey = std::pair<std::uint64_t, std::uint64_t>;  // key, sequence

  MemberLink(Reactor& reactor, int rank) : reactor_(reactor), rank_(rank) {}

  // Takes the connection, over which this rank has said who it is; joined() is finished when all ranks have joined, or
  // with the reason why not.
  void start(Socket socket, const Session& session);
  Handover& joined() { return joined_; }                     // any thread
  Handover& left() { return left_; }                         // any thread
  Subscriptions& subscriptions() { return subscriptions_; }  // any thread

  void gather(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange, const SharedFrame& request);
  void withdraw(const ExchangeKey& key);
  // The hub comes to know whether this rank has subscriptions of the family.
  void tellHub(std::uint64_t family);
  // The report is with the kernel when this returns, as far as that takes it.
  void report(std::uint64_t key, const Failure& failure, std::uint64_t family);
  void ask(std::uint64_t key, int rank, const std::string& question, const std::shared_ptr<PendingAnswer>& answer);
  // The rank will not join: the frame says why.
  void decline(const SharedFrame& frame);
  void leave();
  // No callback runs after this.
  void close();
  // The process that the hub is in, as messages name it. REQUIRES: the rank has joined.
  std::string hubOwner() const;
  // What the hub has drawn for this run of the job. Any thread. REQUIRES: the rank has joined.
  const Secret& jobKey() const { return jobKey_; }

 private:
  bool onFrame(std::string_view bytes);
  void onClosed(std::string_view why);
  bool onWelcome(Decoder& decoder);
  bool onGathered(Decoder& decoder);
  bool onGatherFailed(Decoder& decoder);
  bool onDeaths(Decoder& decoder);
  bool onReported(Decoder& decoder);
  bool onHostLeft(Decoder& decoder);
  bool onHostKnows(Decoder& decoder);
  bool onAsked(Decoder& decoder);
  bool onAnswered(Decoder& decoder);
  bool onWithdrawn(Decoder& decoder);
  bool isOfWithdrawn(const ExchangeKey& key) const;
  void died(int rank, std::string why);
  void failExchanges(const Status& why);
  void failExchangesOf(std::uint64_t key, const Status& why);
  Status lossOfHub(std::string_view why) const;
  std::string afterWhat() const;

  Reactor& reactor_;
  int rank_;
  std::shared_ptr<Channel> channel_;
  Handover joined_;
  Handover left_;
  bool welcomed_ = false;
  bool leaving_ = false;
  Secret jobKey_{};            // written once, before joined_ is finished
  Status unusable_;            // why no frame can be sent any more
  std::string hubProcess_;     // "pid P on HOST"
  std::vector<int> hubRanks_;  // ranks that live in the hub's process and have not left
  std::string lastDeath_;      // "rank 3 (pid 7 on HOST) died: ..."; empty: nobody has
  std::string hostKnows_;      // the failures that a rank in the hub's process knows of; empty: none
  Clock::time_point hostKnowsAt_{};
  Subscriptions subscriptions_;
  std::set<std::uint64_t> families_;  // of which the hub has been told
  std::map<ExchangeKey, std::shared_ptr<Exchange>> exchanges_;
  // How often this rank has withdrawn its part and the hub has not said so yet: until then a result is of that part,
  // also where the rank has begun the exchange anew.
  std::map<ExchangeKey, int> withdrawn_;
  struct Question {
    int rank;                             // that was asked
    std::weak_ptr<PendingAnswer> answer;  // weak: the asker may have given up
  };
  std::map<std::uint64_t, Question> questions_;  // by number
  std::uint64_t lastQuestion_ = 0;
};

}  // namespace kolo::bootstrap
