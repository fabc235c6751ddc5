// What communicators of one host share that come of one another: memory, which all ranks map once, and the links to it.
// So another communicator takes no file, mapping, connection or thread.
//
// A communicator made by the control plane has a file with more address space than it needs. The rest takes memory when
// it is touched, and is for the communicators that split from it. Each of these has a block in the file of each of its
// ranks. A rank takes its block from its own file, and tells the other members the offset. Other ranks need to know
// nothing. A block holds:
//
//   released  one word for each rank, which that rank sets when it will not touch the block any more
//   bulletin  for the splits of this communicator (links/bulletin.h)
//   arena     (links/arena.h)
//
// A block is reused when all other ranks have released it. A rank that died releases nothing: that memory comes back
// with the pool. The pool lives until the last communicator that has a share in it is gone.
//
// Thread safety: Pool: all functions, from any thread. Share: of one communicator, under its turn.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "links/arena.h"
#include "links/bulletin.h"
#include "links/peers.h"
#include "memory/shared_memory.h"

namespace kolo::links {

struct BlockLayout {
  int ranks;
  std::uint64_t arenaBytes;

  std::uint64_t releasedAt(int rank) const { return sizeof(device::Counter) * static_cast<std::uint64_t>(rank); }
  std::uint64_t bulletinAt() const {
    return (releasedAt(ranks) + alignof(Bulletin) - 1) / alignof(Bulletin) * alignof(Bulletin);
  }
  std::uint64_t arenaAt() const { return wholePages(bulletinAt() + sizeof(Bulletin)); }
  std::uint64_t bytes() const { return wholePages(arenaAt() + arenaBytes); }

 private:
  static constexpr std::uint64_t kPage = 4096;
  static std::uint64_t wholePages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
};

class Pool {
 public:
  // The most ranks for bulletins: each rank reads those of all others.
  static constexpr int kMostRanks = 128;

  // Bytes of address space for each rank's file, as far as this process's limits allow. 0 if mapping takes memory at
  // once, in its own files and the others'.
  static std::uint64_t roomFor(int ranks);
  // Makes a communicator's file: its own block first, then the rest of `all` bytes for others'.
  static Result<std::shared_ptr<memory::SharedMemory>> makeFile(const BlockLayout& first, std::uint64_t all);

  // peers: of the communicator `key`, all mapped or not yet linked. own: the memory that this rank gave them.
  Pool(std::shared_ptr<const Peers> peers, std::shared_ptr<memory::SharedMemory> own, const BlockLayout& first,
       std::string transports, std::uint64_t key);

  const Peers& peers() const { return *peers_; }
  const std::string& transports() const { return transports_; }
  // The key under which the hub knows all communicators that have shares here (bootstrap/control.h).
  std::uint64_t family() const { return family_; }
  // Whether this process was dumpable when its links were opened, which is when peers tried whether they may read its
  // memory.
  bool wasDumpable() const { return wasDumpable_; }
  // Why this rank cannot use the memory of a rank of the pool; "": it can.
  std::string whyNotShared(int rank) const;
  // Where another rank's file lies in this process. REQUIRES: its memory is shared.
  unsigned char* begin(int rank) const;
  // This rank's own file.
  unsigned char* own() const { return memory_->data(); }
  // The bytes that this process maps of a rank's file. REQUIRES: as begin(), or its own.
  std::uint64_t bytesOf(int rank) const {
    const auto& link = (*peers_)[rank].link;
    return link != nullptr ? link->bytes() : memory_->bytes();
  }

  struct Block {
    std::uint64_t at;  // its offset in this rank's own file
    bool isZero;       // else anything may stand in it
  };
  // nullopt: there is no room.
  std::optional<Block> take(std::uint64_t bytes);
  // The block is free at once.
  void giveBack(std::uint64_t at, std::uint64_t bytes);
  // The block is free when all other ranks of its communicator have released it.
  void retire(std::uint64_t at, const BlockLayout& layout, int ownRank);

 private:
  struct Retired {
    std::uint64_t at;
    BlockLayout layout;
    int ownRank;
  };
  void sweep();
  void addFree(std::uint64_t bytes, Block block);
  bool isReleased(const Retired& block) const;

  const std::shared_ptr<const Peers> peers_;
  const std::shared_ptr<memory::SharedMemory> memory_;  // this rank's own
  const BlockLayout first_;
  const std::string transports_;
  const std::uint64_t family_;
  const bool wasDumpable_;

  std::mutex mutex_;
  std::uint64_t end_ = 0;                     // of all blocks so far
  std::uint64_t warmBytes_ = 0;               // of blocks in free_ that are not zero, so that they hold memory
  std::multimap<std::uint64_t, Block> free_;  // by size; of equal ones, those that hold memory first
  std::vector<Retired> retired_;
};

// What one communicator has in a pool.
class Share {
 public:
  // For the communicator that made the pool.
  static std::shared_ptr<Share> ofFirst(std::shared_ptr<Pool> pool, const BlockLayout& layout, int rank);
  // Takes a block for this rank, all zero but for the arena's slots; nullptr: there is no room. poolRanks: each rank's
  // number in the pool.
  static std::shared_ptr<Share> take(std::shared_ptr<Pool> pool, std::vector<int> poolRanks, int rank,
                                     const ArenaLayout& layout);
  ~Share();
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  const std::vector<int>& poolRanks() const { return poolRanks_; }
  // Where this rank's own block is in its file.
  std::uint64_t at() const { return at_; }
  // From now on others may learn the offset, and use the block until they release it.
  void publish() { isPublished_ = true; }
  // Undoes publish(): no rank makes it.
  void cancel() { isPublished_ = false; }
  // ats: where each rank says that its block is. Errors: a block would lie outside of what is mapped of its file.
  Status place(const std::vector<std::uint64_t>& ats);
  // After ofFirst(): all offsets are equal. REQUIRES: the memory of all ranks is shared.
  void placeFirst();
  bool isPlaced() const { return !blocks_.empty(); }
  unsigned char* ownArena() const { return ownBlock() + layout_.arenaAt(); }
  // REQUIRES: place()
  unsigned char* arena(int rank) const { return blocks_[static_cast<std::size_t>(rank)] + layout_.arenaAt(); }
  // REQUIRES: place()
  std::vector<Bulletin*> bulletins() const;
  Bulletin& ownBulletin() const { return bulletin(ownBlock()); }

 private:
  Share(std::shared_ptr<Pool> pool, std::vector<int> poolRanks, int rank, const BlockLayout& layout, std::uint64_t at);
  unsigned char* ownBlock() const;
  device::Counter& released(unsigned char* block) const {
    return *reinterpret_cast<device::Counter*>(block + layout_.releasedAt(rank_));
  }
  Bulletin& bulletin(unsigned char* block) const { return *reinterpret_cast<Bulletin*>(block + layout_.bulletinAt()); }

  const std::shared_ptr<Pool> pool_;
  const std::vector<int> poolRanks_;
  const int rank_;
  const BlockLayout layout_;
  const std::uint64_t at_;
  bool isPublished_ = false;
  std::vector<unsigned char*> blocks_;  // by rank; empty until place()
};

}  // namespace kolo::links
