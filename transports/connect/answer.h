// The listener's side of one connection, from Hello to Verdict. It is driven by the listener's thread, never blocks,
// and tells nothing to a caller that has not proven which rank it is.
//
// Thread safety: one thread at a time.
#pragma once

#include <chrono>

#include "talk.h"
#include "wire.h"

namespace kolo::connect {

using Clock = std::chrono::steady_clock;

// The devices that may be dialled here.
class Directory {
 public:
  struct Entry {
    Key key;
    std::uint32_t rank;
  };
  virtual const Entry* find(const Id& device) const = 0;
  // Of a connection that has been proven both ways.
  virtual Decision decide(const Hello& hello) = 0;

 protected:
  ~Directory() = default;
};

class Answer {
 public:
  Answer(Socket socket, Clock::time_point since) : since_(since), talk_(std::move(socket)) {}

  enum class Outcome { kGoesOn, kOver, kTaken };
  // As far as it goes without waiting. kTaken: the verdict has been sent, and hello() and takeSocket() are the
  // caller's.
  Outcome advance(Directory& directory);
  // What to poll for.
  short awaits() const;
  int fd() const { return talk_.fd(); }
  Clock::time_point since() const { return since_; }
  // Has named a device that is here, which takes a number that only its communicator's ranks know.
  bool isExpected() const { return stage_ > Stage::kHello && stage_ != Stage::kLastWords; }
  const Hello& hello() const { return hello_; }
  Socket takeSocket() { return talk_.takeSocket(); }

 private:
  enum class Stage { kVersion, kHello, kClaim, kFilling, kCommit, kLastWords };

  bool hearVersion();
  bool hearHello(const Directory& directory);
  bool hearClaim();
  bool hearFilling();
  void sayReply();
  bool hearCommit(Directory& directory);
  bool refuse(Status status);

  Clock::time_point since_;
  Talk talk_;
  Stage stage_ = Stage::kVersion;
  bool isOver_ = false;
  Decision decision_ = Decision::kHave;
  Hello hello_{};
  Challenge challenge_{};
  Claim claim_{};
  Key key_{};
};

}  // namespace kolo::connect
