#include "links/pool.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/fork.h"
#include "base/insist.h"
#include "links/surroundings.h"

namespace kolo::links {
namespace {

// Of address space, for each rank's file, and for those of all ranks that a process maps. With 4 ranks a block takes
// 6 MiB of it, with 8 ranks 12, and never much more than KOLO_STAGING_BYTES.
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMostBytesOfAll = std::uint64_t{256} << 30;
// Of a limit of the process's address space (ulimit -v), for the files of one communicator: it may have several.
constexpr std::uint64_t kPartOfLimit = 64;
// Free blocks up to this much altogether keep the memory that they have touched: the next communicator touches the
// same, and taking pages from the system costs more than all else that making it does.
constexpr std::uint64_t kMostWarmBytes = std::uint64_t{64} << 20;

// Whether the system gives this process memory for all address space that it takes, touched or not (mlockall with
// MCL_FUTURE): then a file of much address space would take all of the machine's memory.
bool takesMemoryAtOnce() {
  const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno == EAGAIN;  // more than the process may lock
  unsigned char isThere = 0;
  const bool found = mincore(page, bytes, &isThere) == 0 && (isThere & 1) != 0;
  munmap(page, bytes);
  return found;
}

}  // namespace

std::uint64_t Pool::roomFor(int ranks) {
  const auto files = static_cast<std::uint64_t>(ranks);
  std::uint64_t bytes = std::min(kMostBytes, kMostBytesOfAll / files);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bytes = std::min<std::uint64_t>(bytes, limit.rlim_cur / kPartOfLimit / files);
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0) bytes = std::min<std::uint64_t>(bytes, limit.rlim_cur);
  return takesMemoryAtOnce() ? 0 : bytes;
}

Result<std::shared_ptr<memory::SharedMemory>> Pool::makeFile(const BlockLayout& first, std::uint64_t all) {
  const std::uint64_t own = first.bytes();
  Result<memory::SharedMemory> made = memory::SharedMemory::create(own, "kolo-arena", all > own ? all - own : 0);
  if (!made.ok() && all > own) made = memory::SharedMemory::create(own, "kolo-arena");
  KOLO_TRY(made.status());
  return std::make_shared<memory::SharedMemory>(made.take());
}

Pool::Pool(std::shared_ptr<const Peers> peers, std::shared_ptr<memory::SharedMemory> own, const BlockLayout& first,
           std::string transports, std::uint64_t key)
    : peers_(std::move(peers)), memory_(std::move(own)), first_(first), transports_(std::move(transports)),
      family_(key), wasDumpable_(isDumpable()) {}

std::string Pool::whyNotShared(int rank) const {
  const Peer& peer = (*peers_)[rank];
  if (peer.arena == nullptr) return fmt::format("the memory of rank {} is not mapped", rank);
  if (!peer.device->sharesLinks()) return fmt::format("transport {} does not share links", peer.device->name());
  return {};
}

unsigned char* Pool::begin(int rank) const { return (*peers_)[rank].arena - first_.arenaAt(); }

std::optional<Pool::Block> Pool::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sweep();
  // A larger one serves only if nothing else does: most communicators are as large as one that was there before.
  auto found = free_.lower_bound(bytes);
  const bool isFull = bytes > memory_->bytes() - end_;
  const bool fits = found != free_.end() && (found->first == bytes || isFull);
  if (!fits && isFull) return std::nullopt;
  if (!fits) {
    end_ += bytes;
    return Block{end_ - bytes, true};
  }
  const Block block = found->second;
  const std::uint64_t left = found->first - bytes;
  if (!block.isZero) warmBytes_ -= found->first;
  free_.erase(found);
  if (left != 0) addFree(left, {block.at + bytes, block.isZero});
  return block;
}

void Pool::giveBack(std::uint64_t at, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  addFree(bytes, {at, false});
}

void Pool::retire(std::uint64_t at, const BlockLayout& layout, int ownRank) {
  const std::lock_guard lock(mutex_);
  retired_.push_back({at, layout, ownRank});
  (void)withoutExceptions([this] {  // what there is no memory for is left to the next one
    sweep();
    return Status();
  });
}

