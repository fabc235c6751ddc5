// GPUDirect RDMA: memory of this rank's GPU that NICs read and write themselves, by way of a dma-buf or, with a
// peer-memory module of the kernel, by its address. Then the part of the arena that peers write over posted links, and
// the mirrors, lie there, and not in pinned memory of the host.
//
// Why that is right although no thread of the host looks between NIC and kernel: a NIC writes the bytes of a request,
// and then the signal, in this order; and the device must promise that its own kernels see what a NIC writes in order
// (GPU_DIRECT_RDMA_WRITES_ORDERING of OWNER at least). One that does not promise this would need a flush between the
// bytes' arrival and the kernel's look. cuFlushGPUDirectRDMAWrites cannot be it: it is a call of the driver's, which
// may wait for the kernel that waits for the bytes (gpu/proxy.h). A read by the NIC after each signal would be, but
// then signals must go to the proxy first. So such devices use pinned memory; they are old. What goes out needs no such
// promise: a block releases its request to the system after it has written the mirror [post], and the NIC reads through
// the device's L2 cache, where these writes are.
//
// Each end decides for itself, and for each transport: where a rank receives is known to it alone, as peers write to an
// offset in whatever memory its descriptor names; so is where it sends from.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "links/peers.h"
#include "memory/device_memory.h"

namespace kolo::links {

class GpuDirect {
 public:
  // arena: of this rank, as its peers are to find it. clear: zeroes memory of the device, and waits for nothing.
  using Clear = std::function<Status(const memory::DeviceMemory& memory)>;
  GpuDirect(std::shared_ptr<memory::DeviceMemory> arena, Clear clear);

  // Whether KOLO_GPUDIRECT says that it must be: then what cannot be is an error of the link that needs it.
  bool isForced() const { return wish_ != "auto" && wish_ != "off"; }
  const std::string& wish() const { return wish_; }
  unsigned char* arena() const { return arena_->as(); }

  // Registers the arena for what peers put by this transport. Errors: why it cannot.
  Result<std::unique_ptr<transport::Memory>> registerArena(transport::Device& device) const {
    return registerMemory(device, *arena_);
  }
  // Zeroed memory of the device, registered for this transport to put from. Errors: why it cannot be.
  Result<Mirror> makeMirror(transport::Device& device, std::uint64_t bytes) const;

 private:
  Result<std::unique_ptr<transport::Memory>> registerMemory(transport::Device& device,
                                                            const memory::DeviceMemory& memory) const;
  Result<std::unique_ptr<transport::Memory>> registerDmaBuf(transport::Device& device,
                                                            const memory::DeviceMemory& memory) const;
  Status whyNotAtAll(const transport::Device& device) const;
  bool mayBe(const char* way) const { return wish_ == "auto" || wish_ == way; }

  const std::string wish_;
  std::shared_ptr<memory::DeviceMemory> arena_;
  Clear clear_;
  Result<memory::RdmaAbilities> abilities_;
};

}  // namespace kolo::links
