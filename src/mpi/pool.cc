#include "mpi/pool.h"

#include <kolo/kolo.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace kolo::mpi {
namespace {

constexpr std::size_t kGrain = 64;                              // blocks share no cache line
constexpr std::size_t kReturnedBytes = std::size_t{128} << 10;  // from so many on a block's pages go back to the system

std::uintptr_t roundUp(std::uintptr_t value, std::size_t to) { return (value + to - 1) / to * to; }

std::size_t pageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Whole pages only. They read as zero when they are touched again. Where that is refused, they stay.
void returnPages(std::uintptr_t begin, std::size_t bytes) {
  if (bytes < kReturnedBytes) return;
  const std::uintptr_t first = roundUp(begin, pageBytes()), end = (begin + bytes) / pageBytes() * pageBytes();
  (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_REMOVE);
}

}  // namespace

// The first that fits.
std::optional<std::uintptr_t> Pool::cut(Part& part, std::size_t bytes, std::size_t alignment) {
  for (auto at = part.free.begin(); at != part.free.end(); ++at) {
    const auto [begin, length] = *at;
    const std::uintptr_t aligned = roundUp(begin, alignment);
    const std::size_t before = aligned - begin;
    if (length < before || length - before < bytes) continue;
    part.free.erase(at);
    if (before != 0) part.free.emplace(begin, before);
    if (length != before + bytes) part.free.emplace(aligned + bytes, length - before - bytes);
    return aligned;
  }
  return std::nullopt;
}

void Pool::join(Part& part, std::uintptr_t begin, std::size_t bytes) {
  auto after = part.free.upper_bound(begin);
  if (after != part.free.end() && after->first == begin + bytes) {
    bytes += after->second;
    after = part.free.erase(after);
  }
  if (after != part.free.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  part.free.emplace(begin, bytes);
}

// nullptr: there is no memory for it.
Pool::Part* Pool::grow(std::size_t bytes) {
  for (const std::size_t size : {std::max(bytes, kSegmentBytes), bytes}) {
    void* begin = nullptr;
    if (koloMemAlloc(&begin, size) != koloSuccess) continue;
    Part& part = parts_.emplace_back(Part{{static_cast<unsigned char*>(begin), size}, {}});
    part.free.emplace(reinterpret_cast<std::uintptr_t>(begin), size);
    return &part;
  }
  return nullptr;
}

void* Pool::take(std::size_t bytes, std::size_t alignment) {
  if (bytes > PTRDIFF_MAX / 2) return nullptr;
  bytes = roundUp(std::max<std::size_t>(bytes, 1), kGrain);
  alignment = std::max(alignment, bytes >= pageBytes() ? pageBytes() : kGrain);
  const std::lock_guard lock(mutex_);
  const auto found = [&](Part& part, std::uintptr_t block) {
    taken_.emplace(block, Taken{&part, bytes});
    return reinterpret_cast<void*>(block);
  };
  for (Part& part : parts_) {
    if (const auto block = cut(part, bytes, alignment)) return found(part, *block);
  }
  Part* const part = grow(roundUp(bytes, pageBytes()));
  if (part == nullptr) return nullptr;
  const auto block = cut(*part, bytes, alignment);  // a segment begins with a page
  return block ? found(*part, *block) : nullptr;
}

bool Pool::give(void* pointer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(begin);
  if (found == taken_.end()) return false;
  const Taken block = found->second;
  taken_.erase(found);
  returnPages(begin, block.bytes);
  join(*block.part, begin, block.bytes);
  return true;
}

std::size_t Pool::segments() const {
  const std::lock_guard lock(mutex_);
  return parts_.size();
}

Pool::Segment Pool::segment(std::size_t i) const {
  const std::lock_guard lock(mutex_);
  return parts_[i].segment;
}

// Never destroyed, as sessions.
Pool& pool() {
  static auto* const made = new Pool;
  return *made;
}

}  // namespace kolo::mpi
