// The dialler's side of one connection: from connect(2) to the verdict, as far as it goes without waiting.
//
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "network/talk.h"
#include "party.h"

namespace kolo::connect {

class Attempt {
 public:
  // Starts to connect. rail: of the set, below rails.
  Attempt(const Party& self, const Address& peer, const Place& to, const Id& set, std::size_t rail, std::size_t rails);

  enum class Stage {
    kConnecting,
    kChallenge,
    kReply,
    kFilling,
    kProven,  // it is the peer, and the way carries large packets: commit() may be called
    kVerdict,
    kDecided,
    kFailed
  };
  void advance();
  void commit();

  Stage stage() const { return stage_; }
  bool isConnected() const { return stage_ > Stage::kConnecting && stage_ != Stage::kFailed; }
  // May succeed if tried again: the listener was too busy, or has no files for now.
  bool isWorthRepeating() const { return isWorthRepeating_; }
  // The other host has not answered, or is said to be out of reach, as behind a firewall.
  bool isSilent() const { return stage_ == Stage::kConnecting || isSilent_; }
  // What happened so far, for people.
  std::string story() const;
  short awaits() const;
  int fd() const { return talk_.fd(); }
  const Place& place() const { return place_; }
  Decision decision() const { return decision_; }
  Socket takeSocket() { return talk_.takeSocket(); }
  // Of the connection, once it is proven.
  const Key& key() const { return key_; }
  // This process's own trouble, not the way's: an errno.
  int ownErrno() const { return ownErrno_; }

 private:
  void startConnecting(const Place& to, std::uint16_t port);
  bool finishConnecting();
  bool hearChallenge();
  bool judge(const Challenge& challenge);
  bool hearReply();
  bool hearFilling();
  bool hearVerdict();
  bool fail(std::string story);
  bool failToConnect(int errnum);
  bool failByTalk();

  KeyExchange exchange_;
  Place place_;
  Talk talk_{Socket()};
  Stage stage_ = Stage::kConnecting;
  bool isWorthRepeating_ = false;
  bool isSilent_ = false;
  int ownErrno_ = 0;
  std::string story_;
  Decision decision_ = Decision::kHave;
  Hello hello_{};
  Key key_{};
  std::uint64_t filling_ = 0;
};

}  // namespace kolo::connect
