#include "torch/memory.h"

#include <algorithm>
#include <cstdint>

#include "torch/errors.h"

namespace kolo::pytorch {
namespace {

constexpr std::size_t kGrain = 64;                             // blocks share no cache line
constexpr std::size_t kSegmentBytes = std::size_t{256} << 20;  // only what is touched takes memory

std::size_t roundUp(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + kGrain - 1) / kGrain * kGrain; }

}  // namespace

// Never destroyed: tensors may live until the end of the process.
Pool& Pool::ofProcess() {
  static auto* const pool = new Pool;
  return *pool;
}

void* Pool::cut(std::size_t bytes) {
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const auto [begin, length] = *at;
    if (length < bytes) continue;
    free_.erase(at);
    if (length > bytes) free_.emplace(begin + bytes, length - bytes);
    taken_.emplace(begin, bytes);
    return begin;
  }
  return nullptr;
}

bool Pool::grow(std::size_t bytes) {
  for (const std::size_t size : {std::max(bytes, kSegmentBytes), bytes}) {
    void* begin = nullptr;
    if (koloMemAlloc(&begin, size) != koloSuccess) continue;
    segments_.push_back({static_cast<unsigned char*>(begin), size});
    free_.emplace(static_cast<unsigned char*>(begin), size);
    return true;
  }
  return false;
}

void* Pool::take(std::size_t bytes) {
  bytes = roundUp(bytes);
  const std::lock_guard lock(mutex_);
  if (void* const block = cut(bytes)) return block;
  return grow(bytes) ? cut(bytes) : nullptr;
}

void Pool::enter() {
  const std::lock_guard lock(mutex_);
  ++groups_;
}

void Pool::leave() {
  const std::lock_guard lock(mutex_);
  --groups_;
  shrink();
}

// Under the lock. Gives all segments back, if nobody needs one.
void Pool::shrink() {
  if (groups_ != 0 || !taken_.empty()) return;
  for (const Segment& segment : segments_) (void)koloMemFree(segment.begin);
  segments_.clear();
  free_.clear();
}

void Pool::give(void* block) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(static_cast<unsigned char*>(block));
  if (found == taken_.end()) return;
  auto [begin, bytes] = *found;
  taken_.erase(found);
  addFree(begin, bytes);
  shrink();
}

// Under the lock.
void Pool::addFree(unsigned char* begin, std::size_t bytes) {
  auto after = free_.upper_bound(begin);
  // Neighbours become one, but not across the border of a segment, which may be that of another mapping.
  const auto isBorder = [&](const unsigned char* place) {
    return std::any_of(segments_.begin(), segments_.end(),
                       [&](const Segment& segment) { return segment.begin == place; });
  };
  if (after != free_.end() && after->first == begin + bytes && !isBorder(after->first)) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && !isBorder(begin)) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

std::size_t Pool::segments() const {
  const std::lock_guard lock(mutex_);
  return segments_.size();
}

Pool::Segment Pool::segment(std::size_t i) const {
  const std::lock_guard lock(mutex_);
  return segments_[i];
}

// A rank with fewer new segments than another has nothing to give in the windows that it lacks.
void Windows::registerNew(Communicator& communicator) {
  Pool& pool = Pool::ofProcess();
  const auto mine = static_cast<std::int64_t>(pool.segments() - registered_);
  std::int64_t most = mine;
  koloComm_t const comm = communicator.get();
  check(koloAllReduce(&mine, &most, 1, koloInt64, koloMax, comm, nullptr), "kolo:windows");
  for (std::int64_t i = 0; i < most; ++i) {
    const Pool::Segment segment = i < mine ? pool.segment(registered_ + static_cast<std::size_t>(i)) : Pool::Segment{};
    koloWindow_t window = nullptr;  // ends with its communicator
    check(koloWindowRegister(comm, segment.begin, segment.bytes, &window), "kolo:windows");
  }
  registered_ += static_cast<std::size_t>(mine);
}

}  // namespace kolo::pytorch
