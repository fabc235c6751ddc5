#include "base/device_string.h"

#include <algorithm>
#include <charconv>

namespace kolo {
namespace {

// A decimal number of an int, which may be missing if isOptional.
bool takeNumber(std::string_view text, bool isOptional, int& number) {
  number = 0;
  if (text.empty()) return isOptional;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() && number >= 0 && text.front() != '-';
}

}  // namespace

Result<DeviceString> parseDeviceString(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::size_t digits = std::min(text.find_first_of("0123456789"), colon);
  const std::string_view kind = text.substr(0, digits);
  DeviceString parsed;
  const bool isWellFormed = takeNumber(text.substr(digits, colon - digits), true, parsed.number) &&
                            (colon == text.size() || takeNumber(text.substr(colon + 1), false, parsed.stream));
  const bool isAny = kind == "xpu" || (kind == "xpux" && digits == colon);
  const bool isGpu = kind == "gpu" || kind == "cuda";
  if (!isWellFormed || !(isAny || isGpu || kind == "cpu"))
    return error(koloInvalidArgument, "device \"{}\": expected {}", text, kExpectedDevice);
  parsed.kind = isGpu ? DeviceString::Kind::kGpu : isAny ? DeviceString::Kind::kAny : DeviceString::Kind::kHost;
  return parsed;
}

}  // namespace kolo
