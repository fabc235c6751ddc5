// A rank's NICs, and its ways to all peers.
//
// Thread safety: one thread at a time, the core's, for all but the functions of Callee and Owner, which the listener's
// and the service's threads call. Invariants: work_ guards the ways, the regions and what is under way. It is the
// core's, which nobody else wants but the service, when the core has not called for a while although something is under
// way: a lane may fail after a rank has left an operation for a long time. Lock order: the listener's, work_, the
// connector's.
#pragma once

#include <optional>
#include <span>

#include "../connect/connector.h"
#include "service.h"

namespace kolo::ib {

// The right to put bytes into one memory of one peer, and into others of it by key.
struct Link {
  Way* way;
  Target memory;
  std::uint64_t bytes;
  bool isOfDevice;  // a GPU's memory
  Load load;
};

class Device final : private connect::Connector<Way>, private Service::Owner {
 public:
  Device() : Connector(party_), regions_(nics_) {}
  int open(const koloTransportHost& host, koloTransportBlob* address, const Why& why);
  // Sends what was accepted before it closes.
  ~Device();

  connect::Party& party() { return party_; }
  int registerRegion(const Range& range, const Why& why, Region** region);
  Target relax(Region& region);
  // wanted: all but its way.
  int openLink(const connect::Address& peer, const Link& wanted, const Why& why, Link** opened);
  void closeLink(Link* link);
  void abandonLink(Link& link);
  // As koloTransport.deviceNics.
  int tellNics(std::span<koloTransportNic> nics);
  // Waits until nothing that is under way reads the region any more.
  void deregister(Region* region);
  int put(Link& link, const koloTransportPut& put, const Why& why);
  int state(const Link& link, const Why& why);
  Load loadOf(const Link& link);
  bool progress(int peer, int waitUs);
  // Closes all lanes: nothing is waited for any more.
  void abandon();
  // False in a forked child, where all objects are the parent's: giving one back there would take it away here.
  bool isOurs() const { return party_.isOurs(); }

 private:
  void arrive(const connect::Caller& caller, std::vector<network::Socket> rails) override;
  Way* findWay(const connect::IdKey& peer) override;  // takes work_
  int makeWay(const connect::Caller& to, const connect::Address& peer, std::vector<network::Socket> rails,
              Clock::time_point deadline, const Why& why, std::unique_ptr<Way>* way) override;
  void hasArrived(Way& way) override;
  void greeted(const connect::Caller& peer, std::unique_ptr<Way> way) override;
  void hasNews() override;
  bool hasWork() override;
  void workInstead() override;

  int makeProbes(const Why& why);
  void rest(int waitUs);
  void drain(const Load* load);  // takes it, now and then
  // REQUIRES, as all from here on: work_ held.
  void adopt();
  void abandon(Way& way, const char* why);
  bool workAll(bool byCore, int peer);
  void activate(Way& way);
  int answerLost(Way& way, const Why& why);
  void lookAfter();
  int describe(Link& link, const koloTransportPut& put, const Why& why, Request* request);

  connect::Party party_{};
  Settings settings_;
  Nics nics_;
  Regions regions_;
  std::vector<unsigned char> probeRoom_;
  Region* probes_ = nullptr;
  std::optional<Home> home_;
  std::unique_ptr<Service> service_;
  std::mutex work_;                         // what follows, and the regions
  std::vector<std::unique_ptr<Way>> ways_;  // all that this thread has seen
  std::vector<Way*> active_;                // with something under way, or waiting
  std::vector<Way*> byRank_;                // the newest to each rank
  std::size_t nextWay_ = 0;                 // of ways_, to be looked at for packets
  std::vector<std::unique_ptr<Link>> links_;
  Clock::time_point lookedAfter_{};
  unsigned idle_ = 0;  // calls of progress() since something moved

  unsigned calls_ = 0, seenCalls_ = 0;  // of the core; what the service has seen of them
  bool wasCalled_ = false;              // in the service's last tick

  std::atomic<bool> hasNews_{false};  // [ib news]
};

}  // namespace kolo::ib
