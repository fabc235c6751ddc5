// A GPU's memory for the tests, by the driver's library that KOLO_TEST_LIBCUDA names (one_gpu.cc). Programs load it
// when they run, as those do that are linked with the CUDA runtime.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>

#include "buffers.h"

namespace kolo::test {

class Gpu {
 public:
  // nullptr: the test uses none.
  static const Gpu* get() {
    static const char* const file = std::getenv("KOLO_TEST_LIBCUDA");
    static const Gpu* const made = file != nullptr ? new Gpu(file) : nullptr;
    return made;
  }

  unsigned char* allocate(std::size_t bytes) const {
    unsigned long long pointer = 0;
    check(allocate_(&pointer, bytes));
    return reinterpret_cast<unsigned char*>(pointer);
  }
  void free(unsigned char* memory) const { check(free_(addressOf(memory))); }
  void upload(unsigned char* to, const void* from, std::size_t bytes) const {
    inContext([&] { check(toDevice_(addressOf(to), from, bytes)); });
  }
  void download(void* to, const unsigned char* from, std::size_t bytes) const {
    inContext([&] { check(toHost_(to, addressOf(from), bytes)); });
  }

 private:
  explicit Gpu(const char* file) {
    void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](const char* name, auto& function) {
      function =
          library != nullptr ? reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name)) : nullptr;
      check(function == nullptr);
    };
    find("cuMemAlloc_v2", allocate_);
    find("cuMemFree_v2", free_);
    find("cuMemcpyHtoD_v2", toDevice_);
    find("cuMemcpyDtoH_v2", toHost_);
    find("cuDevicePrimaryCtxRetain", retain_);
    find("cuCtxPushCurrent_v2", push_);
    find("cuCtxPopCurrent_v2", pop_);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // a real one takes longer than that to begin
  }

  static unsigned long long addressOf(const unsigned char* memory) {
    return reinterpret_cast<unsigned long long>(memory);
  }
  static void check(int result) {
    if (result == 0) return;
    std::fprintf(stderr, "the test's CUDA driver failed: %d\n", result);
    std::abort();
  }
  // For so long only: otherwise no thread has a context.
  template <class Action>
  void inContext(const Action& action) const {
    void* context = nullptr;
    check(retain_(&context, 0));
    check(push_(context));
    action();
    check(pop_(&context));
  }

  int (*allocate_)(unsigned long long*, std::size_t) = nullptr;
  int (*free_)(unsigned long long) = nullptr;
  int (*toDevice_)(unsigned long long, const void*, std::size_t) = nullptr;
  int (*toHost_)(void*, unsigned long long, std::size_t) = nullptr;
  int (*retain_)(void**, int) = nullptr;
  int (*push_)(void*) = nullptr;
  int (*pop_)(void**) = nullptr;
};

// A buffer as a call gets it: as it is, or, if the test uses a GPU, mostly a copy in that one's memory.
class Placed {
 public:
  Placed(Buffer& buffer, Random& random) : buffer_(&buffer) {
    const Gpu* const gpu = Gpu::get();
    if (gpu == nullptr || random() % 4 == 0) return;
    device_ = {gpu->allocate(buffer.all().size()), [gpu](unsigned char* memory) { gpu->free(memory); }};
    gpu->upload(device_.get(), buffer.all().data(), buffer.all().size());
  }
  unsigned char* data() const {
    return device_ ? device_.get() + (buffer_->data() - buffer_->all().data()) : buffer_->data();
  }
  // What the call left.
  void fetch() const {
    if (device_) Gpu::get()->download(buffer_->all().data(), device_.get(), buffer_->all().size());
  }

 private:
  Buffer* buffer_;
  std::shared_ptr<unsigned char> device_;
};

}  // namespace kolo::test
