// Opaque handles that can be told from garbage: a handle is a number, not an address, made of a slot and that slot's
// generation, so that destroyed and foreign ones are recognised without touching memory that may not be there.
//
// A thread that finds an object holds a Pin on it; a thread that takes the object out waits until all pins are gone. So
// a call that has found its object can finish with it, whatever another thread destroys meanwhile.
//
// A table grows as handles are needed, by a block of slots as large as the table was. Slots stay where they are to the
// end of the process, because a thread may ask about a dead handle at any time. So a table is as large as its largest
// number of objects at a time, 128 bytes for each.
//
// Thread safety: all functions.
// Invariants: a slot's generation is odd while it is in use, and never repeats. A slot is used again only after
// release().
#pragma once

#include <time.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/bias.h"

namespace kolo {

// Where an object hangs. Apart from its neighbours, which belong to other threads' objects.
template <class T>
struct alignas(128) HandleSlot {
  std::atomic<std::uint32_t> generation{0};
  std::atomic<std::uint32_t> users{0};  // pins
  std::atomic<T*> object{nullptr};      // of this generation
  Bias bias;
};

// Keeps an object from being taken away. Empty where nothing was found.
template <class T>
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)), object_(other.object_) {}
  Pin(const Pin& other) : slot_(other.slot_), object_(other.object_) {
    if (slot_ != nullptr) slot_->users.fetch_add(1, std::memory_order_relaxed);  // there is one already
  }
  Pin& operator=(Pin other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~Pin() {
    if (slot_ != nullptr)
      slot_->users.fetch_sub(1, std::memory_order_release);  // [unpin] all that was done with the object
  }

  T* get() const { return slot_ != nullptr ? object_ : nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return slot_ != nullptr; }

 private:
  template <class U>
  friend class Weak;
  template <class U>
  friend class Inside;
  Pin(HandleSlot<T>& counted, T* object) : slot_(&counted), object_(object) {}

  HandleSlot<T>* slot_ = nullptr;
  T* object_ = nullptr;
};

// The time in which the calling thread is in an object by its bias. Empty where it does not have it.
template <class T>
class Inside {
 public:
  Inside() = default;
  Inside(Inside&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)), object_(other.object_) {}
  Inside& operator=(Inside other) noexcept {
    std::swap(slot_, other.slot_);
    std::swap(object_, other.object_);
    return *this;
  }
  ~Inside() {
    if (slot_ != nullptr) slot_->bias.leave();
  }

  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return slot_ != nullptr; }

  // For after leaving, also if the handle is dead by now: a thread that takes the object out waits for this thread to
  // leave, and counts pins behind that.
  Pin<T> pin() const {
    slot_->users.fetch_add(1, std::memory_order_seq_cst);
    return Pin<T>(*slot_, object_);
  }

 private:
  template <class U>
  friend class Weak;
  Inside(HandleSlot<T>& entered, T* object) : slot_(&entered), object_(object) {}

  HandleSlot<T>* slot_ = nullptr;
  T* object_ = nullptr;
};

// Remembers an object without keeping it from being taken away.
template <class T>
class Weak {
 public:
  Weak() = default;
  Weak(HandleSlot<T>& slot, std::uint32_t generation) : slot_(&slot), generation_(generation) {}

  bool operator==(const Weak&) const = default;
  explicit operator bool() const { return slot_ != nullptr; }

  // Empty if the object has been taken away.
  Pin<T> lock() const {
    if (slot_ == nullptr) return {};
    // Sequentially consistent with retire() and release(): either the handle is seen to be dead here, or this user is
    // seen there. [pin]
    slot_->users.fetch_add(1, std::memory_order_seq_cst);
    Pin<T> pin(*slot_, slot_->object.load(std::memory_order_relaxed));
    if (slot_->generation.load(std::memory_order_seq_cst) != generation_) return {};  // [pin]
    return pin;
  }

  // The object without a pin, for the thread that has its bias. That is safe, because a thread that takes an object out
  // waits, before release(), for its turn in it. The turn revokes the bias, and comes when the thread is out
  // (comm/turn.h).
  Inside<T> enter() const {
    if (slot_ == nullptr || !slot_->bias.enter()) return {};
    Inside<T> inside(*slot_, slot_->object.load(std::memory_order_relaxed));
    if (slot_->generation.load(std::memory_order_relaxed) != generation_)
      return {};  // an older object of the same slot
    return inside;
  }

 private:
  HandleSlot<T>* slot_ = nullptr;
  std::uint32_t generation_ = 0;
};

