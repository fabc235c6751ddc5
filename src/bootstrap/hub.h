// The relay of one job: knows its ranks, gathers their blobs, spreads the news of deaths and failures.
//
// Work for each event is linear in what has to be sent: deaths noticed together are told together, results and news are
// one frame shared by all receivers, and the first reports of a failure spare the others: later reports for a key are
// dropped beyond kMaxFailuresPerKey, but for each rank's first about itself.
//
// A rank whose call failed may end at once, and its end is noticed by others before that of the rank which was the
// cause. So the hub notes for each rank the failures that it knows of: what it was told, and what it has reported. The
// news of its end names them too. This is complete: a rank learns of failures from the hub, which notes them before it
// tells, or by itself, and then has given its report to the kernel before its call returns; the hub reads what a rank
// has sent before it finds its end. The end of the hub's own process is noticed by all, with nobody left to ask: before
// a rank in it is told of a failure, or returns one, the hub has given the kernel the same news for all other
// processes.
//
// Thread safety: reactor thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bootstrap/billboard.h"
#include "bootstrap/channel.h"
#include "bootstrap/process_info.h"
#include "bootstrap/standby.h"
#include "bootstrap/subscriptions.h"

namespace kolo::bootstrap {

constexpr int kMaxRanks = KOLO_MAX_RANKS;
// Of the texts of failures that a rank knows of.
constexpr std::size_t kMostKnownBytes = 300;
// And of what is said of the end of a rank that is missed.
constexpr std::size_t kMostFarewellBytes = 2 * kMostKnownBytes;
// What a rank may have under way at once. No program of threads that wait has so much. Of the bytes of its blobs, and
// of the results that it keeps for others.
constexpr std::size_t kMaxGathersOfRank = 1 << 12, kMaxFamiliesOfRank = 1 << 18;
constexpr std::size_t kMaxGatherBytesOfRank = 64u << 20, kMaxResultBytesOfRank = 64u << 20;

class Hub : public std::enable_shared_from_this<Hub> {
 public:
  // `over` is called once, when no rank is left or the job failed to form and its time is up.
  Hub(Reactor& reactor, const Secret& secret, std::function<void(const Hub*)> over)
      : reactor_(reactor), secret_(secret), over_(std::move(over)) {}

  const Secret& secret() const { return secret_; }
  // The job failed to form; it will not any more.
  bool failed() const { return !failed_.ok(); }
  // The job has formed, and ranks of it have left or died. Who comes now is of the job's next run.
  bool isEnding() const { return gone_ > 0 && !isSuccessor_; }
  // Takes the place of the hub that the ranks have lost. They return one by one, and say what they wait for.
  void succeed(const Succession& succession);
  // The job, of so many ranks, will not form, and why, which this rank knows; of one that has formed nothing comes of
  // this.
  void fail(int rank, int ranks, const Status& why);
  // The job failed to form, and ranks that are probably about to come have not been told yet.
  bool isAwaited() const { return failed() && !allTold() && Clock::now() < awaitedUntil_; }
  // Runs the task once all ranks have been told that the job failed to form, or that can wait no longer.
  void whenTold(std::function<void()> task);
  // Reads what a rank in this process has sent, and hands the news to the kernel for all other processes: this one may
  // end at any time from then on. False: the hub does not have the rank.
  bool readHere(int rank);
  // The process exits.
  void end();
  // Takes over a connection whose other end has proved that it holds the secret; or the key of this run of the job, and
  // returns. The socket stays the caller's if this throws.
  void admit(Socket&& socket, const Session& session, bool returns);
  // Somebody there has named this job and then not proved that it holds the secret. It may be a rank, whose user is
  // told; nothing else follows from what a stranger says.
  void hasRefused(const std::string& where);

