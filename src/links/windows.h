// The windows of a communicator (D5): memory that all ranks registered together, and where each peer's part lies.
//
// A rank may abandon a window alone. Its own buffers are not found in the window any more. It goes on to use the parts
// of ranks that have not abandoned the window. The index stays taken until all ranks have. The ranks tell each other in
// the next add().
//
// Thread safety: under the communicator's turn, isKnown() with its links held; abandon() from any thread. find() is on
// the hot path.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/link.h"
#include "links/peers.h"
#include "memory/shared_memory.h"

namespace kolo::links {

struct Window {
  unsigned char* begin = nullptr;
  std::size_t bytes = 0;
  std::uint32_t index = 0;               // the same on all ranks
  bool zeroCopy = false;                 // the same on all ranks
  bool isMapped = false;                 // by this process itself
  std::atomic<bool> isAbandoned{false};  // by this rank
  std::uint64_t allocationId = 0;        // on a GPU: of the memory that was registered
  memory::Hold hold;
  std::vector<std::unique_ptr<transport::Memory>>
      registrations;  // with devices that map it, and with those that Windows::isKnown() was asked of
  std::vector<const transport::Device*> refusedBy;  // of the latter
  std::vector<std::unique_ptr<transport::Link>> links;
  std::vector<std::uint64_t> addresses;  // of each rank's part, in its process
};

class Windows {
 public:
  static constexpr std::uint32_t kMost = device::kMostWindows;

  // Keeps other threads from links, and from the devices of posted ones, as Traffic::hold() does.
  using HoldLinks = std::function<std::unique_lock<std::mutex>()>;

  // Makes the tables. Once, before everything else.
  Status open(int ranks, HoldLinks holdLinks);

  // Collective. The window stays owned here.
  Result<Window*> add(Membership& membership, Peers& peers, void* buffer, std::size_t bytes);
  // Collective, for memory that this process has mapped for all ranks itself: where it sees each rank's, and how much
  // it takes that to be.
  Result<Window*> addMapped(Membership& membership, Peers& peers, void* const* parts, const std::size_t* bytes);
  // Collective: an error unless all ranks name the same window. Takes nothing away.
  Status agree(Membership& membership, const Window& window) const;
  // Whether buffers of this rank are found in it: the others are not to read of a window that they may have dropped.
  void hide(const Window& window);
  void show(const Window& window);
  // Takes it away, with the links held: devices of posted ones may have registered it. release: takes the
  // window over; without one it ends there.
  void drop(const Window& window, const std::function<void(std::shared_ptr<const Window>)>& release = {});
  // Abandons the window on this rank alone. REQUIRES: no operation of this rank that has begun has a buffer there.
  // Another thread may end the window as soon as this is done.
  static void abandon(Window& window) {
    window.hold = memory::Hold();  // the memory may be freed
    window.isAbandoned.store(true, std::memory_order_release);
  }
  // Whether this rank has abandoned a window in which the others may still look for its memory.
  bool hasAbandoned() const {
    return std::ranges::any_of(windows_, [](const auto& window) { return window != nullptr && isAbandoned(*window); });
  }
  // All of them, when nothing uses this object any more.
  std::vector<std::unique_ptr<Window>> dropAll() { return std::move(windows_); }

  // Where the range lies; index 0 if in no zero-copy window.
  device::WindowRef find(const void* buffer, std::uint64_t bytes) const {
    const auto* at = static_cast<const unsigned char*>(buffer);
    for (const Extent& extent : extents_) {
      // One comparison for both ends: an address below begin wraps to a huge offset.
      const std::uint64_t offset = static_cast<std::uint64_t>(at - extent.begin);
      if (offset > extent.bytes || bytes > extent.bytes - offset) continue;
      if (!isAbandoned(*windows_[extent.index])) return {offset, extent.index + 1};
    }
    return {};
  }
  // Whether some window holds the range, and is registered with this device of posted links, so that registering the
  // range again costs nothing. The window is registered when this is first asked: not before, as that takes all of its
  // pages, touched or not.
  bool isKnown(const void* buffer, std::uint64_t bytes, transport::Device& device);
  // Where this process sees a range of a rank's memory, given by its address there; nullptr: it is in no zero-copy
  // window.
  unsigned char* placeOf(int rank, std::uint64_t address, std::uint64_t bytes) const;
  // Whether there are zero-copy windows; the same on all ranks.
  bool haveZeroCopy() const { return zeroCopies_ != 0; }
  // The last window was not added here, and may have been on other ranks.
  bool isInDoubt() const { return isInDoubt_; }
  // How often the windows have changed.
  std::uint64_t changes() const { return changes_; }
  const Window& at(std::uint32_t index) const { return *windows_[index]; }
  // A rank's part of each window; the array stays where it is.
  const device::WindowPart* tableOf(int rank) const { return table(rank); }

 private:
  struct Extent {
    const unsigned char* begin;
    std::uint64_t bytes;
    std::uint32_t index;
  };

  static bool isAbandoned(const Window& window) { return window.isAbandoned.load(std::memory_order_acquire); }
  static std::unique_ptr<Window> make(void* buffer, std::size_t bytes);
  Result<std::vector<std::string>> exchange(Membership& membership, const std::string& mine);
  Status takeIndex(Window& window) const;
  std::string openParts(Window& window, int own, Peers& peers, const std::vector<std::string>& blobs);
  std::string checkMapped(int own, Peers& peers, const std::vector<std::string>& theirs, void* const* parts,
                          const std::size_t* bytes);
  Result<Window*> keep(Membership& membership, std::unique_ptr<Window> window, const std::string& why);

  device::WindowPart* table(int rank) const {
    return reinterpret_cast<device::WindowPart*>(tables_.data()) + static_cast<std::size_t>(rank) * kMost;
  }

  HoldLinks holdLinks_;
  int ranks_ = 0;
  memory::PrivateMemory tables_;                  // [rank][window]; takes no memory where no window has been
  std::vector<std::unique_ptr<Window>> windows_;  // by index; null: free
  std::vector<Extent> extents_;                   // zero-copy ones, newest first
  bool isInDoubt_ = false;
  std::uint64_t changes_ = 0, zeroCopies_ = 0;  // the latter: those of now, those without bytes here among them
};

}  // namespace kolo::links
