// What a fault leaves unsaid: why a peer's memory could not be read, why a link was lost, and what a peer wrote that it
// cannot have written. Whoever uses links notes it, for the words of the error.
//
// Thread safety: under the communicator's turn, and with its links held where some are posted.
#pragma once

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

  void noteLostLink(Status why) { lostLink_ = std::move(why); }
  const Status& lostLink() const { return lostLink_; }

  // The peer has written what it cannot have: the communicator is to fail by this fault.
  device::Fault distrust(int peer, const std::string& what);
  const std::string& distrusted() const { return distrusted_; }

 private:
  const int rank_;
  Status access_, lostLink_;
  std::string distrusted_;
};

}  // namespace kolo::failure
