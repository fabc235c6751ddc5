// How a communicator's ranks reach each other's memory: devices, the arena, and one opened link for each peer.
//
// Thread safety: made by one thread; afterwards only read, except by windows (comm/windows.h), under the communicator's turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/control.h"
#include "comm/arena.h"
#include "memory/shared_memory.h"
#include "transport/registry.h"

namespace kolo::comm {

// Where a communicator's control messages go.
struct Membership {
  std::shared_ptr<bootstrap::Control> control;
  std::uint64_t key = 0;            // tells communicators of one job apart
  std::vector<int> members;         // job rank of each rank
  int rank = 0;
  int initTimeoutMs = 0;
  std::uint64_t gathers = 0;        // number of allGathers done with this key

  int ranks() const { return static_cast<int>(members.size()); }
  // Out-of-band all-gather over the communicator.
  Result<std::vector<std::string>> allGather(std::string_view mine);
  // allGather of verdicts: everybody succeeds, or all return the first failure, which names its rank.
  Status agree(const Status& mine);
};

struct Peer {
  std::shared_ptr<transport::Device> device;     // the transport that reaches it
  std::unique_ptr<transport::Link> link;         // to its arena
  std::shared_ptr<memory::SharedMemory> held;    // its arena, if it lives in this process
  koloTransportBlob address{};                   // its address for `device`
  unsigned char* arena = nullptr;
};

class Peers {
 public:
  ~Peers();
  // Collective. settingsText must be the same on all ranks; "staging 4x131072, reproducible 0", say.
  static Result<std::unique_ptr<Peers>> connect(Membership& membership, const ArenaLayout& layout,
                                                const std::string& transports, const std::string& settingsText);

  unsigned char* arena() const { return arena_->data(); }
  int ranks() const { return static_cast<int>(peers_.size()); }
  const Peer& operator[](int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  const std::vector<std::shared_ptr<transport::Device>>& devices() const { return devices_; }
  // Of the transport that reaches the rank.
  const koloTransportBlob& addressOf(int rank) const { return peers_[static_cast<std::size_t>(rank)].address; }
  // The transports in use: "shm", "shm+tmpfile", or "self" with one rank.
  std::string transportNames() const;

 private:
  Status openDevices(Membership& membership, const std::string& transports);
  Status openLinks(const Membership& membership, const std::vector<std::string>& blobs);

  std::vector<std::shared_ptr<transport::Device>> devices_;
  std::shared_ptr<memory::SharedMemory> arena_;
  std::vector<std::unique_ptr<transport::Memory>> registrations_;   // of the arena, by device
  std::vector<Peer> peers_;
  std::string holding_;   // key under which this process's other ranks find the arena
};

}  // namespace kolo::comm
