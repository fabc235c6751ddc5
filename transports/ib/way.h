// All that this rank has towards one peer: lanes, the rails that go by them, and the connection by which both say which
// lanes are closed.
//
// Failover. A lane that fails is closed by both ends, each of which tells the other, by the connection and by a write
// that goes by another lane, for the connection may have failed with the port. Only when the peer has said that it
// takes nothing more by the lane, are its requests carried by another one. Until then a write that is still somewhere
// on the way could arrive behind a newer one. What had been under way may have arrived or not, so all of it is
// repeated: first the bytes of all requests, as they are in this rank's memory now, then the newest value of each
// signal. The bytes are right because nothing that is under way is changed before the peer has shown that it has seen
// it (the mirror, src/device/link.h); the order is, because a signal then says what all bytes before it already are;
// and as older values of a signal are left out, none ever goes back. At the other end the packets that came by a lane
// that is closed are carried out before all those of others: take() has the argument.
//
// Bytes that are named by a key go to memory which is their user's as soon as they are there, and never again after
// that. So they are not repeated: with the lane that fails while it carries some, the way is lost, and the core, which
// knows what has arrived, goes on by another transport.
//
// Packets are carried out in the core's calls alone (byCore): the service takes them from the NIC, and leaves them.
//
// Thread safety: the device's thread, but for what is said to be the service's.
// Invariants: a request stands in its rail's queue, or under way on the lane that carries the rail. All of a rail's are
// in order.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "../connect/listener.h"
#include "lane.h"
#include "network/talk.h"

namespace kolo::ib {

using connect::Clock;

class Way {
 public:
  Way(connect::Caller whose, network::Talk connection, Regions& regions)
      : peer(whose), regions_(regions), talk_(std::move(connection)) {}

  enum class Outcome { kAccepted, kBusy, kLost };
  // Counts it in its load.
  Outcome put(const Request& request);
  // Takes completions and packets from the NICs. True if there were any.
  bool poll();
  // Whether packets may be there to be carried out.
  bool hasPackets() const;
  // Carries out packets, posts what waits. True if something has moved. REQUIRES: poll() has been called just before
  // (take()).
  bool work(bool byCore);
  // Of a lost way: carries out what had come before. Whether that is all.
  bool takeLast();
  // Of a lost way: what had come is not wanted any more.
  void forgetLast() { hasTakenLast_ = true; }
  // Whether work() has nothing to do until poll() or hasPackets() says so.
  bool isIdle() const;
  // What the service thread has learnt, and what time tells.
  void lookAfter(Clock::time_point now);
  void lose(const std::string& why);
  bool fitsInline(std::uint64_t bytes) const;

  const connect::Caller peer;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::uint32_t rails = 1;
  Target marker{}, closedThere{};  // words at the peer
  const std::uint64_t* closedHere = nullptr;
  std::uint64_t theirNonce = 0, ownNonce = 0;
  bool isLost = false;
  bool isActive = false;  // stands in the device's list of those to be worked
  std::string why;
  void (*log)(int level, const char* line) = nullptr;

  // ---- the service's thread
  int fd() const { return talk_.fd(); }
  // Takes what the peer says. kSilent: the network does not get through to it.
  enum class Heard { kGoesOn, kEnded, kSilent };
  Heard hear();
  std::atomic<bool> hasEnded{false};  // [ended]
  std::atomic<bool> isSilent{false};  // [ended]

  // Any thread. Whether the peer has closed the connection.
  bool isStale();

 private:
  struct Rail {
    RingQueue<Request> waiting;
    std::size_t lane = 0;
  };
  void start();
  bool pollLane(Lane& lane);
  bool take();
  bool takeFrom(Lane& lane);
  bool carryOut(std::size_t nic, const Packets::Packet& packet);
  void fail(Lane& lane, const std::string& what);
  void failBy(Lane& lane, ibv_wc_status status);
  void moveRails(std::size_t from);
  void replay(Rail& rail, const std::vector<Request>& requests) const;
  bool pump(Rail& rail);
  void finish(const Request& request);
  std::size_t openLanes() const;
  std::string portsDown() const;
  void sayClosed(std::size_t lane);
  void close(Lane& lane);  // from either thread
  std::vector<Lane*> closedLanes() const;
  void sayClosedByWrite();
  void hearClosedByWrite();
  void tryLife(Clock::time_point now);
  bool postTo(const Target& word, std::uint64_t value);
  int indexOf(const Lane& lane) const;

  Regions& regions_;
  std::vector<Rail> rails_;
  Clock::time_point failedAt_{};   // the last lane that the peer has not closed yet; 0: none
  Clock::time_point triedAt_{};    // when a write last asked whether the peer lives
  std::uint64_t saidMask_ = 0;     // of the lanes that the peer has been told of by a write
  Clock::time_point downSince_{};  // the port of the last lane is down
  Clock::time_point heldUpSince_{};
  Clock::time_point lastCameAt_{};          // of a lost way; at first, when it was lost
  bool hasTakenLast_ = false;               // of a lost way
  std::atomic<std::uint32_t> closings_{0};  // calls of close()
  std::string story_;                       // of the lanes that failed
  std::mutex talkLock_;                     // the rest
  network::Talk talk_;
};

}  // namespace kolo::ib
