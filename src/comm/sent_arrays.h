// The descriptions of arrays that are sent between GPUs, whose messages cannot wait for a shape: a sender keeps them,
// and receivers ask for them through the control plane.
//
// Thread safety: answer() from any thread; the rest under the communicator's turn.
// Invariant: the n-th array that a rank has sent to a peer is the n-th one that the peer asks it for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "memory/device_memory.h"

namespace kolo::comm {

class SentArrays {
 public:
  void add(int peer, std::string description);
  // A rank's question: the description of what has been sent to it, or that it has not been sent yet. nullopt: it asks
  // for something else.
  std::optional<std::string> answer(int asker, std::string_view question);

  // The question of rank `rank` about the next array that it has not yet received from a peer.
  std::string question(int rank, int peer) const;
  // What an answer says; empty: the array has not been sent yet.
  static std::string_view descriptionIn(std::string_view answer);
  // Memory of the device that takes arrays for which their receiver has none; nullptr: none is large enough. It lives
  // as long as the communicator: to free it while kernels run could wait for those that wait for this rank.
  void* memoryToDrop(std::uint64_t bytes);
  void* keepToDrop(memory::DeviceMemory memory);
  // The array has been received.
  void count(int peer) { ++received_[peer]; }

 private:
  struct Sent {
    std::uint64_t first = 0;  // number of the first one that is kept
    std::deque<std::string> descriptions;
  };

  std::mutex mutex_;
  std::map<int, Sent> sent_;               // by peer
  std::map<int, std::uint64_t> received_;  // by peer
  std::vector<memory::DeviceMemory> dropping_;
};

}  // namespace kolo::comm
