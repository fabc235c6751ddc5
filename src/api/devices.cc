// Device strings.
#include "drivers/cuda/devices.h"

#include "api/checks.h"
#include "api/guard.h"
#include "base/device_string.h"

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloDeviceParse(const char* text, int* device, int* stream) {
  return guardProcess(__func__, [&]() -> Status {
    if (text == nullptr) return error(koloInvalidPointer, "text is NULL, expected {}", kExpectedDevice);
    KOLO_TRY(checkResult("device", device));
    KOLO_ASSIGN(const DeviceString parsed, parseDeviceString(text));
    if (stream == nullptr && parsed.stream != 0) {
      return error(koloInvalidArgument, "device \"{}\" names stream {}, and stream is NULL: expected a place for it",
                   text, parsed.stream);
    }
    *device = drivers::deviceOf(parsed);
    if (stream != nullptr) *stream = parsed.stream;
    return {};
  });
}

}  // extern "C"
