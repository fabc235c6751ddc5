// A rank of a communicator whose buffers lie in a GPU's memory: what it has beside the host's side, and how its operations get
// onto a CUDA stream.
//
// Thread safety: stop() and fault() from any thread; the rest under the communicator's turn.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "comm/peers.h"
#include "device/work.h"

namespace kolo::comm {

class GpuRank {
 public:
  virtual ~GpuRank() = default;

  // Collective; every rank gives its device. In this version the ranks are threads of one process.
  static Result<std::unique_ptr<GpuRank>> connect(Membership& membership, int device);

  virtual int channels() const = 0;             // that an operation may use; the same on all ranks
  virtual std::uint32_t slotBytes() const = 0;
  // Collective: begin of a rank's part of a window.
  virtual Status setWindow(int rank, std::uint32_t index, unsigned char* begin) = 0;
  // Scratch memory, of all channels together.
  virtual Status reserveScratch(std::uint64_t bytes) = 0;
  // Whether the range is memory of this rank's device; why not, in the words of the caller's argument.
  virtual Status checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const = 0;
  // stream: a CUstream.
  virtual Status enqueue(std::span<device::Work> works, int timeoutMs, void* stream) = 0;
  virtual std::optional<device::Fault> fault() const = 0;
  virtual void stop() = 0;
  virtual Status drain() = 0;
};

}  // namespace kolo::comm
