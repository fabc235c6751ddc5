// A rank's end of all its connections.
//
// Thread safety: one thread at a time, the core's, for all but the functions of Callee, which the listener's thread
// calls. Invariants: the lock guards what both threads touch: which ways there are, and who is dialling. Bytes are
// received by the core's thread only. Lock order: the listener's before the device's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "../connect/dial.h"
#include "way.h"

namespace kolo::tcp {

using common::Why;

// The right to put bytes into one memory of one peer, and into others of it by key.
struct Link {
  Way* way;
  std::uint64_t memory;
  std::uint64_t bytes;
  Load load;
};

class Device final : private connect::Callee {
 public:
  int open(const koloTransportHost& host, koloTransportBlob* address, const Why& why);
  // Sends what was accepted before it closes.
  ~Device();

  connect::Party& party() { return party_; }
  Memories& memories() { return memories_; }
  void deregister(std::uint64_t memory);
  int openLink(const connect::Address& peer, std::uint64_t memory, std::uint64_t bytes, const Why& why, Link** opened);
  void closeLink(Link* link);
  int put(Link& link, const koloTransportPut& put, const Why& why);
  int state(const Link& link, const Why& why);
  static Load loadOf(const Link& link) { return link.load; }
  bool progress(int peer, int waitUs);
  // Nothing moves any more, and closing does not wait for the peers.
  void abandon();

 private:
  using Lock = std::unique_lock<std::mutex>;

  connect::Decision decide(const connect::Caller& caller) override;
  void arrive(const connect::Caller& caller, std::vector<network::Socket> rails) override;
  void giveUp(const connect::Caller& caller) override;
  void log(int level, const char* line) override;

  int connectTo(const connect::Address& peer, const Why& why, Way** found);
  std::unique_ptr<Way> makeWay(const connect::Caller& peer, std::vector<network::Socket> rails);
  std::uint64_t lendFrom(const network::Socket& socket) const;
  void know(std::unique_ptr<Way> way);
  Way* findWay(const connect::IdKey& peer);
  void adopt();

  bool sendGathered();
  bool work(Way& way);
  bool work(Rail& rail, bool receives, bool sends);
  bool poll(int waitUs);
  void await(Rail& rail);
  void arm(Rail& rail, bool wants);
  void breakDown(Way& way, int errnum);
  void lose(Way& way, const std::string& why);
  void checkEnded(Way& way);
  bool takeRest(Way& way);
  static void takeBack(Rail& rail);
  void lookAfter();
  int describe(Link& link, const koloTransportPut& put, const Why& why, Frame* frame) const;
  void finish();

  connect::Party party_{};
  bool isAbandoned_ = false;
  void (*log_)(int, const char*) = nullptr;
  bool checksPayload_ = false;
  std::int64_t lendFrom_ = -1;  // as KOLO_TEST_TCP_ZEROCOPY_BYTES
  network::Socket epoll_;
  Memories memories_;
  Way::Scratch scratch_;
  std::vector<std::unique_ptr<Way>> ways_;  // all that this thread has seen
  std::vector<std::vector<Way*>> byRank_;
  std::vector<Rail*> blocked_;    // to be armed before the next look at the epoll
  std::vector<Rail*> gathering_;  // with short requests that nothing but the next call keeps from going
  unsigned calls_ = 0;
  Clock::time_point lookedAfter_{};
  std::vector<std::unique_ptr<Link>> links_;

  std::mutex lock_;  // the rest
  std::condition_variable changed_;
  std::map<connect::IdKey, Way*> known_;  // the newest way to each peer, unless it is lost
  std::vector<std::unique_ptr<Way>> arrived_;
  std::atomic<bool> hasArrived_{false};
  std::map<connect::IdKey, int> accepting_;  // the listener takes their connections just now
  std::optional<connect::IdKey> dialling_;
};

}  // namespace kolo::tcp
