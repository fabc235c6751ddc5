// Memory of a CUDA device for tests, through the driver in use: a real one or the mock.
#pragma once

#include <cstddef>

namespace kolo::test {

class DeviceMemory {
 public:
  DeviceMemory(int device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;

  unsigned char* data() const { return data_; }

 private:
  int device_;
  unsigned char* data_ = nullptr;
};

// While one of these lives, memory of DeviceMemory objects that go stays; it is freed when the last has gone. Ranks
// that are threads need that: freeing may wait for the device and let no other thread call the driver, and the device
// for what another rank launches next.
class FreeingLater {
 public:
  FreeingLater();
  ~FreeingLater();
  FreeingLater(const FreeingLater&) = delete;
};

// Makes the device's primary context the thread's, for a scope. The process holds the context from its first use on:
// the driver resets a primary context, with all memory and streams in it, when its last holder releases it.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
};

// Holds a device's context from now on, if the driver gives it.
void holdContext(int device);
// Gives back the contexts that the process holds; before a mock goes. REQUIRES: nobody uses them.
void releaseContexts();

// Between the host and any memory of the device; return when it is done.
void upload(int device, unsigned char* to, const unsigned char* from, std::size_t bytes);
void download(int device, unsigned char* to, const unsigned char* from, std::size_t bytes);

}  // namespace kolo::test
