// The ways by which a communicator's ranks reach each other's memory: devices, the arena, and one link for each peer.
//
// Thread safety: made by one thread. Then under the communicator's turn, and with posted links held (Traffic::hold()):
// the link monitor (traffic/failover.cc) uses these between calls.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "links/arena.h"
#include "links/membership.h"
#include "memory/device_memory.h"
#include "memory/shared_memory.h"
#include "transport/registry.h"

namespace kolo::links {

class GpuDirect;

// Memory that a rank gives its peers: a range, whose kind decides which transports fit, and its owner.
struct Given {
  koloTransportMemory range{};
  std::uint64_t arenaAt = 0;  // where in the range the arena is, alike on all ranks
  // The arena's length. A link to another rank's arena must reach as much. If the range is larger, posted transports,
  // which may pin memory, get the arena only.
  std::uint64_t arenaBytes = 0;
  std::shared_ptr<const void> owner;

  static Given of(std::shared_ptr<memory::SharedMemory> memory, std::uint64_t arenaBytes, std::uint64_t arenaAt = 0);
  static Given of(std::shared_ptr<memory::DeviceMemory> memory, std::uint64_t arenaBytes);
};

// A copy of this rank's part of a peer's arena: a posted link writes from here to there.
struct Mirror {
  std::shared_ptr<const void> owner;  // of the memory
  unsigned char* data = nullptr;
  bool isOnDevice = false;  // data is a device's address (links/gpu_direct.h)
  std::unique_ptr<transport::Memory> registration;
};

inline constexpr std::uint8_t kNoWay = 255;

struct Peer {
  std::shared_ptr<transport::Device> device;  // the transport that reaches the peer; null: none does
  Status unreached;                           // why no transport reaches the peer
  Mirror mirror;                              // of a posted link, and outlives the link
  std::shared_ptr<transport::Link> link;      // to the peer's arena, or to memory that holds several arenas (over())
  std::shared_ptr<const void> held;           // the peer's arena, if the peer lives in this process
  koloTransportBlob address{};                // the peer's address for `device`
  unsigned char* arena = nullptr;             // null by a posted link
  bool isArenaOnDevice = false;               // a posted link leads to memory of the peer's GPU
  std::string offer;           // by which transports the peer can be reached, as long as another link may be opened
  std::uint8_t way = kNoWay;   // which of the transports that both ends have the link goes by (routes.cc)
  bool isNear = false;         // the peer is on this host, as far as is known yet
  std::uint64_t reroutes = 0;  // how often the posted link has been replaced
  bool isGone = false;         // the posted link is lost, and the last attempt to replace it has failed
  bool isHeld = false;         // the peer has not yet abandoned the lost link, so the new one takes no requests
  bool isPosted() const { return link != nullptr && link->isPosted(); }
  // Whether the posted link may be replaced when it is lost.
  bool canBeRerouted() const { return isPosted() && link->canBeAbandoned() && !isGone; }
};

class Peers {
 public:
  ~Peers();
  // What one set of connections is for. A communicator has several.
  struct Purpose {
    const char* name;           // "staging"; a short word
    int device = -1;            // CUDA device of this rank
    bool mayMiss = false;       // peers that no transport reaches are left without a link, not an error
    std::vector<bool> without;  // by rank: those to which no link is needed; both of a pair say so. Empty: none
    // This rank's part in the arena of each peer, which a posted link mirrors; without one only mapped links will do.
    std::uint64_t partAt = 0, partBytes = 0;
    // Not null: memory of this rank's GPU takes the place of the arena, and of mirrors, for those posted transports
    // that can reach it.
    const GpuDirect* gpuDirect = nullptr;
    // With more ranks than this, links are opened when they are first needed. One link to a rank on this host is opened
    // at once, to test that it works.
    int mostAtOnce = 1 << 30;
    std::string nearNics = {};  // as nearNics() says (links/hosts.h)
  };

  // Collective. arena: this rank's, or why there is none. settingsText, such as "staging 4x131072", is equal on all
  // ranks.
  static Result<std::unique_ptr<Peers>> connect(Membership& membership, Result<Given> arena, const Purpose& purpose,
                                                const std::string& transports, const std::string& settingsText);

  // Uses the mapped links of another communicator, which `owner` keeps alive. inBase: each rank's number there. Every
  // arena lies in memory that those links map, and setArena() says where. Several threads use such links, so the
  // transport must allow that (transport::Device::sharesLinks).
  static std::unique_ptr<Peers> over(const Peers& base, const std::shared_ptr<const void>& owner,
                                     const std::vector<int>& inBase, int rank, const Purpose& purpose);
  void setArena(int rank, unsigned char* arena);

