#include "mock_cuda/cuda_for_tests.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "mock_cuda/world.h"

namespace kolo::test {
namespace {

#define KOLO_TEXT_(name) #name
#define KOLO_TEXT(name) KOLO_TEXT_(name)  // of what cuda.h makes of the name

CudaForTests load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  CudaForTests table;
  const char* missing = library == nullptr ? "libcuda.so.1" : nullptr;
#define KOLO_CUDA_LOAD(name)                                                                                    \
  if (library != nullptr) table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, KOLO_TEXT(name))); \
  if (table.name == nullptr && missing == nullptr) missing = KOLO_TEXT(name);
  KOLO_CUDA_TEST_FUNCTIONS(KOLO_CUDA_LOAD)
#undef KOLO_CUDA_LOAD
  if (missing == nullptr) return table;
  std::fprintf(stderr, "the tests lack %s\n", missing);
  std::abort();
}

}  // namespace

const CudaForTests& cudaForTests() {
  if (mock::world != nullptr) return mock::mockedForTests();
  static const CudaForTests table = load();
  return table;
}

}  // namespace kolo::test
