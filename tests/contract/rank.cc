#include "rank.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#if KOLO_HAVE_CUDA
#include "drivers/cuda/driver.h"
#include "mock_cuda/device_memory.h"
#include "mock_cuda/mock_cuda.h"
#endif

namespace kolo::contract {
namespace {

constexpr std::size_t kPayload = 64;  // bytes from the counter: another cache line

std::atomic_ref<std::uint64_t> word(unsigned char* at) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(at));
}

void post(unsigned char* peers, std::uint64_t round) {
  const std::uint64_t payload = round * 3;
  std::memcpy(peers + kPayload, &payload, sizeof payload);
  word(peers).store(round, std::memory_order_release);  // [ping]: publishes the payload
}

bool await(unsigned char* own, std::uint64_t round) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (word(own).load(std::memory_order_acquire) < round) {  // [ping]: the payload is visible with its counter
    if (std::chrono::steady_clock::now() > deadline) return false;
    sched_yield();
  }
  std::uint64_t payload = 0;
  std::memcpy(&payload, own + kPayload, sizeof payload);
  return payload == round * 3;
}

// A transport asks by a plain function; here for the options of the device that this thread is opening.
thread_local const char* ownSettings = "";
thread_local const char* (*otherSettings)(const char*) = nullptr;

const char* settingOf(const char* name) {
  static thread_local std::string value;
  const std::string all = std::string(" ") + ownSettings + " ", wanted = std::string(" ") + name + "=";
  const std::size_t at = all.find(wanted);
  if (at == std::string::npos) return otherSettings(name);
  const std::size_t begin = at + wanted.size();
  value = all.substr(begin, all.find(' ', begin) - begin);
  return value.c_str();
}

unsigned char* allocateFromPool([[maybe_unused]] std::size_t bytes) {
#if KOLO_HAVE_CUDA
  return reinterpret_cast<unsigned char*>(test::MockCuda::poolMemory(0, bytes));
#else
  return nullptr;
#endif
}

}  // namespace

void Rank::PoolDeleter::operator()([[maybe_unused]] unsigned char* memory) const {
#if KOLO_HAVE_CUDA
  const test::CurrentDevice current(0);
  drivers::cuda().value()->cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
#endif
}

Status Rank::open(const std::string& transport, const HostOptions& options) {
  KOLO_ASSIGN(const std::vector<transport::Entry> entries, transport::list(transport));
  koloTransportHost host = transport::thisProcess();
  if (options.otherMachine) host.hostId[0] ^= 1;
  if (options.otherProcess) host.processId[0] ^= 1;
  std::memset(host.communicator, options.secret, sizeof host.communicator);
  host.rank = options.rank;
  host.ranks = options.ranks;
  host.timeoutMs = options.timeoutMs;
  host.nearNics = options.nearNics;
  ownSettings = options.settings;
  otherSettings = host.setting;
  host.setting = settingOf;
  kind_ = transport::memoryKindOf(*entries.front().table);
  KOLO_ASSIGN(device_, transport::Device::open(entries.front().table, host));
  return {};
}

void Rank::close() {
  links_.clear();
  memories_.clear();
  device_.reset();
}

Result<std::size_t> Rank::registerMemory(std::size_t bytes, std::size_t offset, Backing backing) {
  Owned owned;
  koloTransportMemory range{};
  range.size = sizeof range;
  range.bytes = bytes;
  range.kind = kind_;
  range.fd = -1;
  owned.offset = offset;
  owned.bytes = bytes;
  if (kind_ == koloMemoryHost) {
    KOLO_ASSIGN(owned.file, memory::SharedMemory::create(offset + bytes, "contract"));
    if (backing == Backing::kFile) {
      range.fd = owned.file.fd();
      range.fdOffset = offset;
    }
  } else if (backing == Backing::kFile) {
    KOLO_ASSIGN(owned.onDevice, memory::DeviceMemory::create(0, offset + bytes, true));
  } else {
    owned.ofPool.reset(allocateFromPool(offset + bytes));
  }
  range.address = owned.begin();
  if (kind_ != koloMemoryHost) std::memset(owned.begin(), 0, bytes);  // the mock's memory can be written by the host
  KOLO_ASSIGN(owned.registered, device_->registerMemory(range));
  memories_.push_back(std::move(owned));
  return memories_.size() - 1;
}

Result<std::size_t> Rank::openLink(const koloTransportBlob& address, const koloTransportBlob& descriptor) {
  KOLO_ASSIGN(std::unique_ptr<transport::Link> link, device_->openLink(address, descriptor, 0));
  links_.push_back(std::move(link));
  return links_.size() - 1;
}

Status Rank::put(std::size_t link, const PutOptions& options) const {
  koloTransportPut put{};
  put.size = sizeof put;
  put.rail = options.rail;
  put.from = memories_[options.memory].begin() + options.from;
  put.bytes = options.bytes;
  put.memory =
      memories_[options.memory].registered != nullptr ? memories_[options.memory].registered->handle() : nullptr;
  put.key = options.hasKey ? &options.key : nullptr;
  put.to = options.to;
  put.signalTo = options.signalTo;
  put.signal = options.signal;
  put.more = options.more;
  return links_[link]->put(put);
}

bool sendPings(unsigned char* own, unsigned char* peers, std::uint64_t rounds) {
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    post(peers, round);
    if (!await(own, round)) return false;
  }
  return true;
}

bool answerPings(unsigned char* own, unsigned char* peers, std::uint64_t rounds) {
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (!await(own, round)) return false;
    post(peers, round);
  }
  return true;
}

std::size_t openFiles() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::size_t sharedMappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != std::string::npos;
  return count;
}

}  // namespace kolo::contract
