// From a proven connection to a way: which ports belong together, a queue pair for each lane, and a trial write each
// way by each of them, waited for a few seconds at most. It never blocks: the dialler drives it in linkOpen, the
// answerer's service thread beside all others.
//
// Thread safety: one thread at a time.
#pragma once

#include "pairing.h"
#include "way.h"

namespace kolo::ib {

// What a greeting needs of its device; all of it stays.
struct Home {
  Nics& nics;
  Regions& regions;
  const Settings& settings;
  unsigned char* probes;  // kProbeBytes for each rank
  Target probesTarget;
  void (*log)(int level, const char* line);
};

class Greeting {
 public:
  Greeting(Home& home, connect::Caller peer, network::Socket socket, bool isDialler);

  enum class Outcome { kGoesOn, kDone, kFailed };
  Outcome advance();
  std::unique_ptr<Way> takeWay() { return std::move(way_); }
  const connect::Caller& peer() const { return peer_; }
  // Of a failure.
  const std::string& story() const { return story_; }
  int fd() const { return talk_.fd(); }
  short awaits() const;
  // It waits for completions, of which no descriptor tells.
  bool isTrying() const { return stage_ == Stage::kTrial; }
  bool isOld(Clock::time_point now) const;

 private:
  enum class Stage { kOffer, kAnswer, kStart, kTheirTrial, kTrial, kLast, kDone, kFailed };
  bool hearOffer();
  bool hearAnswer();
  bool hearStart();
  bool hearTheirTrial();
  bool hearLast();
  bool advanceTrial();
  bool hear(Kind kind, Message* message);
  bool fail(const std::string& story);
  void introduce(Message* message) const;
  bool openLanes(const Message& ports, const std::vector<PortPair>& pairs);
  void connectLanes(const Message& theirs);
  void startTrial(std::uint8_t mask);
  std::uint8_t checkProbes(std::uint8_t mask) const;
  void say(Message* message);
  void sayProven();
  bool conclude(std::uint8_t mask);
  void tell() const;

  Home& home_;
  connect::Caller peer_;
  network::Talk talk_;
  bool isDialler_;
  Stage stage_;
  std::string story_;
  Clock::time_point since_, trialSince_{};
  std::uint64_t nonce_;
  Message theirs_{};                          // their Offer or Answer
  std::vector<PortPair> pairs_;               // mine and theirs, of each lane
  std::vector<std::unique_ptr<Lane>> lanes_;  // null: it could not be made
  std::uint8_t trying_ = 0, proven_ = 0;      // bits of lanes
  std::unique_ptr<Way> way_;
};

}  // namespace kolo::ib
