// Operations that follow each other in a stream and are given to the resident kernel, as a program may ask for
// (resident = 2).
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gpu/support.h"

namespace kolo::test {
namespace {

constexpr MockCuda kRoomy{.multiprocessors = 12, .blockThreads = 2};  // for two ranks and their resident kernels

}  // namespace

TEST_CASE("a resident kernel takes operations that follow each other in a stream, if the program lets it", "[mock]") {
  const std::vector<std::pair<const char*, std::string>> settings = {{"KOLO_RESIDENT_IDLE_US", "1000000"}};
  const SettingsScope longest(settings);
  const MockScene scene(kRoomy);
  Ranks ranks(oneDevice(2), {.resident = 2});
  const DeviceBuffer values(2);
  const CudaStream streams[2];
  values->fill(1);
  const std::uint64_t before = MockCuda::launches();
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < 2; ++rank) {
      int* const value = values.data() + rank;
      REQUIRE_OK(koloAllReduce(value, value, 1, koloInt32, koloSum, ranks[rank], streams[rank].get()));
    }
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  CHECK(values->read() == std::vector<int>{1 << 20, 1 << 20});
  CHECK(MockCuda::launches() - before == 2);  // of 40 operations: each rank's resident kernel
}

TEST_CASE("a resident kernel's operation comes after what stands before it in its stream, and before what comes later",
          "[device]") {
  const DeviceScene scene(kRoomy);
  Ranks ranks(oneDevice(2), {.resident = 2});
  const DeviceBuffer value(2), other(1), copies(2), gate(2);
  const CudaStream stream, otherStream, opener;
  const auto at = [](const DeviceBuffer& buffer, std::size_t place = 0) {
    return reinterpret_cast<CUdeviceptr>(buffer.data() + place);
  };
  const auto call = [&](int rank) {
    const DeviceBuffer& buffer = rank == 0 ? value : other;
    REQUIRE_OK(koloAllReduce(buffer.data(), buffer.data(), 1, koloInt32, koloSum, ranks[rank],
                             (rank == 0 ? stream : otherStream).get()));
  };
  gate->fill(0);
  value->write(1);
  other->write(1);
  const CurrentDevice current(testDevice());
  for (int rank = 0; rank < 2; ++rank) call(rank);
  CUDA_OK(driver().cuStreamWaitValue64(stream.raw(), at(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUDA_OK(driver().cuMemcpyDtoDAsync(at(copies), at(value), sizeof(int), stream.raw()));
  CUDA_OK(driver().cuMemsetD8Async(at(value), 1, sizeof(int), stream.raw()));
  for (int rank = 0; rank < 2; ++rank) call(rank);
  CUDA_OK(driver().cuMemcpyDtoDAsync(at(copies, 1), at(value), sizeof(int), stream.raw()));
  CUDA_OK(driver().cuMemsetD8Async(at(value), 0, sizeof(int), stream.raw()));
  CUDA_OK(driver().cuStreamWriteValue64(opener.raw(), at(gate), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  stream.synchronize();
  otherStream.synchronize();
  CHECK(copies->read() == std::vector<int>{2, 0x01010101 + 2});
  CHECK(value->read(0) == 0);
  CHECK(other->read(0) == 0x01010101 + 2);
}

}  // namespace kolo::test
