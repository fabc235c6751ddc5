// What communicators that are split from one another on one host have in common: memory, which all ranks map once, and
// the links to it. So a further communicator takes no file, mapping, connection or thread, and the ranks tell each
// other by this memory what its making needs.
//
// Each rank of the communicator that was split first gives a file of address space, which takes memory where it is
// touched. All these files are equally long. A communicator has a block in the file of each of its ranks. The rank cuts
// its own block from its own file, and tells the others where it is:
//
//   released  one word for each rank, which that rank sets when it will not touch the block any more
//   bulletin  for the splits of this communicator (links/bulletin.h)
//   arena     (links/arena.h)
//
// A block is used again when all other ranks have released it. A rank that died releases nothing: that memory comes
// back with the pool. The pool lives until the last communicator that has a share in it is gone.
//
// Thread safety: Pool: all functions, from any thread, once it is made. Share: of one communicator, under its turn.
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
  // Each rank maps the pools of all: for more ranks than this that is not worth it.
  static constexpr int kMostRanks = 128;

  // Collective, over ranks that all map each other's memory. nullptr on all ranks: some of them cannot share; the log
  // says why. whole: of the communicator, whose failure ends the wait for ranks that do not come. making: the same
  // ranks under a key of its own, by which a rank that cannot go on later says so. The key of `whole` becomes the
  // family. isDecided: with an error: the others may have agreed with what this rank said in the last exchange, and so
  // hear of no error by the key of `making`.
  static Result<std::shared_ptr<Pool>> create(Membership& whole, Membership& making, const std::string& transports,
                                              bool& isDecided);

  const Peers& peers() const { return *peers_; }
  const std::string& transports() const { return transports_; }
  // The key under which the hub knows all communicators that have shares here (bootstrap/control.h).
  std::uint64_t family() const { return family_; }
  // Whether this process was dumpable when its links were opened, which is when peers tried whether they may read its
  // memory.
  bool wasDumpable() const { return wasDumpable_; }
  // Where a rank's file lies in this process, and how long each of them is.
  unsigned char* begin(int rank) const { return begins_[static_cast<std::size_t>(rank)]; }
  std::uint64_t bytes() const { return bytes_; }

  struct Block {
    std::uint64_t at;  // its offset in this rank's own file
    bool isZero;       // else anything may stand in it
  };
  // Nothing: there is no room.
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
  Status agreeOnBytes(Membership& membership);
  Status agreeOnLinks(Membership& membership, bool& all, bool& isDecided) const;
  void sweep();
  void addFree(std::uint64_t bytes, Block block);
  bool isReleased(const Retired& block) const;

  std::unique_ptr<Peers> peers_;
  std::shared_ptr<memory::SharedMemory> memory_;  // this rank's own
  std::string transports_;
  std::uint64_t family_ = 0;
  bool wasDumpable_ = false;
  std::vector<unsigned char*> begins_;
  std::uint64_t bytes_ = 0;

  std::mutex mutex_;
  std::uint64_t end_ = 0;                     // of what was ever taken
  std::uint64_t warmBytes_ = 0;               // of blocks in free_ that are not zero, so that they hold memory
  std::multimap<std::uint64_t, Block> free_;  // by size; of equal ones, those that hold memory first
  std::vector<Retired> retired_;
};

// What one communicator has in a pool.
class Share {
 public:
  // Of the communicator for which the pool was made, which has an arena elsewhere.
  static std::shared_ptr<Share> ofFirst(std::shared_ptr<Pool> pool, int ranks, int rank);
  // Takes a block for this rank, all zero but for the arena's slots; nullptr: there is no room. poolRanks: of each rank
  // of the communicator.
  static std::shared_ptr<Share> take(std::shared_ptr<Pool> pool, std::vector<int> poolRanks, int rank,
                                     const ArenaLayout& layout);
  ~Share();
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  const std::vector<int>& poolRanks() const { return poolRanks_; }
  // Of this rank's own block.
  std::uint64_t offset() const { return at_; }
  // The others may come to know the offset, and touch the block from then on until they release it.
  void publish() { isPublished_ = true; }
  // They will not: no rank makes the communicator.
  void cancel() { isPublished_ = false; }
  // Where the ranks' blocks are: offsets by rank, as they said. Errors: a block would lie outside of its file.
  Status place(const std::vector<std::uint64_t>& offsets);
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
