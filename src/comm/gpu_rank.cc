#include "comm/gpu_rank.h"

#if KOLO_HAVE_CUDA

#include <algorithm>

#include "comm/blob.h"
#include "comm/windows.h"
#include "executor/cuda/engine.h"
#include "transport/registry.h"

namespace kolo::comm {
namespace {

namespace cuda = executor::cuda;

constexpr int kMostChannels = 32;

// What a rank tells the others before anything is made.
struct Hello {
  unsigned char processId[16];
  int device;
  int residentBlocks;
};

class CudaRank final : public GpuRank {
 public:
  static Result<std::unique_ptr<GpuRank>> connect(Membership& membership, int device) {
    Result<std::shared_ptr<cuda::Gpu>> gpu = cuda::Gpu::open(device);
    KOLO_TRY(membership.agree(gpu.status()));
    Hello hello{};
    std::copy_n(transport::identity().processId, sizeof hello.processId, hello.processId);
    hello.device = device;
    hello.residentBlocks = gpu.value()->residentBlocks();
    BlobWriter writer;
    writer.put(hello);
    KOLO_ASSIGN(const std::vector<std::string> blobs, membership.allGather(writer.text()));
    std::vector<Hello> all;
    for (const std::string& blob : blobs) all.push_back(BlobReader(blob).get<Hello>());
    KOLO_TRY(checkOneProcess(all, membership.rank));

    auto rank = std::unique_ptr<CudaRank>(new CudaRank);
    KOLO_TRY(membership.agree(rank->reachAll(*gpu.value(), all)));
    KOLO_ASSIGN(const int channels, channelsFor(all));
    cuda::Engine::Setup setup{.device = device, .rank = membership.rank, .ranks = membership.ranks(), .channels = channels,
                              .windows = Windows::kMost, .sharesDevice = sharing(all, device) > 1};
    Result<std::unique_ptr<cuda::Engine>> engine = cuda::Engine::create(gpu.value(), setup);
    KOLO_TRY(membership.agree(engine.status()));
    rank->engine_ = engine.take();
    rank->gpu_ = gpu.take();
    rank->channels_ = channels;

    // Nobody goes on, or back, before all have taken hold of all arenas: agree() sees to that.
    BlobWriter mine;
    mine.put(&rank->engine_->arena());
    KOLO_ASSIGN(const std::vector<std::string> places, membership.allGather(mine.text()));
    std::vector<std::shared_ptr<cuda::DeviceMemory>> arenas;
    for (const std::string& blob : places) {
      arenas.push_back(*BlobReader(blob).get<const std::shared_ptr<cuda::DeviceMemory>*>());
    }
    KOLO_TRY(membership.agree(rank->engine_->connect(std::move(arenas))));
    return std::unique_ptr<GpuRank>(std::move(rank));
  }

  int channels() const override { return channels_; }
  std::uint32_t slotBytes() const override { return engine_->layout().slotBytes; }
  Status setWindow(int rank, std::uint32_t index, unsigned char* begin) override { return engine_->setWindow(rank, index, begin); }
  Status reserveScratch(std::uint64_t bytes) override { return engine_->reserveScratch(bytes); }

  Status checkBuffer(const char* name, const void* buffer, std::uint64_t bytes) const override {
    if (bytes == 0 || buffer == nullptr) return {};
    unsigned type = 0;
    int ordinal = -1;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* data[] = {&type, &ordinal};
    const cuda::Gpu::Current current(*gpu_);
    KOLO_CUDA(gpu_->driver(), cuPointerGetAttributes, (2, which, data, reinterpret_cast<CUdeviceptr>(buffer)));
    if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) {
      return error(koloInvalidPointer, "{} is {}, host memory: expected memory of device {}, which this communicator uses", name,
                   fmt::ptr(buffer), gpu_->ordinal());
    }
    if (type == CU_MEMORYTYPE_DEVICE && ordinal != gpu_->ordinal()) {
      return error(koloInvalidPointer, "{} is {}, memory of device {}: expected memory of device {}, which this communicator uses",
                   name, fmt::ptr(buffer), ordinal, gpu_->ordinal());
    }
    return {};
  }

  Status enqueue(std::span<device::Work> works, int timeoutMs, void* stream) override {
    return engine_->enqueue(works, static_cast<std::uint64_t>(timeoutMs) * 1'000'000u, static_cast<CUstream>(stream));
  }
  std::optional<device::Fault> fault() const override { return engine_->fault(); }
  void stop() override { engine_->stop(); }
  Status drain() override { return engine_->drain(); }

 private:
  CudaRank() = default;

  static Status checkOneProcess(const std::vector<Hello>& all, int rank) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (std::equal(std::begin(all[i].processId), std::end(all[i].processId), std::begin(all[0].processId))) continue;
      return error(koloUnsupported, "rank {} of a GPU communicator: ranks 0 and {} are different processes; in this version the ranks "
                   "of a GPU communicator are threads of one process", rank, i);
    }
    return {};
  }

  static int sharing(const std::vector<Hello>& all, int device) {
    return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Hello& one) { return one.device == device; }));
  }

  Status reachAll(const cuda::Gpu& gpu, const std::vector<Hello>& all) {
    for (const Hello& one : all) {
      KOLO_ASSIGN(std::shared_ptr<cuda::Gpu> peer, cuda::Gpu::open(one.device));
      KOLO_TRY(gpu.reach(*peer));
      peers_.push_back(std::move(peer));
    }
    return {};
  }

  // Blocks of all ranks on a device must be resident together, or they would wait for each other for ever.
  static Result<int> channelsFor(const std::vector<Hello>& all) {
    int channels = kMostChannels;
    for (const Hello& one : all) {
      channels = std::min(channels, one.residentBlocks / sharing(all, one.device));
      if (channels == 0) {
        return error(koloUnsupported, "device {} holds {} blocks at once, too few for the {} ranks that share it", one.device,
                     one.residentBlocks, sharing(all, one.device));
      }
    }
    return channels;
  }

  std::shared_ptr<cuda::Gpu> gpu_;
  std::vector<std::shared_ptr<cuda::Gpu>> peers_;   // their contexts stay while this one reaches into them
  std::unique_ptr<cuda::Engine> engine_;
  int channels_ = 1;
};

}  // namespace

Result<std::unique_ptr<GpuRank>> GpuRank::connect(Membership& membership, int device) {
  return CudaRank::connect(membership, device);
}

}  // namespace kolo::comm

#else

namespace kolo::comm {

Result<std::unique_ptr<GpuRank>> GpuRank::connect(Membership&, int device) {
  return error(koloUnsupported, "device is {}: this library was built without CUDA; expected -1, host memory", device);
}

}  // namespace kolo::comm

#endif
