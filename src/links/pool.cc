#include "links/pool.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/fork.h"
#include "base/log.h"
#include "links/blob.h"
#include "links/surroundings.h"

namespace kolo::links {
namespace {

// Of address space, for each rank's file, and for those of all ranks that a process maps. With 4 ranks a block takes
// 6 MiB of it, with 8 ranks 12, and never much more than KOLO_STAGING_BYTES.
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30;
constexpr std::uint64_t kMostBytesOfAll = std::uint64_t{256} << 30;
constexpr std::uint64_t kLeastBytes = std::uint64_t{1} << 20;
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

// As much as the process's limits leave room for. Less than kLeastBytes: the process should share nothing.
std::uint64_t poolBytes(int ranks) {
  std::uint64_t bytes = std::min(kMostBytes, kMostBytesOfAll / static_cast<std::uint64_t>(ranks));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min<std::uint64_t>(bytes, limit.rlim_cur / 8 / static_cast<std::uint64_t>(ranks));
  }
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0) bytes = std::min<std::uint64_t>(bytes, limit.rlim_cur);
  return bytes / kLeastBytes * kLeastBytes;
}

// What keeps this rank from sharing the links of these peers; "": nothing does.
std::string whyNotShared(const Peers& peers, int ownRank) {
  for (int rank = 0; rank < peers.ranks(); ++rank) {
    const Peer& peer = peers[rank];
    if (rank == ownRank) continue;
    if (peer.link == nullptr) {
      return fmt::format("rank {} does not map the memory of rank {}: {}", ownRank, rank, peer.unreached.message());
    }
    if (!peer.device->sharesLinks()) return fmt::format("transport {} does not share links", peer.device->name());
  }
  return {};
}

void sayWhyNot(std::size_t rank, std::string_view why) {
  log::info("communicators that are split from this one share nothing with it: on rank {}: {}", rank, why);
}

}  // namespace

Result<std::shared_ptr<Pool>> Pool::create(Membership& whole, Membership& making, const std::string& transports,
                                           bool& isDecided) {
  auto pool = std::make_shared<Pool>();
  pool->transports_ = transports;
  pool->family_ = whole.key;
  pool->wasDumpable_ = isDumpable();
  KOLO_TRY(pool->agreeOnBytes(whole));
  if (pool->bytes_ == 0) return std::shared_ptr<Pool>();
  const memory::SharedMemory& own = *pool->memory_;
  Given given{{sizeof(koloTransportMemory), own.data(), pool->bytes_, own.fd(), 0, koloMemoryHost},
              pool->bytes_,
              pool->memory_};
  KOLO_ASSIGN(pool->peers_,
              Peers::connect(making, std::move(given), {.name = "pool", .mayMiss = true}, transports, "a pool"));
  bool all = true;
  KOLO_TRY(pool->agreeOnLinks(making, all, isDecided));
  if (!all) return std::shared_ptr<Pool>();
  for (int rank = 0; rank < whole.ranks(); ++rank) {
    pool->begins_.push_back(rank == whole.rank ? own.data() : (*pool->peers_)[rank].arena);
  }
  return pool;
}

// As long as the rank with the least room allows; 0: there is a rank that has none.
Status Pool::agreeOnBytes(Membership& membership) {
  std::uint64_t mine = poolBytes(membership.ranks());
  std::string why;
  if (mine < kLeastBytes) why = "limits of the process (ulimit -v, ulimit -f) leave no room";
  if (takesMemoryAtOnce()) why = "the process locks all its memory (mlockall)";
  if (why.empty()) {
    Result<memory::SharedMemory> reserved = memory::SharedMemory::reserve(mine, "kolo-pool");
    why = reserved.status().message();
    if (reserved.ok()) memory_ = std::make_shared<memory::SharedMemory>(reserved.take());
  }
  if (!why.empty()) mine = 0;
  BlobWriter writer;
  writer.put(mine).putText(why);
  KOLO_ASSIGN(const std::vector<std::string> all, membership.allGather(writer.text()));
  bytes_ = mine;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    BlobReader reader(all[rank]);
    const auto theirs = reader.get<std::uint64_t>();
    if (theirs == 0) sayWhyNot(rank, reader.getText());
    bytes_ = std::min(bytes_, theirs);
  }
  return {};
}

