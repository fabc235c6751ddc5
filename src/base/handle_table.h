// Opaque handles that can be told from garbage: a handle is a number, not an address, made of a slot and that slot's
// generation, so that destroyed and foreign ones are recognised without touching memory that may not be there.
//
// Thread safety: all functions. The object found stays valid only as long as nobody removes it.
// Invariant: a slot's generation is odd while it is in use, and never repeats.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace kolo {

template <class T, std::uint64_t kKind>
class HandleTable {
 public:
  static constexpr std::uint32_t kSlots = 1 << 14;

  // 0 when all slots are in use.
  std::uintptr_t add(T* object) {
    const std::lock_guard lock(mutex_);
    std::uint32_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (used_ < kSlots) {
      slot = used_++;
    } else {
      return 0;
    }
    Slot& entry = slots_[slot];
    entry.object.store(object, std::memory_order_relaxed);
    const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed) + 1;
    entry.generation.store(generation, std::memory_order_release);  // [handle]
    return encode(slot, generation);
  }

  T* find(std::uintptr_t handle) const {
    const std::uint32_t slot = handle & (kSlots - 1);
    const std::uint32_t generation = static_cast<std::uint32_t>(handle >> 16) & 0xffffffu;
    const Slot& entry = slots_[slot];
    if (handle >> 40 != kKind || (generation & 1) == 0) return nullptr;
    if ((entry.generation.load(std::memory_order_acquire) & 0xffffffu) != generation) return nullptr;  // [handle]
    return entry.object.load(std::memory_order_relaxed);
  }

  // The object, or nullptr if the handle was dead already. Afterwards the handle is dead.
  T* remove(std::uintptr_t handle) {
    const std::lock_guard lock(mutex_);
    T* object = find(handle);
    if (object == nullptr) return nullptr;
    const std::uint32_t slot = handle & (kSlots - 1);
    slots_[slot].generation.fetch_add(1, std::memory_order_release);
    free_.insert(free_.begin(), slot);  // the oldest free slot is used first: generations wrap late
    return object;
  }

  // Takes out every object that `chosen` says yes to; the caller owns them then. Their handles are dead afterwards.
  template <class Chosen>
  std::vector<T*> removeAll(Chosen&& chosen) {
    const std::lock_guard lock(mutex_);
    std::vector<T*> taken;
    for (std::uint32_t slot = 0; slot < used_; ++slot) {
      Slot& entry = slots_[slot];
      T* const object = entry.object.load(std::memory_order_relaxed);
      if ((entry.generation.load(std::memory_order_relaxed) & 1) == 0 || !chosen(*object)) continue;
      entry.generation.fetch_add(1, std::memory_order_release);
      free_.insert(free_.begin(), slot);
      taken.push_back(object);
    }
    return taken;
  }

 private:
  struct Slot {
    std::atomic<std::uint32_t> generation{0};
    std::atomic<T*> object{nullptr};
  };
  static std::uintptr_t encode(std::uint32_t slot, std::uint32_t generation) {
    return static_cast<std::uintptr_t>(kKind << 40 | std::uint64_t{generation & 0xffffffu} << 16 | slot);
  }

  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  std::array<Slot, kSlots> slots_;
};

}  // namespace kolo