// An object for the time of a call: by the bias, where the calling thread has it, else by a pin. Empty if there is
// none.
template <class T>
class Held {
 public:
  Held() = default;
  explicit Held(const Weak<T>& weak) : weak_(weak), inside_(weak.enter()) {
    if (!inside_) pin_ = weak.lock();
  }

  T& operator*() const { return inside_ ? *inside_ : *pin_; }
  T* operator->() const { return &**this; }
  explicit operator bool() const { return isInside() || static_cast<bool>(pin_); }
  bool isInside() const { return static_cast<bool>(inside_); }
  // By a pin from now on: others may have their turns in the object.
  void stepOut() {
    if (!isInside()) return;
    pin_ = inside_.pin();
    inside_ = Inside<T>();
  }
  const Weak<T>& weak() const { return weak_; }

 private:
  Weak<T> weak_;
  Inside<T> inside_;
  Pin<T> pin_;
};

template <class T, std::uint64_t kKind>
class HandleTable {
 public:
  // 0 when there is no memory for another slot, or none that a handle can name.
  std::uintptr_t add(T* object) {
    const std::lock_guard lock(mutex_);
    std::uint32_t slot;
    if (oldestFree_ < free_.size()) {
      slot = free_[oldestFree_++];
    } else if (used_ < kMostSlots && grow()) {
      slot = used_++;
    } else {
      return 0;
    }
    Slot& entry = *slotAt(slot);
    entry.object.store(object, std::memory_order_relaxed);
    const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed) + 1;
    entry.generation.store(generation, std::memory_order_release);  // [handle] the object and its slot
    return encode(slot, generation);
  }

  Pin<T> find(std::uintptr_t handle) { return remember(handle).lock(); }

  // Empty if the handle is dead.
  Weak<T> remember(std::uintptr_t handle) {
    const std::uint32_t slot = slotNumberOf(handle);
    Slot* const entry = slotAt(slot);
    if (entry == nullptr) return {};
    const std::uint32_t generation = entry->generation.load(std::memory_order_acquire);  // [handle]
    if ((generation & 1) == 0 || encode(slot, generation) != handle) return {};
    return {*entry, generation};
  }

  // The slot's bias, which lives as long as the table. REQUIRES: a handle that add() gave.
  Bias& biasOf(std::uintptr_t handle) { return slotOf(handle).bias; }

  // Makes the handle dead. The object, which may still be in use until release(); nullptr if the handle was dead
  // already.
  T* retire(std::uintptr_t handle) {
    Slot* const entry = findSlot(handle);
    if (entry == nullptr) return nullptr;
    std::uint32_t generation = entry->generation.load(std::memory_order_relaxed);
    if ((generation & kField) != generationOf(handle)) return nullptr;
    // [pin] One of several threads gets the object.
    if (!entry->generation.compare_exchange_strong(generation, generation + 1, std::memory_order_seq_cst))
      return nullptr;
    return entry->object.load(std::memory_order_relaxed);
  }

  // Returns when nobody has the object of a retired handle any more.
  void waitUntilUnused(std::uintptr_t handle) { waitUntilUnused(slotOf(handle)); }

  // A new handle in the slot of a retired one that was not released, for the same object. REQUIRES: nobody else has the
  // object.
  std::uintptr_t revive(std::uintptr_t handle) {
    Slot& entry = slotOf(handle);
    const std::uint32_t generation = entry.generation.load(std::memory_order_relaxed) + 1;
    entry.generation.store(generation, std::memory_order_release);  // [handle]
    return encode(slotNumberOf(handle), generation);
  }

  // Returns when nobody has the object any more. REQUIRES: retire() gave it to this caller. The caller has no pin on
  // it, and has waited for the thread that is inside by the bias, if there is one.
  void release(std::uintptr_t handle) {
    Slot& entry = slotOf(handle);
    waitUntilUnused(entry);
    entry.bias.revoke();  // the next object of the slot begins without
    const std::lock_guard lock(mutex_);
    // The oldest free slot is used first: generations wrap late. Slots at the begin of free_ that have been used are
    // cut off now and then.
    if (oldestFree_ >= kMostUsed || oldestFree_ == free_.size()) {
      free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(std::exchange(oldestFree_, 0)));
    }
    free_.push_back(slotNumberOf(handle));
  }

  // The handles of all objects that `chosen` says yes to.
  template <class Chosen>
  std::vector<std::uintptr_t> findAll(Chosen&& chosen) {
    std::vector<std::uintptr_t> handles;
    const std::lock_guard lock(mutex_);
    for (std::uint32_t slot = 0; slot < used_; ++slot) {
      Slot& entry = *slotAt(slot);
      const std::uint32_t generation = entry.generation.load(std::memory_order_acquire);  // [handle]
      if ((generation & 1) == 0) continue;
      const Pin<T> found = Weak<T>(entry, generation).lock();
      if (found && chosen(*found)) handles.push_back(encode(slot, generation));
    }
    return handles;
  }

  // Takes out every object that `chosen` says yes to; the caller owns them then. Their handles are dead afterwards.
  template <class Chosen>
  std::vector<T*> removeAll(Chosen&& chosen) {
    std::vector<T*> taken;
    for (const std::uintptr_t handle : findAll(chosen)) {
      T* const object = retire(handle);
      if (object == nullptr) continue;  // another thread was faster
      release(handle);
      taken.push_back(object);
    }
    return taken;
  }

  // In a forked child: what the parent's handles stand for lives there. Its other threads, which may have held the
  // lock, do not exist here.
  void disown() {
    new (&mutex_) std::mutex;
    new (&free_) std::vector<std::uint32_t>;  // it may have been changing
    oldestFree_ = 0;
    for (std::uint32_t slot = 0; slot < used_; ++slot) {
      Slot& entry = *slotAt(slot);
      if ((entry.generation.load(std::memory_order_relaxed) & 1) != 0) entry.generation.fetch_add(1);
    }
  }

 private:
  using Slot = HandleSlot<T>;

  // A handle: 16 bits say of what kind it is, 24 are of the generation, 24 say which slot it is.
  static constexpr unsigned kFieldBits = 24;
  static constexpr std::uint32_t kField = (1 << kFieldBits) - 1;
  static constexpr std::uint32_t kMostSlots = 1 << kFieldBits;
  static_assert(kKind < 1 << 16);

  static std::uint32_t slotNumberOf(std::uintptr_t handle) { return static_cast<std::uint32_t>(handle) & kField; }
  static std::uint32_t generationOf(std::uintptr_t handle) {
    return static_cast<std::uint32_t>(handle >> kFieldBits) & kField;
  }
  static std::uintptr_t encode(std::uint32_t slot, std::uint32_t generation) {
    return static_cast<std::uintptr_t>(kKind << 2 * kFieldBits | std::uint64_t{generation & kField} << kFieldBits |
                                       slot);
  }

  // Block b > 0 has the slots from kFirstSlots << (b - 1) on, as many as all before it.
  static unsigned blockOf(std::uint32_t slot) { return static_cast<unsigned>(std::bit_width(slot / kFirstSlots)); }
  static std::uint32_t slotsBefore(unsigned block) { return (kFirstSlots << block) / 2; }
  // nullptr: the table was never so large.
  Slot* slotAt(std::uint32_t slot) {
    if (slot < kFirstSlots) [[likely]]
      return &first_[slot];
    const unsigned block = blockOf(slot);
    Slot* const its = blocks_[block].load(std::memory_order_acquire);  // [block]
    return its == nullptr ? nullptr : its + (slot - slotsBefore(block));
  }
  // nullptr: it never was a handle of this table.
  Slot* findSlot(std::uintptr_t handle) {
    if (handle >> 2 * kFieldBits != kKind || (generationOf(handle) & 1) == 0) return nullptr;
    return slotAt(slotNumberOf(handle));
  }
  // REQUIRES: a handle that add() gave.
  Slot& slotOf(std::uintptr_t handle) { return *slotAt(slotNumberOf(handle)); }
  // Whether there is a slot of number used_.
  bool grow() {
    if (slotAt(used_) != nullptr) return true;
    const unsigned block = blockOf(used_);
    blocks_[block].store(new (std::nothrow) Slot[slotsBefore(block)], std::memory_order_release);  // [block] its slots
    return slotAt(used_) != nullptr;
  }
  static void waitUntilUnused(const Slot& entry) {
    const timespec nap{0, 20'000};
    while (entry.users.load(std::memory_order_seq_cst) != 0) nanosleep(&nap, nullptr);  // [pin], [unpin]
  }

  static constexpr std::size_t kMostUsed = 1024;  // places before oldestFree_
  static constexpr std::uint32_t kFirstSlots = 1024;
  static constexpr unsigned kBlocks = 15;
  static_assert(kFirstSlots << (kBlocks - 1) == kMostSlots);

  std::mutex mutex_;
  std::vector<std::uint32_t> free_;  // a queue, which begins at oldestFree_
  std::size_t oldestFree_ = 0;
  std::uint32_t used_ = 0;
  std::array<Slot, kFirstSlots> first_;
  std::array<std::atomic<Slot*>, kBlocks> blocks_{};  // but for the first, which is first_
};

}  // namespace kolo
