#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "memory/device_memory.h"

namespace kolo::memory {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMostNameBytes = 200;  // memfd_create takes up to 249

std::size_t pageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t wholePages(std::size_t bytes) { return (bytes + pageBytes() - 1) / pageBytes() * pageBytes(); }

// ftruncate past RLIMIT_FSIZE would kill the process by SIGXFSZ.
Status checkFileSize(std::size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    return error(koloOutOfMemory,
                 "{} bytes of shared memory are more than the file size limit of {} bytes (ulimit -f) allows", bytes,
                 static_cast<std::uint64_t>(limit.rlim_cur));
  }
  return {};
}

// A memfd is not counted until its pages are touched, when it is too late for an error: so this is looked at first.
Status checkFits(std::size_t bytes) {
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    const auto total = (static_cast<unsigned __int128>(info.totalram) + info.totalswap) * info.mem_unit;
    if (bytes > total) {
      return error(koloOutOfMemory,
                   "{} bytes of shared memory are more than this machine's {} bytes of memory and swap", bytes,
                   static_cast<std::uint64_t>(total));
    }
  }
  return {};
}

Status outOfMemory(int errnum, std::size_t bytes, const char* call) {
  const Status status = systemError(errnum, fmt::format("{} for {} bytes of shared memory", call, bytes));
  const bool full = errnum == ENOMEM || errnum == ENOSPC || errnum == EFBIG || errnum == EINVAL;
  return {full ? koloOutOfMemory : koloSystemError, status.message()};
}

// The blocks of allocate() and allocateOn(), of one kind or the other, by address. Never destroyed: threads may still
// look things up during exit.
struct Block {
  SharedMemory memory;
  DeviceMemory onDevice;
  int holds = 0;

  std::uint64_t bytes() const { return memory.data() != nullptr ? memory.bytes() : onDevice.bytes(); }
};
struct Blocks {
  std::shared_mutex mutex;
  std::map<std::uintptr_t, Block> byAddress;

  // The block in which an address lies, or the end. REQUIRES: the lock.
  std::map<std::uintptr_t, Block>::iterator around(std::uintptr_t address) {
    auto after = byAddress.upper_bound(address);
    if (after == byAddress.begin()) return byAddress.end();
    --after;
    return address - after->first < after->second.bytes() ? after : byAddress.end();
  }
};

Blocks& blocks() {
  static auto* const instance = new Blocks;
  return *instance;
}

}  // namespace

