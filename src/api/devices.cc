// Device strings.
#include "drivers/cuda/devices.h"

#include <charconv>
#include <climits>
#include <string_view>

#include "api/checks.h"
#include "api/guard.h"

namespace kolo::api {
namespace {

constexpr const char* kExpectedDevice =
    "expected cpu, gpu, cuda or xpu, a device's number, and, behind a colon, a stream's number, such as gpu0:1";

// A decimal number of an int, which may be missing if isOptional.
bool takeNumber(std::string_view text, bool isOptional, int& number) {
  number = 0;
  if (text.empty()) return isOptional;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() && number >= 0 && text.front() != '-';
}

bool hasCudaDevice() {
  const auto devices = drivers::cudaDevices();
  return devices.ok() && !devices.value().empty();
}

Status parseDevice(std::string_view text, int& device, int& stream) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::size_t digits = std::min(text.find_first_of("0123456789"), colon);
  const std::string_view kind = text.substr(0, digits);
  int number = 0;
  const bool isWellFormed = takeNumber(text.substr(digits, colon - digits), true, number) &&
                            (colon == text.size() || takeNumber(text.substr(colon + 1), false, stream));
  const bool isAny = kind == "xpu" || (kind == "xpux" && digits == colon);
  const bool isGpu = kind == "gpu" || kind == "cuda";
  if (!isWellFormed || !(isAny || isGpu || kind == "cpu")) {
    return error(koloInvalidArgument, "device \"{}\": {}", text, kExpectedDevice);
  }
  device = isGpu || (isAny && hasCudaDevice()) ? number : KOLO_HOST;
  return {};
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloDeviceParse(const char* text, int* device, int* stream) {
  return guardProcess(__func__, [&]() -> Status {
    if (text == nullptr) return error(koloInvalidPointer, "text is NULL; {}", kExpectedDevice);
    KOLO_TRY(checkResult("device", device));
    int number = 0, streamNumber = 0;
    KOLO_TRY(parseDevice(text, number, streamNumber));
    if (stream == nullptr && streamNumber != 0) {
      return error(koloInvalidArgument, "device \"{}\" names stream {}, and stream is NULL: expected a place for it",
                   text, streamNumber);
    }
    *device = number;
    if (stream != nullptr) *stream = streamNumber;
    return {};
  });
}

}  // extern "C"
