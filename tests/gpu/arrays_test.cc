// Arrays whose shape travels with the data, on GPUs: broadcasts and scatters.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "gpu/support.h"

namespace kolo::test {
namespace {

// What an allocate function is asked for, and what it gives.
struct Asked {
  std::unique_ptr<DeviceBuffer> buffer;
  std::vector<std::size_t> shape;
  koloDataType_t datatype = koloInt8;
  bool hasNone = false;
  void* elsewhere = nullptr;  // given instead
};

void* allocate(void* context, koloDataType_t datatype, int ndim, const std::size_t* shape) {
  Asked& asked = *static_cast<Asked*>(context);
  asked.datatype = datatype;
  asked.shape.assign(shape, shape + ndim);
  if (asked.hasNone || asked.elsewhere != nullptr) return asked.elsewhere;
  const std::size_t count = std::accumulate(shape, shape + ndim, std::size_t{1}, std::multiplies<>());
  asked.buffer = std::make_unique<DeviceBuffer>(std::max<std::size_t>(count, 1));
  return asked.buffer->data();
}

std::vector<int> numbersFrom(int first, std::size_t count) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

}  // namespace

TEST_CASE("S4.6 an array is broadcast and scattered into memory of GPUs that receivers allocate", "[device][arrays]") {
  const int n = GENERATE(1, 3);
  const DeviceScene scene(mockFor(n));
  Ranks ranks(oneDevice(n));
  ranks.run([&](Self& self) {
    const int root = n - 1;
    const bool isRoot = self.rank == root;
    const std::size_t shape[] = {6, 50};
    const koloArray_t array{2, shape, nullptr};
    const DeviceBuffer data(300);
    const CudaStream stream;
    data->write(numbersFrom(isRoot ? 7 : 0, 300));
    ranks.together();
    for (int turn = 0; turn < 2; ++turn) {
      Asked asked, part;
      EXPECT_OK(self,
                koloBroadcastArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloInt32,
                                   isRoot && turn == 0 ? nullptr : allocate, &asked, root, self.comm, stream.get()));
      EXPECT_OK(self, koloScatterArray(isRoot ? data.data() : nullptr, isRoot ? &array : nullptr, koloInt32, allocate,
                                       &part, root, self.comm, stream.get()));
      stream.synchronize();
      if (!isRoot || turn == 1) {
        EXPECT(self, asked.datatype == koloInt32);
        EXPECT(self, asked.shape == std::vector<std::size_t>({6, 50}));
        EXPECT(self, (*asked.buffer)->read() == numbersFrom(7, 300));
      }
      const std::size_t each = 300 / static_cast<std::size_t>(n);
      EXPECT(self, part.shape == std::vector<std::size_t>({6 / static_cast<std::size_t>(n), 50}));
      EXPECT(self, (*part.buffer)->read() == numbersFrom(7 + self.rank * static_cast<int>(each), each));
    }
  });
}

TEST_CASE("S4.6 an array for which a rank of a GPU has no memory is an error on all, and calls go on",
          "[device][arrays]") {
  const DeviceScene scene(mockFor(2));
  Ranks ranks(oneDevice(2));
  ranks.run([&](Self& self) {
    const std::size_t length = 10;
    const koloArray_t array{1, &length, nullptr};
    const DeviceBuffer data(10);
    const CudaStream stream;
    data->write(numbersFrom(3, 10));
    int host[10] = {};
    ranks.together();
    const auto call = [&](Asked& asked) {
      return koloBroadcastArray(data.data(), &array, koloInt32, self.rank == 0 ? nullptr : allocate, &asked, 0,
                                self.comm, stream.get());
    };
    Asked none{.hasNone = true};
    EXPECT_CODE(self, self.rank == 1 ? koloOutOfMemory : koloRemoteError, call(none));
    Asked ofHost{.elsewhere = host};
    EXPECT_CODE(self, self.rank == 1 ? koloInvalidPointer : koloRemoteError, call(ofHost));
    // The root's own fault.
    EXPECT_CODE(self, koloInvalidPointer,
                koloScatterArray(host, &array, koloInt32, allocate, &none, 0, self.comm, stream.get()));
    Asked asked;
    EXPECT_OK(self, call(asked));
    stream.synchronize();
    if (self.rank == 1) EXPECT(self, (*asked.buffer)->read() == numbersFrom(3, 10));
    EXPECT_CODE(self, koloUnsupported,
                koloSendArray(data.data(), &array, koloInt32, 1 - self.rank, self.comm, stream.get()));
  });
}

}  // namespace kolo::test
