// Opaque handles that can be told from garbage: a handle is a number, not an address, made of a slot and that slot's
// generation, so that destroyed and foreign ones are recognised without touching memory that may not be there.
//
// Who finds an object holds a Pin on it; who takes it out waits until all pins are gone. So a call that has found its object
// can finish with it, whatever another thread destroys meanwhile.
//
// Thread safety: all functions.
// Invariants: a slot's generation is odd while it is in use, and never repeats. A slot is used again only after release().
#pragma once

#include <time.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace kolo {

template <class T>
class Pin;

// Remembers an object without keeping it from being taken away.
template <class T>
class Weak {
 public:
  Weak() = default;
  Weak(T* object, std::atomic<std::uint32_t>& users, const std::atomic<std::uint32_t>& generation, std::uint32_t was)
      : object_(object), users_(&users), generation_(&generation), was_(was) {}

  bool isSame(const Weak& other) const { return object_ == other.object_ && was_ == other.was_; }
  explicit operator bool() const { return object_ != nullptr; }
  // Empty if the object has been taken away.
  Pin<T> lock() const;

 private:
  friend class Pin<T>;
  T* object_ = nullptr;   // of the generation that the slot had
  std::atomic<std::uint32_t>* users_ = nullptr;
  const std::atomic<std::uint32_t>* generation_ = nullptr;
  std::uint32_t was_ = 0;
};

// Keeps an object from being taken away. Empty where nothing was found.
template <class T>
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept : held_(std::exchange(other.held_, {})) {}
  Pin(const Pin& other) : held_(other.held_) {
    if (held_) held_.users_->fetch_add(1, std::memory_order_relaxed);   // there is one already
  }
  Pin& operator=(Pin other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~Pin() {
    if (held_) held_.users_->fetch_sub(1, std::memory_order_release);  // [unpin] all that was done with the object
  }

  T* get() const { return held_.object_; }
  T* operator->() const { return held_.object_; }
  T& operator*() const { return *held_.object_; }
  explicit operator bool() const { return static_cast<bool>(held_); }
  const Weak<T>& weak() const { return held_; }

 private:
  friend class Weak<T>;
  explicit Pin(const Weak<T>& counted) : held_(counted) {}

  Weak<T> held_;
};

template <class T>
Pin<T> Weak<T>::lock() const {
  if (object_ == nullptr) return {};
  // Sequentially consistent with retire() and release(): either the handle is seen to be dead here, or this user is seen
  // there. [pin]
  users_->fetch_add(1, std::memory_order_seq_cst);
  Pin<T> pin(*this);
  if (generation_->load(std::memory_order_seq_cst) != was_) return {};  // [pin]
  return pin;
}

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
    entry.generation.store(generation, std::memory_order_release);  // [handle] the object and its slot
    return encode(slot, generation);
  }

  Pin<T> find(std::uintptr_t handle) { return remember(handle).lock(); }

  // Empty if the handle is dead.
  Weak<T> remember(std::uintptr_t handle) {
    Slot& entry = slotOf(handle);
    if (handle >> 40 != kKind || (generationOf(handle) & 1) == 0) return {};
    const std::uint32_t generation = entry.generation.load(std::memory_order_acquire);  // [handle]
    if ((generation & 0xffffffu) != generationOf(handle)) return {};
    return {entry.object.load(std::memory_order_relaxed), entry.users, entry.generation, generation};
  }

  // Makes the handle dead. The object, which may still be in use until release(); nullptr if the handle was dead already.
  T* retire(std::uintptr_t handle) {
    const std::lock_guard lock(mutex_);
    Slot& entry = slotOf(handle);
    if (handle >> 40 != kKind || (generationOf(handle) & 1) == 0) return nullptr;
    if ((entry.generation.load(std::memory_order_relaxed) & 0xffffffu) != generationOf(handle)) return nullptr;
    entry.generation.fetch_add(1, std::memory_order_seq_cst);  // [pin]
    return entry.object.load(std::memory_order_relaxed);
  }

  // Returns when nobody has the object any more. REQUIRES: retire() gave it to this caller, who has no pin on it.
  void release(std::uintptr_t handle) {
    waitUntilUnused(slotOf(handle));
    const std::lock_guard lock(mutex_);
    free_.insert(free_.begin(), handle & (kSlots - 1));  // the oldest free slot is used first: generations wrap late
  }

  // Takes out every object that `chosen` says yes to; the caller owns them then. Their handles are dead afterwards.
  template <class Chosen>
  std::vector<T*> removeAll(Chosen&& chosen) {
    std::vector<std::uintptr_t> handles;
    {
      const std::lock_guard lock(mutex_);
      for (std::uint32_t slot = 0; slot < used_; ++slot) {
        const Slot& entry = slots_[slot];
        const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed);
        if ((generation & 1) != 0 && chosen(*entry.object.load(std::memory_order_relaxed))) {
          handles.push_back(encode(slot, generation));
        }
      }
    }
    std::vector<T*> taken;
    for (const std::uintptr_t handle : handles) {
      T* const object = retire(handle);
      if (object == nullptr) continue;   // another thread was faster
      release(handle);
      taken.push_back(object);
    }
    return taken;
  }

  // In a forked child: what the parent's handles stand for lives there. Its other threads, which may have held the lock, do not
  // exist here.
  void disown() {
    new (&mutex_) std::mutex;
    for (std::uint32_t slot = 0; slot < used_; ++slot) {
      if ((slots_[slot].generation.load(std::memory_order_relaxed) & 1) != 0) slots_[slot].generation.fetch_add(1);
    }
  }

 private:
  struct Slot {
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::uint32_t> users{0};
    std::atomic<T*> object{nullptr};
  };

  static std::uint32_t generationOf(std::uintptr_t handle) { return static_cast<std::uint32_t>(handle >> 16) & 0xffffffu; }
  Slot& slotOf(std::uintptr_t handle) { return slots_[handle & (kSlots - 1)]; }
  static std::uintptr_t encode(std::uint32_t slot, std::uint32_t generation) {
    return static_cast<std::uintptr_t>(kKind << 40 | std::uint64_t{generation & 0xffffffu} << 16 | slot);
  }
  static void waitUntilUnused(const Slot& entry) {
    const timespec nap{0, 20'000};
    while (entry.users.load(std::memory_order_seq_cst) != 0) nanosleep(&nap, nullptr);  // [pin], [unpin]
  }

  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  std::array<Slot, kSlots> slots_;
};

}  // namespace kolo
