// Memory that the NICs may read and that peers may write: one registration of each range with each NIC, shared by all
// users that register the same range, or a part of it, while it lasts. Registering pins the pages, so nothing is kept
// longer than that: the range may be unmapped then.
//
// Thread safety: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "nic.h"

namespace kolo::ib {

// What is to be registered. dmaBuf: of a device, the file in which it begins at dmaBufOffset; -1: by its address.
struct Range {
  void* address = nullptr;
  std::uint64_t bytes = 0;
  bool isOfDevice = false;
  int dmaBuf = -1;
  std::uint64_t dmaBufOffset = 0;
};

struct Region {
  unsigned char* address = nullptr;
  std::uint64_t bytes = 0;
  bool isOfDevice = false;  // the processor cannot touch it: nothing of it goes inline
  std::array<ibv_mr*, kMostNics> plain{}, relaxed{};
  Region* whole = nullptr;  // of which this is a part, and whose registrations these are; null: they are its own
  int users = 0;

  std::uint32_t localKey(std::size_t nic) const { return plain[nic]->lkey; }
  // For what the peers write in order: signals, and data in the same memory.
  Target target() const;
  // For data alone: what is named by a key never holds signals.
  Target relaxedTarget() const;
};

// What to say of a registration that was refused so: which limit there is for locked pages, and how to raise it; "" if
// that was not why.
std::string lockingLimit(int errnum);

class Regions {
 public:
  explicit Regions(Nics& nics) : nics_(nics) {}
  // Each success is paired with one release(). isForPeers: they may write it, too; else this rank's NICs read it only.
  int acquire(const Range& range, bool isForPeers, const Why& why, Region** region);
  void release(Region* region);
  // Whether peers may have this process write those bytes, of the host's memory, by that key of the NIC's.
  bool mayWrite(std::size_t nic, std::uint32_t key, std::uint64_t address, std::uint64_t bytes) const;
  // Registers it for relaxed ordering as well, where that can be had; of the host's memory.
  void relax(Region& region);
  // As Nics::forget().
  void forget() {
    regions_.clear();
    for (auto& keys : byKey_) keys.clear();
  }

 private:
  struct Name {
    void* address;
    std::uint64_t bytes;
    bool isForPeers;
    auto operator<=>(const Name&) const =
        default;  // NOLINT(modernize-use-nullptr): it finds zeros in what is generated
  };
  ibv_mr* registerWith(const Nic& nic, const Range& range, unsigned access) const;
  Region* findWhole(const Range& range);
  void deregister(Region& region);

  Nics& nics_;
  std::map<Name, Region> regions_;
  std::array<std::map<std::uint32_t, const Region*>, kMostNics> byKey_;  // of each NIC: those that peers may write
};

}  // namespace kolo::ib