// REQUIRES: the lock
void Pool::addFree(std::uint64_t bytes, Block block) {
  if (!block.isZero && warmBytes_ + bytes > kMostWarmBytes) block.isZero = memory_->discard(block.at, bytes);
  const auto equal = free_.equal_range(bytes);
  free_.emplace_hint(block.isZero ? equal.second : equal.first, bytes, block);
  if (!block.isZero) warmBytes_ += bytes;
}

// REQUIRES: the lock
void Pool::sweep() {
  for (std::size_t i = 0; i < retired_.size();) {
    if (!isReleased(retired_[i])) {
      ++i;
      continue;
    }
    addFree(retired_[i].layout.bytes(), {retired_[i].at, false});
    retired_[i] = retired_.back();
    retired_.pop_back();
  }
}

bool Pool::isReleased(const Retired& block) const {
  for (int rank = 0; rank < block.layout.ranks; ++rank) {
    const auto& word =
        *reinterpret_cast<const device::Counter*>(memory_->data() + block.at + block.layout.releasedAt(rank));
    // [released] before the block is used again: nothing that the rank has still to do there comes after that.
    if (rank != block.ownRank && device::loadAcquire(word) == 0) return false;
  }
  return true;
}

// ---- one communicator's share

Share::Share(std::shared_ptr<Pool> pool, std::vector<int> poolRanks, int rank, const BlockLayout& layout,
             std::uint64_t at)
    : pool_(std::move(pool)), poolRanks_(std::move(poolRanks)), rank_(rank), layout_(layout), at_(at) {}

// The first block of the file.
std::shared_ptr<Share> Share::ofFirst(std::shared_ptr<Pool> pool, const BlockLayout& layout, int rank) {
  std::vector<int> same(static_cast<std::size_t>(layout.ranks));
  std::iota(same.begin(), same.end(), 0);
  const std::uint64_t at = pool->take(layout.bytes()).value().at;
  std::shared_ptr<Share> share(new Share(std::move(pool), std::move(same), rank, layout, at));
  share->publish();
  return share;
}

std::shared_ptr<Share> Share::take(std::shared_ptr<Pool> pool, std::vector<int> poolRanks, int rank,
                                   const ArenaLayout& layout) {
  const BlockLayout block{layout.ranks, layout.bytes()};
  const std::optional<Pool::Block> free = pool->take(block.bytes());
  if (!free) return nullptr;
  std::shared_ptr<Share> share(new Share(std::move(pool), std::move(poolRanks), rank, block, free->at));
  if (free->isZero) return share;
  unsigned char* const own = share->ownBlock();
  std::memset(own, 0, block.bulletinAt());
  share->bulletin(own).clear();
  layout.clear(own + block.arenaAt());
  return share;
}

Share::~Share() {
  if (isForkedInUse()) return;  // the memory is the parent's, which still uses it
  if (!isPublished_) {
    (void)insist([this] { pool_->giveBack(at_, layout_.bytes()); });
    return;
  }
  for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
    // [released] after all that this rank did there
    if (static_cast<int>(rank) != rank_) device::storeRelease(released(blocks_[rank]), 1);
  }
  (void)insist([this] { pool_->retire(at_, layout_, rank_); });
}

unsigned char* Share::ownBlock() const { return pool_->own() + at_; }

Status Share::place(const std::vector<std::uint64_t>& ats) {
  std::vector<unsigned char*> blocks;
  for (std::size_t rank = 0; rank < ats.size(); ++rank) {
    const std::uint64_t at = ats[rank], bytes = pool_->bytesOf(poolRanks_[rank]);
    if (at % alignof(Bulletin) != 0 || layout_.bytes() > bytes || at > bytes - layout_.bytes()) {
      return error(koloInternalError, "rank {} says that its block of {} bytes is at {} of its pool of {} bytes", rank,
                   layout_.bytes(), at, bytes);
    }
    blocks.push_back(static_cast<int>(rank) == rank_ ? ownBlock() : pool_->begin(poolRanks_[rank]) + at);
  }
  blocks_ = std::move(blocks);
  return {};
}

void Share::placeFirst() { (void)place(std::vector<std::uint64_t>(poolRanks_.size(), at_)); }

std::vector<Bulletin*> Share::bulletins() const {
  std::vector<Bulletin*> all;
  for (unsigned char* const block : blocks_) all.push_back(&bulletin(block));
  return all;
}

}  // namespace kolo::links