 private:
  using GatherKey = std::pair<std::uint64_t, std::uint64_t>;                 // key, sequence
  using ResultKey = std::tuple<GatherKey, std::vector<int>, std::uint64_t>;  // members, number
  // Of a rank that returns: the result that it is just telling, and how many it has told.
  struct Brought {
    ResultKey id;
    std::vector<SharedFrame> frames;
    std::uint32_t have = 0;  // blobs
    std::size_t results = 0, bytes = 0;
  };
  // A standby's name, and where other places reach it.
  struct Door {
    std::uint64_t stack = 0;  // stackIdentity()
    std::string name, address;
    bool isGiven = false;  // the address is its user's word
    std::uint16_t port = 0;
    std::string reached;               // the hub's address for it
    std::string lack;                  // why it has no name, or no port; empty: it needs none
    std::optional<Address> own, peer;  // of the ends of its connection, as the hub sees them; none: within the host
    bool read(Decoder& decoder);       // as a rank says; false: it cannot be
    bool isTranslated(bool isHubGiven) const;  // the ends disagree
  };
  // The billboard that a rank reads, and the one that it has been invited to since.
  struct Reading {
    std::shared_ptr<Billboard> billboard, next;
    Billboard::ReaderPtr reader;  // null: it reads none
  };
  // What a rank said while this hub was mute.
  struct Held {
    std::vector<std::string> frames;
    std::size_t bytes = 0;
  };
  enum class Vote : std::uint8_t { kUnasked, kAsked, kGiven };
  // It has left an earlier hub, which told it no farewell; or is told that when the others know.
  enum class Stay : std::uint8_t { kStays, kHasLeftBefore, kLeaves };
  struct Member {
    std::shared_ptr<Channel> channel;
    int rank = -1;  // until it has joined
    std::uint32_t pid = 0;
    std::string host;
    Identity process{};
    std::uint64_t place = 0;
    Door door;
    Held held;
    Stay stay = Stay::kStays;
    bool isBack = false;                       // has said all that it has to say after an earlier hub's end
    bool isLate = false;                       // or had no more time for it
    Vote vote = Vote::kUnasked;                // whether it takes those for dead whom the last vote names
    std::size_t gathers = 0, gatherBytes = 0;  // that it takes part in; of its blobs
    Brought brought;
    Reading reading;
    Reactor::TimerId joinTimer = 0;
    std::set<std::uint64_t> subscriptions;  // families
    std::string known;  // the failures of late that it knows of, the first first: "rank 3 (pid 7 on host) died: ..."
    Clock::time_point knownAt{};
  };
  using MemberPtr = std::shared_ptr<Member>;

  // A place with ranks that have joined.
  struct Host {
    int ranks = 0;
    int keeper = -1;                       // the rank that keeps its billboard, if it is not the hub's own
    std::shared_ptr<Billboard> billboard;  // null: there is none
  };

  // What is known of the standby of a rank that does not answer.
  struct Look {
    std::shared_ptr<Knock> knock;  // under way
    Clock::time_point since{};     // it is, or was
    Knock::Word word{};
    Clock::time_point begunAt{};       // the first one since the rank is missed
    Clock::time_point unheardSince{};  // nobody has answered since then, though connections may be taken
    bool isUnheard() const;            // for as long as a host may be silent
    Clock::time_point deafSince{};     // no way leads there, or it has another hub; 0: neither
  };
  // kAwaited: it has not returned after the last hub's end.
  enum class State : std::uint8_t { kAbsent, kJoined, kAwaited, kLeft, kDead };
  // What ranks have reported for a key.
  struct Reported {
    std::uint64_t family = 0;
    Status first;
    std::vector<SharedFrame> frames;  // as kReported
    std::size_t ofOthers = 0;         // reports of a rank about another one, or none; frames has the first
    std::set<int> ofThemselves;       // the ranks of the other reports, of which frames has each rank's first
  };
  struct Slot {
    State state = State::kAbsent;
    MemberPtr member;      // while joined
    std::string farewell;  // of those left or dead: why nothing comes from it any more
    std::string known;     // of those: the failures that it knew of before, of which its end may be the consequence
    Neighbour neighbour;
    Look look;
    std::optional<std::string> lostBy;     // of one that is joined: why its connection has ended
    std::optional<std::string> givenUpBy;  // of one that is joined: why others count it as dead
    bool isVotedOut = false;               // a vote has named it: some may take it for dead, with any hub
    bool hasLeft = false;                  // of those that are awaited, as far as the ranks that have returned know
    bool isOld = false;                    // its end, as they say: nothing follows from it now
    Clock::time_point diedAt{};
    bool isDeadOfLate() const { return Clock::now() - diedAt < kConsequenceTime; }
    std::string words() const { return known.empty() ? farewell : farewell + ", after " + known; }
  };

  struct Contribution {
    MemberPtr from;  // null: none yet, or withdrawn
    std::string blob;
    Reactor::TimerId timer = 0;
    std::uint64_t after = kNeverAsked;  // the last result that its rank had heard of when it asked an earlier hub
  };
  struct Gather {
    std::vector<int> members;
    std::string membersAsSent;        // by the first that has come
    std::vector<Contribution> parts;  // by index
    std::size_t have = 0;
  };
  struct Question {
    std::uint64_t key, number;
    std::int32_t rank;  // that is asked
    std::string text;
    Clock::time_point until;  // for which the rank is awaited
  };

  bool onFrame(const MemberPtr& member, std::string_view bytes);
  void onClosed(const MemberPtr& member, std::string_view why);

