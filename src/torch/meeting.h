// How the ranks of a group exchange what they need to make it, by torch's store: all tell rank 0, then rank 0 tells
// all.
//
// The store may have been used before: torchrun starts killed ranks again beside the same store (with --master-port),
// and an earlier group may have had the same name. What was written then is still there. So each rank writes a number
// that it has drawn. Rank 0 answers with a number of its own, under a key that has the rank's number in its name. All
// further keys have rank 0's number in their names. What an earlier attempt wrote is therefore no answer.
//
// Thread safety: of one thread.
#pragma once

#include <kolo/kolo.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "torch/c10d.h"

namespace kolo::pytorch {

class Meeting {
 public:
  struct Venue {
    c10d::Store& store;
    std::string key;  // of the group's own
    int rank = 0, size = 1;
    std::string group;                  // its name, for messages
    std::chrono::milliseconds timeout;  // for all that follows
    std::function<std::string()>
        whyInVain;  // why a rank cannot come any more; "": all may. Asked while this rank waits
  };
  explicit Meeting(Venue venue);

  // Collective. On rank 0 what each rank tells, on the others nothing. Errors name the ranks that are missing.
  std::vector<std::string> gather(const std::string& text);
  // Collective, after gather(). Rank 0's text, on all ranks. Rank 0 does not wait.
  std::string broadcast(const std::string& text = {});
  // After gather(): the same on all ranks, and no other meeting's.
  const std::string& token() const { return token_; }

  // Tries until it succeeds: "". Otherwise why this rank gives up: the time is over, a rank cannot come any more, or
  // the handler of a signal has raised an exception, which signals::endWait() throws. whatFor: what it waits for, for
  // the message. attempt: told how long it may wait.
  std::string keepTrying(const std::string& whatFor,
                         const std::function<bool(std::chrono::milliseconds)>& attempt) const;
  // What came of a call of Kolo's that all members have to make. Its error begins with why a rank cannot come any more.
  void check(koloResult_t result) const;
  [[noreturn]] void fail(const std::string& why) const;

 private:
  using Clock = std::chrono::steady_clock;

  void answerUntilAllTell();
  bool await(const std::vector<std::string>& keys, std::chrono::milliseconds most) const;
  void awaitRank0(const std::string& key) const;
  std::string missingRanks() const;
  std::string lateFor(const std::string& whom) const;

  std::string numberKey(int of) const { return venue_.key + "/" + std::to_string(of); }
  std::string answerKey(const std::string& number) const { return venue_.key + "/to/" + number; }
  std::string textKey(int of) const { return venue_.key + "/" + token_ + "/" + std::to_string(of); }
  std::string wordKey() const { return venue_.key + "/" + token_ + "/word"; }
  // Of all ranks but 0.
  template <class KeyOf>
  std::vector<std::string> keys(KeyOf&& keyOf) const {
    std::vector<std::string> all;
    for (int of = 1; of < venue_.size; ++of) all.push_back(keyOf(of));
    return all;
  }

  const Venue venue_;
  const Clock::time_point until_;
  std::string token_;  // rank 0's number
};

}  // namespace kolo::pytorch
