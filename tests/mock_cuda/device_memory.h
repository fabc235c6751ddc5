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

// Makes the device's primary context the thread's, for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  int device_;
};

// Between the host and any memory of the device; return when it is done.
void upload(int device, unsigned char* to, const unsigned char* from, std::size_t bytes);
void download(int device, unsigned char* to, const unsigned char* from, std::size_t bytes);

}  // namespace kolo::test
