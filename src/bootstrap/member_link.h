// A rank's end of its connection to the hub. When it has lost a hub, the link looks for the next one (standby.h), and
// asks again for all that it waits for. Callers notice nothing of that.
//
// Thread safety: reactor thread only, except Exchange, subscriptions(), and what Handover guards.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/billboard.h"
#include "bootstrap/channel.h"
#include "bootstrap/control.h"
#include "bootstrap/listener.h"
#include "bootstrap/standby.h"
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
  std::vector<std::string> parts;  // of the result, as the hub has sent them: for another hub
  std::size_t have = 0;
  std::uint32_t index = 0;
  std::uint32_t timeoutMs = 0;
  Clock::time_point deadline{};
  std::string members;  // as they are sent
  std::string mine;     // the blob
  // The last result that this rank had heard of when it asked a hub for the first time.
  std::uint64_t after = kNeverAsked;
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

  MemberLink(Reactor& reactor, int rank, const Secret& job, std::shared_ptr<Standby> standby)
      : reactor_(reactor), rank_(rank), standby_(std::move(standby)) {
    hub_.secret = job;
  }

  // Takes the connection, over which this rank has said who it is; joined() is finished when all ranks have joined, or
  // with the reason why not.
  void start(Socket socket, const Session& session);
  Handover& joined() { return joined_; }                     // any thread
  Handover& left() { return left_; }                         // any thread
  Subscriptions& subscriptions() { return subscriptions_; }  // any thread

  void gather(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange);
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
  bool onLeft(Decoder& decoder);
  bool onNeighbours(Decoder& decoder);
  bool onCounting(Decoder& decoder);
  bool onVote(Decoder& decoder);
  bool onCutOff(Decoder& decoder);
  bool onHubEnds(Decoder& decoder);
  bool onReturned(Decoder& decoder);
  bool onHostKnows(Decoder& decoder);
  bool onAsked(Decoder& decoder);
  bool onAnswered(Decoder& decoder);
  bool onWithdrawn(Decoder& decoder);
  bool onBillboard(Decoder& decoder);
  bool onOnBillboard(Decoder& decoder);
  bool onKeepBillboard(Decoder& decoder);
  bool onPost(Decoder& decoder);
  void died(int rank, std::string why);
  Status startChannel(Socket socket, const Session& session);
  // To another hub, if this one ends.
  bool canReturn() const { return welcomed_ && !place_.neighbours.empty() && !isClosed_; }
  void lose(std::string_view why);
  void hubIsOver();
  void seek();
  void seekAt(Clock::time_point when);
  // Passes by the standby that is next, which is closed, or whose host is silent; kConnected: it alone says nothing.
  void pass(Knock::Word word);
  bool isUnheard() const;
  bool isAtLostHub() const { return place_.neighbours[search_.next].rank == kHubItself || search_.hasReturned; }
  // What it is found to be at once; kNone: that is still to come.
  Knock::Word tryStandby(const Neighbour& at);
  std::chrono::milliseconds longestSearch() const;
  void returnBy(const std::optional<Session>& session, Socket socket);
  void askToEnd(Session session, const Socket& socket);
  void loseForGood(std::string_view why);
  void endAllWithHub(std::string_view why);
  std::vector<SharedFrame> allToSay() const;
  // Where there is no memory for it, the exchange is over.
  void request(const ExchangeKey& key, const std::shared_ptr<Exchange>& exchange);
  static SharedFrame requestFor(const ExchangeKey& key, const Exchange& exchange);
  bool isNews(std::uint64_t key, int from, std::uint64_t number);
  void hearResult(std::uint64_t number, std::uint64_t settled);
  void failExchanges(const Status& why);
  // Of those that were first asked for after this result.
  void failExchangesOf(std::uint64_t key, const Status& why, std::uint64_t since);
  Status lossOfHub(std::string_view why) const;
  std::string afterWhat() const;

  struct Question {
    int rank;                             // that was asked
    std::weak_ptr<PendingAnswer> answer;  // weak: the asker may have given up
    SharedFrame request;
  };
  struct Questions {
    std::map<std::uint64_t, Question> byNumber;
    std::uint64_t last = 0;
  };
  // The hub, and its process.
  struct HubProcess {
    Secret secret{};  // by which the hub is known, if it is in this process
    std::string is = "which made the unique id";
    std::string name;        // "pid P on HOST"
    std::string address;     // of the first one: at which this rank has found it
    std::vector<int> ranks;  // that live in it and have not left
    std::string knows;       // the failures that a rank in it knows of; empty: none
    Clock::time_point knowsAt{};
    // Exchanges of which it has still to say that this rank's part is withdrawn. Until then a result is of that part,
    // and it is not asked for one that this rank has begun anew.
    std::set<ExchangeKey> withdrawn;
    BillboardView billboard;
    std::unique_ptr<BillboardFile> kept;  // the billboard that this rank keeps for its host
  };
  struct Gone {
    bool hasLeft = false;
    std::string farewell, known;
    Clock::time_point since = Clock::now();
    bool isTold = true;  // as a death, and not in a vote alone
  };
  struct Kept {
    std::uint64_t number;  // the hub's
    ExchangeKey key;
    Status status;
    std::string members;             // as they are sent
    std::vector<std::string> parts;  // of the result, likewise; one, with no blobs, of an error
    std::size_t bytes() const;
  };
  void keep(Kept result);
  void forgetOldestResult();
  // What another hub is told, where there can be one.
  struct Memory {
    std::map<int, Gone> gone;         // ranks that have left or died
    std::vector<int> counting;        // of which more than half have to be together where some are silent
    std::string lastDeath;            // "rank 3 (pid 7 on HOST) died: ..."
    Clock::time_point lastDeathAt{};  // when this rank heard of it
    std::deque<Kept> results;         // that some rank may not have got, oldest first
    std::size_t resultBytes = 0;      // of these
    std::uint64_t lastResult = 0;     // the largest number that was heard
    std::deque<SharedFrame> reports;  // of this rank, oldest first
    std::uint64_t lastReport = 0;
    std::map<std::uint64_t, std::vector<std::pair<int, std::uint64_t>>> heard;  // reports, by key
    std::deque<std::uint64_t> heardKeys;                                        // oldest first
  };
  // For another hub.
  struct Search {
    bool isOn = false;
    bool hasReturned = false;      // to the hub behind `next`
    bool isHubOver = false;        // the last one, whose connection was lost
    bool isGivenUp = false;        // by a hub that lives, or may live
    std::set<std::string> silent;  // addresses of hosts whose standbys were passed by, and may be open
    std::string cutOff;            // why a hub has given up all its ranks
    std::string why;               // it was
    std::string lack;              // what this process had none of, for the last knock
    std::string after;             // of a rank in the last hub's process: its end, in words
    std::string afterKnown;        // and what it knew of
    std::shared_ptr<Knock> knock;
    Clock::time_point askedAt{};       // the last hub, to end; 0: it was not
    Clock::time_point unheardSince{};  // nobody has answered at `next` since then; 0: nobody was asked
    std::size_t next = 0;              // the neighbour whose standby is tried; those before it were passed by
    std::uint64_t firstResult = 0;     // of the hub that was returned to; requests that are older have been repeated
    Clock::time_point until{};         // 0: no hub is lost, or another one has taken this rank
    Reactor::TimerId timer = 0;
  };

  Reactor& reactor_;
  int rank_;
  HubProcess hub_;
  std::shared_ptr<Standby> standby_;  // this rank's, until it has left
  std::shared_ptr<Channel> channel_;
  Handover joined_;
  Handover left_;
  bool welcomed_ = false, leaving_ = false, hasFarewell_ = false, isClosed_ = false;
  Secret jobKey_{};  // written once, before joined_ is finished
  Status unusable_;  // why no frame can be sent any more
  Subscriptions subscriptions_;
  std::set<std::uint64_t> families_;  // of which the hub has been told
  std::map<ExchangeKey, std::shared_ptr<Exchange>> exchanges_;
  Questions questions_;
  Succession place_;
  Memory memory_;
  Search search_;
};

}  // namespace kolo::bootstrap