// all: whether each rank's links can be shared.
Status Pool::agreeOnLinks(Membership& membership, bool& all, bool& isDecided) const {
  const Result<std::vector<std::string>> told = membership.allGather(whyNotShared(*peers_, membership.rank));
  isDecided = told.ok() || membership.isUnanswered;
  KOLO_TRY(told.status());
  const std::vector<std::string>& reasons = told.value();
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    sayWhyNot(rank, reasons[rank]);
    all = false;
  }
  return {};
}

std::optional<Pool::Block> Pool::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  sweep();
  // A larger one serves only if nothing else does: most communicators are as large as one that was there before.
  auto found = free_.lower_bound(bytes);
  const bool fits = found != free_.end() && (found->first == bytes || bytes > bytes_ - end_);
  if (!fits && bytes > bytes_ - end_) return std::nullopt;
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
  sweep();
}

// REQUIRES: the lock
void Pool::addFree(std::uint64_t bytes, Block block) {
  if (!block.isZero && warmBytes_ + bytes > kMostWarmBytes) block.isZero = memory_->discard(block.at, bytes);
  if (!block.isZero) warmBytes_ += bytes;
  const auto equal = free_.equal_range(bytes);
  free_.emplace_hint(block.isZero ? equal.second : equal.first, bytes, block);
}

// REQUIRES: the lock
void Pool::sweep() {
  std::erase_if(retired_, [&](const Retired& block) {
    if (!isReleased(block)) return false;
    addFree(block.layout.bytes(), {block.at, false});
    return true;
  });
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

std::shared_ptr<Share> Share::ofFirst(std::shared_ptr<Pool> pool, int ranks, int rank) {
  std::vector<int> same(static_cast<std::size_t>(ranks));
  std::iota(same.begin(), same.end(), 0);
  const BlockLayout layout{ranks, 0};
  // The first block of each file, which is there: a file is larger.
  const std::uint64_t at = pool->take(layout.bytes()).value().at;
  std::shared_ptr<Share> share(new Share(std::move(pool), std::move(same), rank, layout, at));
  share->publish();
  for (int each = 0; each < ranks; ++each) share->blocks_.push_back(share->pool_->begin(each) + at);
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
    pool_->giveBack(at_, layout_.bytes());
    return;
  }
  for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
    // [released] after all that this rank did there
    if (static_cast<int>(rank) != rank_) device::storeRelease(released(blocks_[rank]), 1);
  }
  pool_->retire(at_, layout_, rank_);
}

unsigned char* Share::ownBlock() const { return pool_->begin(poolRanks_[static_cast<std::size_t>(rank_)]) + at_; }

Status Share::place(const std::vector<std::uint64_t>& offsets) {
  std::vector<unsigned char*> blocks;
  for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
    const std::uint64_t there = pool_->bytes(), at = offsets[rank];
    if (at % alignof(Bulletin) != 0 || layout_.bytes() > there || at > there - layout_.bytes()) {
      return error(koloInternalError, "rank {} says that its block of {} bytes is at {} of its pool of {} bytes", rank,
                   layout_.bytes(), at, there);
    }
    blocks.push_back(pool_->begin(poolRanks_[rank]) + at);
  }
  blocks_ = std::move(blocks);
  return {};
}

std::vector<Bulletin*> Share::bulletins() const {
  std::vector<Bulletin*> all;
  for (unsigned char* const block : blocks_) all.push_back(&bulletin(block));
  return all;
}

}  // namespace kolo::links
