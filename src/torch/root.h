// Roots: communicators of which those of groups are made (koloCommCreateGroup).
//
// A group is made of a root that has all its members, or else of a new one, which the members make by a unique id. A
// root has no operations. So a group can be made whatever other groups do, and after they have failed. On one host it
// has the root's memory and links, and so it is made much sooner. A root lives as long as a group that was made of it.
//
// Where processes join the default group (grow()), they are a root with its ranks, of which torch makes that group
// anew.
//
// The control plane of a root runs in the process of its rank 0, without which groups over several hosts cannot go on.
// So that process is a member of all of them: rank 0 of a group is rank 0 of its root.
//
// A rank makes groups of one root one at a time. Ranks that made them in different orders would wait for each other. So
// rank 0 decides the order (Root::turn): it tells the members of one group only when the one before is made, or could
// not be made. Rank 0 does not use a root again of which it could not make a group.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch/meeting.h"

namespace kolo::pytorch {

class Root {
 public:
  // token: the same on all ranks, and no other root's. transports: as it was asked for.
  Root(koloComm_t comm, int rank, int size, std::string token, std::string transports)
      : comm_(comm), rank_(rank), size_(size), token_(std::move(token)), transports_(std::move(transports)) {}
  Root(const Root&) = delete;
  ~Root();

  koloComm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  const std::string& token() const { return token_; }
  const std::string& transports() const { return transports_; }
  std::timed_mutex& turn() { return turn_; }  // rank 0's, while a group is made
  // Ranks that have died, in ascending order.
  std::vector<int> failedRanks() const;

 private:
  koloComm_t const comm_;
  const int rank_, size_;
  const std::string token_, transports_;
  std::timed_mutex turn_;
};

// What a group is made of.
struct Origin {
  std::shared_ptr<Root> root;
  std::vector<int> ranks;                        // of the group's members in the root
  std::unique_lock<std::timed_mutex> turn = {};  // of the root, on its rank 0; unlocked before the root may end
};

struct GroupPlace {
  int rank, size;
  std::string name;        // of the group
  std::string transports;  // "": as the environment says
};

// Collective: what the members of a group make it of. Rank 0 has the root's turn until the group is made.
Origin findOrigin(Meeting& meeting, const GroupPlace& group);

// What the ranks of a communicator grow into, with new processes.
struct Growth {
  koloUniqueId id;    // of the communicator's rank 0
  std::string token;  // the same on all, and no other growth's
  int rank, size;     // afterwards
  std::string transports;
};
// Collective over the ranks of comm, which keep their numbers, and new processes, whose comm is null: a root that may
// be used.
std::shared_ptr<Root> grow(koloComm_t comm, const Growth& growth);
// isUsable: a group of the root has been made, so others may follow. Otherwise none may, for one could not be made.
void share(const std::shared_ptr<Root>& root, bool isUsable);

}  // namespace kolo::pytorch
