#include "perf/device.h"

#include <cstdlib>
#include <cstring>

#include "drivers/cuda/devices.h"
#include "perf/cuda_device.h"
#include "perf/failure.h"

namespace kolo::perf {

std::byte* Device::allocate(size_t bytes) const {
  constexpr size_t kPage = 4096;
  void* memory = nullptr;
  if (posix_memalign(&memory, kPage, bytes) != 0) fail("no memory for a buffer of {} bytes", bytes);
  return static_cast<std::byte*>(memory);
}

void Device::free(std::byte* memory) const { std::free(memory); }

void Device::clear(std::byte* at, size_t bytes) const { std::memset(at, 0, bytes); }

void Device::copyToHost(std::byte* to, const std::byte* from, size_t bytes) const { std::memcpy(to, from, bytes); }

void Device::copyToDevice(std::byte* to, const std::byte* from, size_t bytes) const { std::memcpy(to, from, bytes); }

std::unique_ptr<Device> openDevice(int ordinal) {
  return ordinal == KOLO_HOST ? std::make_unique<Device>() : openCudaDevice(ordinal);
}

std::vector<Gpu> gpusHere() {
  const auto devices = drivers::cudaDevices();
  if (!devices.ok()) fail("--gpus: {}", devices.status().message());
  std::vector<Gpu> gpus;
  for (const drivers::CudaDevice& device : devices.value())
    gpus.push_back({device.name, device.pciBusId, device.memoryBytes});
  return gpus;
}

HostView::HostView(const Device& device, std::byte* begin, size_t bytes)
    : device_(device), begin_(begin), bytes_(bytes), view_(begin) {
  if (device.ordinal() == KOLO_HOST) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  view_ = copy_.get();
}

void HostView::upload() const {
  if (copy_ != nullptr && bytes_ > 0) device_.copyToDevice(begin_, view_, bytes_);
}

void HostView::download() const {
  if (copy_ != nullptr && bytes_ > 0) device_.copyToHost(view_, begin_, bytes_);
}

}  // namespace kolo::perf
