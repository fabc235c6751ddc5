#include "gpu/support.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "support/deadline.h"

namespace kolo::test {

bool hasRealDevice() { return std::getenv("KOLO_TEST_GPU") != nullptr; }

int testDevice() { return hasRealDevice() ? std::atoi(std::getenv("KOLO_TEST_GPU")) : 0; }

std::vector<int> oneDevice(int ranks) { return std::vector<int>(static_cast<std::size_t>(ranks), testDevice()); }

const drivers::CudaDriver& driver() { return *drivers::cuda().value(); }

void mustSucceed(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s\n", drivers::cudaError(driver(), result, what).message().c_str());
  std::abort();
}

MockScene::~MockScene() { CHECK(MockCuda::remove() == ""); }

DeviceScene::DeviceScene(const MockCuda& mock)
    : mocked_(hasRealDevice() ? nullptr : std::make_unique<MockScene>(mock)) {}

void DeviceInts::write(const std::vector<int>& values, std::size_t at) const {
  if (values.empty()) return;
  upload(device_, reinterpret_cast<unsigned char*>(data_ + at), reinterpret_cast<const unsigned char*>(values.data()),
         values.size() * sizeof(int));
}

std::vector<int> DeviceInts::read(std::size_t at, std::size_t count) const {
  std::vector<int> values(count);
  if (count == 0) return values;
  download(device_, reinterpret_cast<unsigned char*>(values.data()), reinterpret_cast<const unsigned char*>(data_ + at),
           count * sizeof(int));
  return values;
}

CudaStream::CudaStream(int device, unsigned flags) : device_(device) {
  const CurrentDevice current(device);
  CUDA_OK(driver().cuStreamCreate(&stream_, flags));
}

void CudaStream::synchronize() const {
  const CurrentDevice current(device_);
  CUDA_OK(driver().cuStreamSynchronize(stream_));
}

void CudaStream::destroy() {
  if (stream_ == nullptr) return;
  const CurrentDevice current(device_);
  CUDA_OK(driver().cuStreamDestroy(stream_));
  stream_ = nullptr;
}

Graph::Graph(const CudaStream& stream, const std::function<void()>& body, CUstreamCaptureMode mode) {
  // What one thread does to make a graph, another one's capture may forbid, if it is `global`.
  static auto* const mutex = new std::mutex;
  std::unique_lock lock(*mutex, std::defer_lock);
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) lock.lock();
  const CurrentDevice current(testDevice());
  CUDA_OK(cudaForTests().cuStreamBeginCapture(stream.raw(), mode));
  body();
  CUDA_OK(cudaForTests().cuStreamEndCapture(stream.raw(), &graph_));
  CUDA_OK(cudaForTests().cuGraphInstantiate(&executable_, graph_, 0));
}

Graph::~Graph() {
  const CurrentDevice current(testDevice());
  CUDA_OK(cudaForTests().cuGraphExecDestroy(executable_));
  CUDA_OK(cudaForTests().cuGraphDestroy(graph_));
}

void Graph::launch(const CudaStream& stream) const {
  const CurrentDevice current(testDevice());
  CUDA_OK(cudaForTests().cuGraphLaunch(executable_, stream.raw()));
}

Ranks::Ranks(const std::vector<int>& devices, const RanksOptions& options)
    : comms(devices.size()), results(devices.size()), messages(devices.size()),
      barrier_(static_cast<std::ptrdiff_t>(devices.size())) {
  koloUniqueId id;
  REQUIRE_OK(koloGetUniqueId(&id));
  each([&](std::size_t rank) {
    koloConfig_t config = KOLO_CONFIG_INITIALIZER;
    config.device = devices[rank];
    config.timeoutMs = static_cast<int>(within(std::chrono::milliseconds(options.timeoutMs), 0.8).count());
    config.transports = options.transportsOf.empty() ? options.transports : options.transportsOf[rank];
    config.resident = options.resident;
    results[rank] = koloCommInitRankConfig(&comms[rank], size(), id, static_cast<int>(rank), &config);
    if (results[rank] != koloSuccess) messages[rank] = koloGetLastError(nullptr);
  });
  for (std::size_t rank = 0; rank < devices.size() && !options.mayFail; ++rank) {
    INFO("rank " << rank << ": " << messages[rank]);
    REQUIRE(results[rank] == koloSuccess);
  }
}

Ranks::~Ranks() {
  each([&](std::size_t rank) {
    if (comms[rank] != nullptr) (void)koloCommDestroy(comms[rank]);
  });
}

void Ranks::each(const std::function<void(std::size_t)>& body) const {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < comms.size(); ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

koloResult_t errorHeard(koloComm_t comm) {
  koloResult_t result = koloSuccess;
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (koloCommGetAsyncError(comm, &result) == koloSuccess && result == koloSuccess &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return result;
}

std::string writtenBy(const std::function<void()>& body) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  const int before = ::dup(STDERR_FILENO);
  REQUIRE(file != nullptr);
  REQUIRE(::dup2(::fileno(file.get()), STDERR_FILENO) >= 0);
  {
    const std::shared_ptr<void> restore(nullptr, [before](void*) {
      (void)::dup2(before, STDERR_FILENO);
      ::close(before);
    });
    body();
  }
  std::string text(static_cast<std::size_t>(::lseek(::fileno(file.get()), 0, SEEK_END)), '\0');
  REQUIRE(::pread(::fileno(file.get()), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return text;
}

bool endsSoon(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::steady_clock::now() - begin < kSoon;
}

}  // namespace kolo::test