  // Joining: hub.cc
  bool onJoin(const MemberPtr& member, Decoder& decoder);
  bool onDecline(const MemberPtr& member, Decoder& decoder);
  void claim(const MemberPtr& member, int ranks, std::uint32_t leftMs, std::uint32_t timeoutMs);
  void refuse(const MemberPtr& member, const Status& why);
  void turnAway(const MemberPtr& member);
  void failJob(Status why);
  bool allTold() const { return static_cast<int>(told_.size()) >= expected_; }
  void markTold(int rank);
  void runToldTasks();
  void welcomeAll();
  void finish();
  void finishWithoutRanks();
  void tellOutsiders(const Member& member);
  void pushToOutsiders();
  void note(Member& member, const std::string& failure, const std::string& before = {});
  std::vector<int> absentRanks() const;
  static std::string describe(const Member& member);

  // Many ranks of a host: hub_billboards.cc
  void broadcast(const SharedFrame& frame, bool outsidersOnly);
  void tell(const std::vector<MemberPtr>& members, const SharedFrame& frame);
  void offerBillboard(Member& member);
  void askForBillboard(Host& host);
  void invite(Member& member);
  bool onReadsBillboard(const MemberPtr& member, Decoder& decoder);
  static bool onRead(const MemberPtr& member, Decoder& decoder);
  bool onKeepsBillboard(const MemberPtr& member, Decoder& decoder);
  bool onPosted(const MemberPtr& member, Decoder& decoder) const;
  void endBillboardOf(const Member& member);
  void replaceKeepers();
  void hurryBillboards();

  // Ends of ranks: hub_ends.cc
  void onLeave(const MemberPtr& member);
  std::vector<SharedFrame> newsOfLeavers(std::size_t first) const;
  void flushLeavers();
  void goneFromJob(int rank, State state, std::string farewell);
  void diedInJob(int rank, std::string who, std::string farewell);
  std::vector<SharedFrame> newsOfDeaths(const std::vector<int>& ranks) const;
  void flushDeaths();
  void endForAll(const SharedFrame& news);

  // After the end of an earlier hub: hub_succession.cc
  void tellNeighbours();
  std::string listOfNeighbours();
  std::string whyNotFollowed(const std::string& lack) const;
  bool onReturn(const MemberPtr& member, Decoder& decoder);
  bool onReturnToFirst(std::string_view bytes);
  void takeCounting(std::vector<int> counting, int by);
  void limitReturnOf(const MemberPtr& member);
  bool onFinished(const MemberPtr& member, Decoder& decoder);
  bool onResult(const MemberPtr& member, Decoder& decoder);
  bool takeInherited(const GatherKey& id, const std::vector<int>& members, std::uint64_t after,
                     const MemberPtr& member) const;
  bool mayBeInherited(const Gather& gather) const;
  void receive(const MemberPtr& member);
  void tellOfTheDead(const MemberPtr& member);
  void expectNoMoreOf(Member& member);
  void expectOneLess();
  static std::string describe(const Neighbour& rank);

  // Where ranks are silent: hub_silence.cc
  void hasLost(const MemberPtr& member, std::string_view why);
  void lookAfterAwaited();
  void lookAt(int rank);
  void judge();
  void judgeSoon();
  void buryTheCertain();
  bool hasEnded(int rank) const;
  void callVotes();
  void endVote();
  void nameEnd(Slot& slot);
  void bury(int rank);
  bool hold(const MemberPtr& member, std::string_view bytes);
  void speak();
  std::string whyCutOff() const;
  void cutOff();
  void askToVote();
  bool onVoted(const MemberPtr& member, Decoder& decoder);
  void tellCounting();
  static bool isMissed(const Slot& slot) { return slot.state == State::kAwaited || slot.lostBy.has_value(); }
  static void note(Look& look, Knock::Word word, Clock::time_point since);
  void endKnock(Look& look);
  void forget(Look& look);
  static bool isDeaf(const Slot& slot);
  static bool isPresent(const Slot& slot);
  static bool hasVoted(const Slot& slot) { return isPresent(slot) && slot.member->vote == Vote::kGiven; }
  static bool mayCome(const Slot& slot);
  static bool isWithAnother(const Slot& slot);
  bool isAllKnown() const;
  bool areEnough(bool (*counts)(const Slot&)) const;

