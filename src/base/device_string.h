// Device strings: "gpu0:1" is the CUDA device 0, and the program's stream number 1.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "base/status.h"

namespace kolo {

struct DeviceString {
  enum class Kind { kHost, kGpu, kAny };  // kAny: a CUDA device where there is one, else the host

  Kind kind = Kind::kHost;
  int number = 0;  // of the CUDA device
  int stream = 0;
};

inline constexpr const char* kExpectedDevice =
    "cpu, gpu, cuda or xpu, a device's number, and, behind a colon, a stream's number, such as gpu0:1";

Result<DeviceString> parseDeviceString(std::string_view text);

}  // namespace kolo
