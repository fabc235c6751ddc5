// A rank's end of all its connections.
//
// Thread safety: one thread at a time, the core's, for all but the functions of Callee, which the listener's thread
// calls. Invariant: bytes are received by the core's thread only.
#pragma once

#include <atomic>
#include <memory>

#include "../connect/connector.h"
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

class Device final : private connect::Connector<Way> {
 public:
  Device() : Connector(party_) {}
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
  void arrive(const connect::Caller& caller, std::vector<network::Socket> rails) override;
  Way* findWay(const connect::IdKey& peer) override;
  int makeWay(const connect::Caller& to, const connect::Address& peer, std::vector<network::Socket> rails,
              Clock::time_point deadline, const Why& why, std::unique_ptr<Way>* way) override;
  void hasArrived(Way& way) override;

  std::unique_ptr<Way> wayOf(const connect::Caller& peer, std::vector<network::Socket> rails, bool isDialler);
  std::uint64_t lendFrom(const network::Socket& socket) const;
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
  std::atomic<bool> hasArrived_{false};
};

}  // namespace kolo::tcp