  // Gathers, failures and questions: hub_gather.cc
  bool onGather(const MemberPtr& member, Decoder& decoder);
  Gather& gatherOf(const GatherKey& id, const std::vector<int>& members, std::string_view asSent);
  void endIfHopeless(const GatherKey& id, const MemberPtr& member);
  bool onWithdraw(const MemberPtr& member, Decoder& decoder);
  bool onSubscribe(const MemberPtr& member, Decoder& decoder);
  bool onUnsubscribe(const MemberPtr& member, Decoder& decoder);
  bool onReport(const MemberPtr& member, Decoder& decoder);
  void forgetOldFailures();
  bool onAsk(const MemberPtr& member, Decoder& decoder);
  void ask(const MemberPtr& member, const Question& question);
  bool onAnswer(const MemberPtr& member, Decoder& decoder);
  Member* joined(int rank) const;
  void unsubscribe(const MemberPtr& member, std::uint64_t family);
  void completeGather(const GatherKey& key);
  // failure, before: what is noted of the ranks that are told
  void failGather(const GatherKey& key, const Status& why, const std::string& failure, const std::string& before = {});
  void failHopelessGathers();
  void tellThatItCountsAsDead(const Slot& slot, int rank);
  const Slot* missedBy(const Gather& gather) const;
  std::map<GatherKey, Gather>::const_iterator findRival(const GatherKey& id, int rank) const;
  static Status disagreement(const Gather& one, const Member& member, const std::vector<int>& members);
  void release(const Contribution& part);
  void settle(const Gather& ended, std::uint64_t number);
  void settleWhatHasArrived();
  void timeOutContribution(const GatherKey& key, std::size_t index, std::uint32_t timeoutMs);
  void withdraw(const GatherKey& key, std::size_t index);
  static std::vector<int> missingRanks(const Gather& gather);

  Reactor& reactor_;
  Secret secret_;
  std::function<void(const Hub*)> over_;
  Status failed_;
  int expected_ = 0;    // ranks of the job, as far as is known
  std::set<int> told_;  // ranks that know that it failed to form
  Clock::time_point awaitedUntil_{};
  std::string hint_;  // why ranks may be missing, as far as strangers let one guess; "" or "; ..."
  std::vector<std::function<void()>> toldTasks_;
  bool complete_ = false;
  int alive_ = 0;          // joined and neither left nor dead
  int gone_ = 0;           // left or dead
  std::string lastDeath_;  // "rank 3 (pid 7 on host)": the rank that died last
  Clock::time_point lastDeathAt_{};
  std::string hostKnows_;    // what a rank in this process knows of, as other processes were told last
  std::string firstClaim_;   // the process that said first how many ranks there are
  std::vector<Slot> slots_;  // by rank; sized by the first to join
  std::set<MemberPtr> unjoined_;
  std::vector<int> newlyDead_;
  std::vector<MemberPtr> leavers_;  // not told farewell yet
  std::size_t toldLeavers_ = 0;     // of whom the others have been told
  Clock::time_point leaversAt_{};   // of further ones not before
  Reactor::TimerId leaversTimer_ = 0;
  std::map<GatherKey, Gather> gathers_;
  std::unordered_map<std::uint64_t, std::set<MemberPtr>> subscribers_;  // by family
  std::unordered_map<std::uint64_t, Reported> failures_;                // by key
  std::deque<std::uint64_t> failedKeys_;                                // oldest first
  std::map<std::uint64_t, Host> hosts_;                                 // by place
  std::set<std::uint64_t> keeperless_;                                  // places whose keeper is gone
  std::size_t failureBytes_ = 0;                                        // of their frames
  bool isFollowed_ = false;  // the ranks know of all standbys, so another hub may take this one's place
  bool isNumbered_ = false;  // its results are, for a rank may have to bring them to another hub
  bool isWide_ = false;      // some ranks are in other places
  // A successor that was made behind a silent standby answers nothing before more than half of those that count are
  // here.
  bool isMute_ = false;
  Clock::time_point madeAt_{}, votedAt_{};                                  // a vote was called for last
  std::uint64_t vote_ = 0;                                                  // the number of the last one
  std::vector<int> named_;                                                  // by it, sorted
  std::vector<int> counting_;                                               // the ranks that count, sorted
  bool isCountingNews_ = false;                                             // to some
  bool isToJudge_ = false;                                                  // before this round is over
  std::vector<int> saidToCount_;                                            // by the rank that returned last
  int looks_ = 0, nextLook_ = 0;                                            // under way; at which rank first
  std::shared_ptr<Standby> standby_;                                        // by which ranks know that this hub lives
  std::uint64_t firstResult_ = 0, lastResult_ = 0, settled_ = 0;            // numbers of results; own: after the first
  std::deque<std::pair<std::uint64_t, std::vector<MemberPtr>>> unsettled_;  // and who gets them
  bool isSuccessor_ = false;
  std::string afterHub_;  // of what the end of a rank that does not return may be the consequence
  std::map<ResultKey, std::vector<SharedFrame>> inherited_;  // results of earlier hubs
  Reactor::TimerId lookTimer_ = 0;
  std::chrono::milliseconds lookPause_{10};
  int unreturned_ = 0;  // ranks that may still ask for a result of an earlier hub
};

}  // namespace kolo::bootstrap
