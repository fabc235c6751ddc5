// Who waits for whom: what ranks tell each other through the control plane when waiting takes too long. So a rank whose
// time is over finds the wait from which the others follow, and a peer whose board cannot be read is asked what it has
// called.
//
// Thread safety: plain data, and Waiting from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/caller.h"
#include "base/clock.h"
#include "bootstrap/control.h"
#include "comm/boards.h"

namespace kolo::comm {

// The deadline in milliseconds of what the calling thread executes: its own, or the communicator's. 0: there is none.
inline int timeoutInUse(int communicatorsMs) { return caller.timeoutMs >= 0 ? caller.timeoutMs : communicatorsMs; }

// What a rank waits for just now. Its thread says so every now and then; the reactor's reads it when others ask.
class Waiting {
 public:
  struct Wait {
    int peer = -1;  // -1: any
    bool isMessage = false;
    std::int64_t sinceNs = 0;
    std::int64_t seenNs = 0;  // when the rank said so last
  };
  void say(const Wait& wait) {
    const std::lock_guard lock(mutex_);
    wait_ = wait;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    wait_.reset();
  }
  std::optional<Wait> now() const {
    const std::lock_guard lock(mutex_);
    return wait_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Wait> wait_;
};

// A rank's answer to the question about the operation of some number.
struct Account {
  Called asked;
  std::uint64_t last = 0;  // number of its last operation; 0: it has called none
  Called lastCalled;
  bool waits = false;
  bool isMessage = false;
  int peer = -1;
  std::int64_t waitedNs = 0;

  // nullopt: the rank has no such communicator any more.
  static std::optional<Account> decode(std::string_view answer);
  std::string encode() const;
};

// One wait of a chain.
struct WaitStep {
  int waiter = -1, awaited = -1;
  std::uint64_t number = 0;  // of the waiter's last operation
  Called called;
  bool isMessage = false;
  std::int64_t waitedNs = 0;
  std::string what;  // "all_reduce (operation 7 of communicator world): ..."
};

// What the waits follow from, and whose it was.
struct Cause {
  bootstrap::Failure failure;
  int waiter = -1;
};

// The question that this rank asks of a peer by a posted link in which it waits for long.
struct Inquiry {
  int peer = -1;
  std::uint64_t number = 0;
  std::int64_t dueNs = 0;
  std::shared_ptr<bootstrap::Answer> answer;  // null: none is under way
};

}  // namespace kolo::comm
