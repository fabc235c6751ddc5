#include "links/gpu_direct.h"

#include <utility>

#include "base/log.h"
#include "base/settings.h"

namespace kolo::links {

GpuDirect::GpuDirect(std::shared_ptr<memory::DeviceMemory> arena, Clear clear)
    : wish_(settings::text("KOLO_GPUDIRECT")), arena_(std::move(arena)), clear_(std::move(clear)),
      abilities_(memory::rdmaAbilities(arena_->device())) {}

Status GpuDirect::whyNotAtAll(const transport::Device& device) const {
  if (wish_ == "off") return error(koloUnsupported, "KOLO_GPUDIRECT is off");
  if (!device.registersDeviceMemory())
    return error(koloUnsupported, "transport {} takes no memory of GPUs", device.name());
  KOLO_TRY(abilities_.status());
  if (abilities_.value().ordersWrites) return {};
  return error(koloUnsupported, "device {} does not promise that its kernels see what a NIC writes in order",
               arena_->device());
}

Result<std::unique_ptr<transport::Memory>> GpuDirect::registerDmaBuf(transport::Device& device,
                                                                     const memory::DeviceMemory& memory) const {
  if (!abilities_.value().dmaBuf) {
    return error(koloUnsupported, "device {} exports no dma-buf (it takes the open kernel modules and Linux 5.12)",
                 memory.device());
  }
  KOLO_ASSIGN(const memory::File buffer, memory.dmaBuf());
  return device.registerMemory(
      {sizeof(koloTransportMemory), memory.as<void>(), memory.bytes(), buffer.fd(), 0, koloMemoryCuda});
}

// By the first way that is wished and works.
Result<std::unique_ptr<transport::Memory>> GpuDirect::registerMemory(transport::Device& device,
                                                                     const memory::DeviceMemory& memory) const {
  KOLO_TRY(whyNotAtAll(device));
  std::string why;
  if (mayBe("dmabuf")) {
    Result<std::unique_ptr<transport::Memory>> registered = registerDmaBuf(device, memory);
    if (registered.ok()) return registered;
    why = registered.status().message();
  }
  if (mayBe("peermem")) {
    Result<std::unique_ptr<transport::Memory>> registered =
        abilities_.value().peerMemory
            ? device.registerMemory(
                  {sizeof(koloTransportMemory), memory.as<void>(), memory.bytes(), -1, 0, koloMemoryCuda})
            : Result<std::unique_ptr<transport::Memory>>(
                  error(koloUnsupported, "device {} does not support peer memory", memory.device()));
    if (registered.ok()) {
      if (!why.empty())
        log::info("transport {} has memory of device {} by peer memory: {}", device.name(), memory.device(), why);
      return registered;
    }
    why += (why.empty() ? "" : "; ") + registered.status().message();
  }
  return error(koloUnsupported, "{}", why);
}

Result<Mirror> GpuDirect::makeMirror(transport::Device& device, std::uint64_t bytes) const {
  KOLO_TRY(whyNotAtAll(device));
  KOLO_ASSIGN(memory::DeviceMemory created, memory::DeviceMemory::create(arena_->device(), bytes, true));
  KOLO_TRY(clear_(created));
  auto memory = std::make_shared<memory::DeviceMemory>(std::move(created));
  Mirror mirror{.owner = memory, .data = memory->as(), .isOnDevice = true, .registration = nullptr};
  KOLO_ASSIGN(mirror.registration, registerMemory(device, *memory));
  return mirror;
}

}  // namespace kolo::links
