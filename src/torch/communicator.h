// A communicator of Kolo's for the ranks of one process group.
//
// Thread safety: all functions; end() makes the others throw.
#pragma once

#include <kolo/kolo.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch/c10d.h"
#include "torch/root.h"

namespace kolo::pytorch {

// What a user may ask of a group's communicators.
struct Settings {
  int reproducible = KOLO_CONFIG_UNDEF_INT;
  std::string algorithm, transports;  // "": as the environment says
  bool windows = false;               // memory from allocate_tensor is zero-copy
};

class Communicator;

// A communicator in which all members of a group are: it hears of their deaths.
struct Kin {
  std::shared_ptr<Communicator> of;  // null: none is known
  std::vector<int> ranks = {};       // of the members there
  std::string name = {};             // "the default group", for messages
};

// One rank of a group, as torch describes it.
struct Membership {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0, size = 1;
  std::chrono::milliseconds timeout{};
  std::string name;
  Settings settings;
  Kin kin = {};
};

class Communicator {
 public:
  // Collective over the members, which meet by `key` in the store. device: KOLO_HOST, or a CUDA device. A member whose
  // part fails makes all fail. So does the death of a member that the kin hears of.
  static std::shared_ptr<Communicator> meet(const Membership& member, const std::string& key, int device);
  // Collective over the members that live: the AND of their flags, and which members some of them know to have died.
  // All get the same, also after a failure.
  std::pair<std::uint64_t, std::vector<int>> agree(std::uint64_t flags);
  // An id by which new processes join, in grow(). Rank 0's: its process relays the control messages of the root.
  koloUniqueId makeGrowthId();
  // The members but `excluded`, which may be dead. Their new ranks are in the old order.
  std::shared_ptr<Communicator> shrink(const std::vector<int>& excluded, const Membership& member);

  Communicator(koloComm_t comm, std::chrono::milliseconds timeout, std::string token, Origin origin);
  Communicator(const Communicator&) = delete;
  ~Communicator() { end(); }

  // Throws after end() or abort().
  koloComm_t get() const;
  int rank() const;
  int size() const;
  std::chrono::milliseconds timeout() const { return timeout_; }
  // A text that all ranks share, and that no other communicator has: for keys in the store.
  const std::string& token() const { return token_; }
  koloResult_t failure() const;
  // Which of the members has died, in words; "": none is known to have.
  static std::string deathAmong(const Kin& members);

  // Waits until all that was begun here is over. Errors show at the operations; nothing is thrown.
  void end();
  // Makes all that is under way fail, on all ranks, and ends.
  void abort();
  // Makes all operations fail, on all ranks, for this reason.
  void revoke(const std::string& reason);

 private:
  void endBy(koloResult_t (*function)(koloComm_t));

  std::atomic<koloComm_t> comm_;
  std::chrono::milliseconds timeout_;  // of operations that say nothing else
  std::string token_;
  std::atomic<std::shared_ptr<Root>> root_;  // null after the end
  const std::vector<int> ranksInRoot_;
  std::atomic<int> shrinks_{0};
};

// Operations that are called in its scope have this deadline. That of their communicator costs nothing.
class Deadline {
 public:
  Deadline(std::chrono::milliseconds wanted, const Communicator& communicator);
  Deadline(const Deadline&) = delete;
  ~Deadline() {
    if (set_) [[unlikely]]
      (void)koloSetTimeout(-1);
  }

 private:
  bool set_ = false;
};

// Kolo's way to write a deadline: 0 for none.
int timeoutMs(std::chrono::milliseconds timeout);

}  // namespace kolo::pytorch