  unsigned char* arena() const { return static_cast<unsigned char*>(given_.range.address) + given_.arenaAt; }
  std::uint32_t memoryKind() const { return given_.range.kind; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  const Peer& operator[](int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  // Opens the link to a peer, if it is not open yet, within host->timeoutMs. koloUnreachable says why there is none.
  // The peer takes no part: it opens its own link when it needs it, and must come to the same transport.
  Status open(int rank);
  bool isOpen(int rank) const { return (*this)[rank].link != nullptr; }
  // The lowest rank whose memory this one maps, or its own.
  int leader() const;

  // This rank's part in a peer's arena, or the mirror of it. REQUIRES: a link; Purpose::partBytes.
  unsigned char* partAt(int rank) const;
  // Whether some peer's memory is mapped.
  bool reachesByMapping() const;

  // ---- posted links; one thread at a time
  // Accepts a request with addresses in the mirror. koloInProgress: the link has no room for more requests;
  // koloRemoteError: the link is lost.
  Status put(int rank, const device::Post& post);
  // Sets a word of the peer's arena, by either kind of link.
  Status set(int rank, std::uint64_t at, std::uint64_t value);
  // Accepts a request as the other put() does, from any memory of this process into memory of the peer that `key`
  // names, from its begin + `to`; post.counter may be null. REQUIRES: registersCheaply(), or a few bytes; the data
  // stays as it is until the link has nothing unfinished.
  Status put(int rank, const device::Post& post, const koloTransportKey& key, std::uint64_t to);
  // Makes progress on posted links. If nothing moves, sleeps up to waitUs for `rank` (-1: any). True if something
  // moved.
  bool progress(int rank, int waitUs) const;
  // The members of devices() by which peers are reached with posted links, or may yet be.
  const std::vector<transport::Device*>& postedDevices() const { return posted_; }
  // Whether all requests go on without this rank's help, and no peer isHeld.
  bool isFlushed();
  // A peer that keeps isFlushed() false; -1: none.
  int unflushed() const { return dirty_.empty() ? -1 : dirty_.front(); }
  // Errors: the link is lost.
  Status state(int rank) const;

  // After the communicator has failed: requests need not arrive, and no device waits for peers.
  void abandon() const {
    for (const auto& device : devices_) (void)device->abandon();
  }

  // ---- a posted link that is lost (failover.cc)
  // Whether there are posted links of several transports, of which one can be abandoned.
  bool mayReroute() const;
  // Abandons the lost link and opens one by the next common transport, whose requests all use one rail. Tells the peer
  // so by `word`, in the mirror, and refuses all other requests with koloInProgress until release(). REQUIRES: a peer
  // that canBeRerouted().
  Status reroute(int rank, device::Counter& word);
  void release(int rank) { peers_[static_cast<std::size_t>(rank)].isHeld = false; }
  // Receives from posted transports that this rank does not send by.
  void listen() const;

  // Closes a peer's link that was found not to work, and opens no other.
  void cut(int rank, const Status& why);
  const std::vector<std::shared_ptr<transport::Device>>& devices() const { return devices_; }
  // If this communicator uses another one's links (over()), opens mapping devices of its own, to register windows. If
  // that fails, windows go through staging.
  void openDevicesForWindows(Membership& membership, const std::string& transports);
  // Which of devices() opens windows of the rank; nullptr: none. REQUIRES: a link to it.
  transport::Device* windowDevice(int rank) const;
  // The transports in use: "shm", "shm+tmpfile", or "self" with one rank. In any thread.
  std::string transportNames() const;

 private:
  Status openDevices(Membership& membership, const Purpose& purpose, const std::string& transports);
  Status accept(int rank, koloTransportPut put);
  std::uint64_t offsetInPart(int rank, const void* place) const;
  // ---- which transport a pair goes by: routes.cc
  // A transport that both ends of a pair have, and what the peer has said for it.
  struct Candidate {
    std::shared_ptr<transport::Device> device;
    bool isArenaOnDevice;
    koloTransportBlob address, memory;
  };
  // A link to a peer, and by what.
  struct Route {
    std::shared_ptr<transport::Device> device;
    koloTransportBlob address;
    bool isArenaOnDevice;
    std::unique_ptr<transport::Link> link;
    std::uint8_t way;
  };
  struct Search {
    std::size_t first = 0;       // way to begin with
    bool isReplacement = false;  // of a posted link that is lost, by another one
    bool isAlone = false;        // the peer takes no part: only transports that say UNREACHABLE are skipped
  };
  std::vector<Candidate> candidates(const Peer& peer, int rank, std::string* leftOutThere) const;
  void goBy(Peer& peer, std::shared_ptr<transport::Device> device);
  Result<Route> findRoute(Peer& peer, int rank, const Search& search);
  Status open(int rank, const Search& search);
  Status openLink(Peer& peer, int rank, const Search& search);
  static void forgetOffer(Peer& peer);
  Status follow(int rank, std::uint8_t way);
  Status agreeOnWays(Membership& membership, Status mine, bool all);
  Status registerArena();
  std::string offer() const;
  void hold(Peer& peer, int rank) const;
  Status mirrorOnHost(Peer& peer, transport::Device& device) const;
  void listenTo(transport::Device& device);
  Result<bool> mirrorOnDevice(Peer& peer, int rank, transport::Device& device) const;
  Status openFirst(const Membership& membership, bool all);
  void beginLinks(const Membership& membership);
  bool isLeftOut(int rank) const;

  const Peers* base_ = nullptr;  // whose links these are; null: their own
  std::shared_ptr<const void> baseOwner_;
  std::vector<std::shared_ptr<transport::Device>> devices_;
  std::vector<transport::Device*> posted_;  // those of them by which a peer is reached with a posted link
  std::vector<int> dirty_;                  // peers with requests that may need help
  Purpose purpose_;
  std::string leftOut_;  // transports that cannot be used here, and why; for messages
  int rank_ = 0;
  std::int64_t linksUntilNs_ = INT64_MAX;  // no link is begun later (Membership::ownTimeMs)
  std::string holdingPrefix_;              // of the keys under which a process's ranks find each other's arenas
  Given given_;
  struct Registration {
    transport::Device* device;
    std::unique_ptr<transport::Memory> memory;
    bool isOnDevice;  // of the arena on this rank's GPU
  };
  std::vector<Registration> registrations_;  // of the arena
  Status registerArenaWith(transport::Device& device);
  std::vector<Peer> peers_;
  mutable std::mutex namesMutex_;  // of Peer::device, for transportNames()
  std::string holding_;            // key under which this process's other ranks find the arena
};

}  // namespace kolo::links
