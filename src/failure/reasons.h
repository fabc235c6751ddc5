// What a fault leaves unsaid: why a peer's memory could not be read, why a link was lost, and what a peer wrote that it
// cannot have written. The code that uses links notes it, for the words of the error.
//
// Thread safety: under the communicator's turn, and with its links held where some are posted. What is said of lost
// links and of distrust, by any thread: of a communicator on GPUs the link monitor looks after the host's links, and
// other threads after those of its GPU.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"
#include "device/work.h"

namespace kolo::failure {

class Reasons {
 public:
  explicit Reasons(int rank) : rank_(rank) {}

  // Of the last read or write of a peer's memory.
  void noteAccess(Status status) { access_ = std::move(status); }
  const Status& access() const { return access_; }
  // The error of a message that could not be read.
  Status messageUnread(int peer) const;

  // Why the link to a peer was lost, as it was noted last.
  void noteLostLink(int peer, const Status& why);
  std::string lostLink(int peer) const;

  // The peer has written what it cannot have: the communicator is to fail by this fault.
  device::Fault distrust(int peer, const std::string& what);
  // What it has written.
  std::string distrusted(int peer) const;

 private:
  const int rank_;
  Status access_;
  mutable std::mutex mutex_;                      // of these:
  std::map<int, std::string> lost_, distrusted_;  // words, by peer
};

}  // namespace kolo::failure