Result<SharedMemory> SharedMemory::create(std::size_t bytes, const char* name, std::size_t spare) {
  if (bytes == 0) return SharedMemory();
  if (bytes > PTRDIFF_MAX - pageBytes() - spare) {
    return error(koloOutOfMemory, "{} bytes of shared memory are more than an address space holds", bytes);
  }
  const std::size_t all = wholePages(bytes + spare);
  KOLO_TRY(checkFileSize(all));
  KOLO_TRY(checkFits(wholePages(bytes)));
  SharedMemory memory;
  memory.fd_ = clearOfStandard(
      memfd_create(std::string(name).substr(0, kMostNameBytes).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.fd_ < 0) return outOfMemory(errno, all, "memfd_create");
  if (ftruncate(memory.fd_, static_cast<off_t>(all)) != 0) return outOfMemory(errno, all, "ftruncate");
  // Those who are given the file refuse one that may shrink under them (transports/handover/importer.h). A system
  // without seals goes by other transports.
  (void)fcntl(memory.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* const mapped = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd_, 0);
  if (mapped == MAP_FAILED) return outOfMemory(errno, all, "mmap");
  memory.data_ = static_cast<unsigned char*>(mapped);
  memory.bytes_ = all;
  // Only a hint: systems that give shared memory no huge pages refuse it, and nothing changes.
  if (bytes >= kHugePage) (void)madvise(memory.data_, wholePages(bytes), MADV_HUGEPAGE);
  // To write a core dump the kernel would take memory for all that was never touched.
  if (spare != 0) (void)madvise(memory.data_, memory.bytes_, MADV_DONTDUMP);
  return memory;
}

bool SharedMemory::discard(std::size_t offset, std::size_t bytes) const {
  const std::size_t begin = wholePages(offset), end = (offset + bytes) / pageBytes() * pageBytes();
  const bool isDone = begin >= end || madvise(data_ + begin, end - begin, MADV_REMOVE) == 0;
  return isDone && begin == offset && end == offset + bytes;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  SharedMemory old(std::move(other));
  std::swap(data_, old.data_);
  std::swap(bytes_, old.bytes_);
  std::swap(fd_, old.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
}

Result<PrivateMemory> PrivateMemory::create(std::size_t bytes) {
  PrivateMemory memory;
  if (bytes == 0) return memory;
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return outOfMemory(errno, bytes, "mmap");
  memory.data_ = static_cast<unsigned char*>(mapped);
  memory.bytes_ = bytes;
  return memory;
}

PrivateMemory::PrivateMemory(PrivateMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PrivateMemory& PrivateMemory::operator=(PrivateMemory&& other) noexcept {
  PrivateMemory old(std::move(other));
  std::swap(data_, old.data_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

PrivateMemory::~PrivateMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<void*> allocate(std::size_t bytes) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  KOLO_ASSIGN(SharedMemory memory, SharedMemory::create(bytes, "kolo"));
  void* const pointer = memory.data();
  const std::unique_lock lock(blocks().mutex);
  blocks().byAddress[reinterpret_cast<std::uintptr_t>(pointer)].memory = std::move(memory);
  return pointer;
}

Result<void*> allocateOn(int device, std::size_t bytes) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  KOLO_ASSIGN(DeviceMemory memory, DeviceMemory::create(device, bytes, true));
  void* const pointer = memory.as<void>();
  const std::unique_lock lock(blocks().mutex);
  blocks().byAddress[reinterpret_cast<std::uintptr_t>(pointer)].onDevice = std::move(memory);
  return pointer;
}

Status release(void* pointer) {
  if (pointer == nullptr) return {};
  Block freed;  // unmapped after the lock is gone: unmapping gigabytes takes a while
  const std::unique_lock lock(blocks().mutex);
  const auto at = blocks().byAddress.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (at == blocks().byAddress.end()) {
    return error(koloInvalidPointer, "{} was not returned by koloMemAlloc, or was freed before", fmt::ptr(pointer));
  }
  if (at->second.holds != 0) {
    return error(koloInvalidUsage,
                 "{} windows lie over this memory; expected koloWindowDeregister, or the end of their "
                 "communicator, before",
                 at->second.holds);
  }
  freed = std::move(at->second);
  blocks().byAddress.erase(at);
  return freed.onDevice.synchronize();  // as cudaFree does: kernels may still use it
}

std::optional<Backing> findBacking(const void* pointer, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const std::shared_lock lock(blocks().mutex);
  const auto block = blocks().around(address);
  if (block == blocks().byAddress.end()) return std::nullopt;
  const SharedMemory& memory = block->second.memory;
  if (memory.data() == nullptr) return std::nullopt;
  const std::uintptr_t offset = address - block->first;
  if (bytes > memory.bytes() - offset) return std::nullopt;
  return Backing{memory.fd(), offset};
}

Hold::Hold(const void* address) {
  const std::unique_lock lock(blocks().mutex);
  const auto block = blocks().around(reinterpret_cast<std::uintptr_t>(address));
  if (block == blocks().byAddress.end()) return;
  block_ = block->first;
  ++block->second.holds;
}

Hold::~Hold() {
  if (block_ == 0) return;
  const std::unique_lock lock(blocks().mutex);
  --blocks().byAddress.at(block_).holds;  // there, because it is held
}

}  // namespace kolo::memory
