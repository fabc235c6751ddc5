// Where a rank's buffers lie, and into what its calls are enqueued: the host's memory and no stream, or the memory of a
// CUDA device and a stream there.
//
// Thread safety: a Device belongs to the thread that has opened it; the other functions from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kolo/kolo.h"

namespace kolo::perf {

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual int ordinal() const { return KOLO_HOST; }        // or the CUDA device's
  virtual koloStream_t stream() const { return nullptr; }  // of this rank's own
  virtual void synchronize() const {}                      // until all that was enqueued is done; throws Failure
  // Ordinary memory, of which the library knows nothing; page-aligned. Throws Failure.
  virtual std::byte* allocate(size_t bytes) const;
  virtual void free(std::byte* memory) const;
  // Of the device's memory; done when they return. Throw Failure.
  virtual void clear(std::byte* at, size_t bytes) const;
  virtual void copyToHost(std::byte* to, const std::byte* from, size_t bytes) const;
  virtual void copyToDevice(std::byte* to, const std::byte* from, size_t bytes) const;
};

// KOLO_HOST: the host's memory. Otherwise the CUDA device, which is the calling thread's current one until the Device
// goes. Throws Failure.
std::unique_ptr<Device> openDevice(int ordinal);

struct Gpu {
  std::string name;
  std::string pciBusId;  // the same for all processes of a machine, whatever devices each of them sees
  size_t memoryBytes = 0;
};

// The CUDA devices that this process sees, in their order. Throws Failure, which says why, if there is none.
std::vector<Gpu> gpusHere();

// The host's view of a part of a device's memory: that memory itself where it is the host's, else a copy, brought there
// and back.
class HostView {
 public:
  HostView(const Device& device, std::byte* begin, size_t bytes);

  // Where the host finds what lies there on the device. REQUIRES: an address in the part, or its end.
  std::byte* of(std::byte* onDevice) const { return view_ + (onDevice - begin_); }
  void upload() const;
  void download() const;

 private:
  const Device& device_;
  std::byte* begin_;
  size_t bytes_;
  std::unique_ptr<std::byte[]> copy_;  // none for the host's memory
  std::byte* view_;
};

}  // namespace kolo::perf
