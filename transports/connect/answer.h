// The listener's side of one connection, from Hello to Verdict. It is driven by the listener's thread, never blocks,
// and tells nothing to a caller that has not proven which rank it is.
//
// Thread safety: one thread at a time.
#pragma once

#include <optional>

#include "network/acceptor.h"
#include "network/talk.h"
#include "wire.h"

namespace kolo::connect {

using network::Clock;
using network::Socket;
using network::Talk;

class Answer;

// The devices that may be dialled here.
class Directory {
 public:
  struct Entry {
    Key key;
    std::uint32_t rank;
    unsigned char flags;  // of its Address
  };
  virtual const Entry* find(const Id& device) const = 0;
  // Of a connection that has been proven both ways, and its key.
  virtual Decision decide(const Hello& hello, const Key& key) = 0;
  // kTaken has been said to it.
  virtual void take(Answer& client) = 0;
  // It was decided to take it, but it has gone before that was said.
  virtual void drop(const Hello& hello) = 0;

 protected:
  ~Directory() = default;
};

class Answer final : public network::Stranger {
 public:
  Answer(Directory& directory, Socket socket) : directory_(directory), talk_(std::move(socket)) {}
  ~Answer() override {
    if (decision_ == Decision::kTaken && !hasEntered_) directory_.drop(hello_);
  }

  int fd() const override { return talk_.fd(); }
  short awaits() const override { return talk_.awaits(); }
  Outcome advance() override;
  // Has named a device that is here.
  bool isExpected() const override { return stage_ > Stage::kHello && stage_ != Stage::kLastWords; }
  void enter() override {
    hasEntered_ = true;
    directory_.take(*this);
  }
  const Hello& hello() const { return hello_; }
  Socket takeSocket() { return talk_.takeSocket(); }

 private:
  enum class Stage { kVersion, kHello, kClaim, kFilling, kCommit, kLastWords };

  bool hearVersion();
  bool hearHello();
  bool hearClaim();
  bool hearFilling();
  void sayReply();
  bool hearCommit();
  bool refuse(Status status);

  Directory& directory_;
  Talk talk_;
  Stage stage_ = Stage::kVersion;
  bool isOver_ = false, hasEntered_ = false;
  Decision decision_ = Decision::kHave;
  Hello hello_{};
  Challenge challenge_{};
  Claim claim_{};
  std::optional<KeyExchange> exchange_;  // until the claim
  Key key_{};
};

}  // namespace kolo::connect
