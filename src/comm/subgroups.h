// Groups: communicators of some ranks of another one, the parent, which these ranks make by themselves.
//
// Thread safety: under the parent's turn, but for References, which any thread may use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"

namespace kolo::comm {

class Communicator;
struct Options;

// How many owners a communicator's handle has, and the thread whose call returned it. Each owner destroys it once.
class References {
 public:
  // False: the last owner has given it up, and the handle is about to be dead.
  bool add() {
    int owners = owners_.load(std::memory_order_relaxed);
    while (owners != 0) {
      if (owners_.compare_exchange_weak(owners, owners + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }
  enum class Left { kOthers, kNobody, kNobodyBefore };
  Left drop() {
    int owners = owners_.load(std::memory_order_relaxed);
    while (owners != 0) {
      if (!owners_.compare_exchange_weak(owners, owners - 1, std::memory_order_acq_rel)) continue;
      return owners > 1 ? Left::kOthers : Left::kNobody;
    }
    return Left::kNobodyBefore;
  }
  // REQUIRES: nobody else can have the handle yet.
  void setMaker(std::thread::id maker) { maker_ = maker; }
  std::thread::id maker() const { return maker_; }

 private:
  std::atomic<int> owners_{1};
  std::thread::id maker_;
};

// The groups that were made of a communicator, as one of its ranks remembers them.
class Subgroups {
 public:
  struct Entry {
    std::vector<int> ranks;  // of the parent, in the group's order
    std::string name;
    std::vector<int> mesh;  // as Options has it
    std::uint64_t number = 0;
    koloComm_t handle = nullptr;  // dead if the group was destroyed
  };

  // nullptr: there was none.
  const Entry* find(const std::vector<int>& ranks, const Options& options) const;
  // In place of one with the same list, name and mesh, and of those that `isDead` says yes to.
  template <class IsDead>
  void add(Entry entry, IsDead&& isDead) {
    std::erase_if(entries_, [&](const Entry& each) { return isSame(each, entry) || isDead(each); });
    entries_.push_back(std::move(entry));
  }
  // The number that this rank proposes for its next group.
  std::uint64_t next() const { return last_ + 1; }
  void take(std::uint64_t number) { last_ = number; }

 private:
  static bool isSame(const Entry& one, const Entry& other) {
    return one.ranks == other.ranks && one.name == other.name && one.mesh == other.mesh;
  }

  std::vector<Entry> entries_;
  std::uint64_t last_ = 0;
};

// The options of a group. mesh: empty: it is none. name: NULL or "" for that of the configuration, or else one made of
// the parent's name, the list and the mesh.
Result<Options> groupOptions(const Communicator& parent, const std::vector<int>& ranks, const std::vector<int>& mesh,
                             const char* name, const koloConfig_t* config);

struct NewGroup {
  std::unique_ptr<Communicator> made;  // null: it is the one that all members have already
  std::uint64_t number = 0;
};
// This rank's part in making a group. ranks: distinct ranks of the parent, this one among them. options: an error: this
// rank cannot take part; the others are told so. had: the number of the group with this list, name and mesh that this
// rank has, and that has not failed; 0: none. REQUIRES: the parent's turn.
Result<NewGroup> createGroup(Communicator& parent, const std::vector<int>& ranks, const Result<Options>& options,
                             std::uint64_t had);

}  // namespace kolo::comm
