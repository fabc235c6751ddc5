#include "perf/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "common/collectives.h"
#include "perf/failure.h"

namespace kolo::perf {
namespace {

constexpr size_t kMaxSizes = 100'000;  // more is a mistake, and the list itself might not fit into memory

}  // namespace

size_t parseBytes(std::string_view text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), last, value, std::chars_format::fixed);
  std::string_view unit(end, static_cast<size_t>(last - end));
  int shift = 0;
  if (!unit.empty()) {
    if (const size_t at = std::string_view("kKmMgGtT").find(unit.front()); at != std::string_view::npos) {
      shift = 10 * (1 + static_cast<int>(at) / 2);
      unit.remove_prefix(1);
    }
    if (unit == "B" || (unit == "iB" && shift > 0)) unit = {};
  }
  const double bytes = std::ldexp(value, shift);
  if (code != std::errc() || !unit.empty() || !(bytes >= 0) || bytes > 1e18) {
    fail("\"{}\" is not a size such as 65536, 64K or 1.5M", text);
  }
  return static_cast<size_t>(bytes);
}

std::string formatBytes(size_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::vector<size_t> sweepSizes(size_t minBytes, size_t maxBytes, double factor, size_t stepBytes) {
  if (minBytes > maxBytes) fail("the smallest size, {} bytes, is above the largest, {}", minBytes, maxBytes);
  if (stepBytes == 0 && !(factor > 1)) fail("the step factor is {}, expected more than 1", factor);
  std::vector<size_t> sizes;
  for (size_t bytes = minBytes; bytes <= maxBytes;) {
    if (sizes.size() == kMaxSizes) fail("the sweep has more than {} sizes", kMaxSizes);
    sizes.push_back(bytes);
    // Bounded, so that an integer holds it whatever the factor.
    const size_t multiplied = static_cast<size_t>(std::min(static_cast<double>(bytes) * factor, 1e19));
    bytes = stepBytes > 0 ? bytes + stepBytes : std::max(bytes + 1, multiplied);
  }
  return sizes;
}

Shape shapeFor(koloCollective_t collective, size_t bytes, size_t elementBytes, int ranks) {
  if (collective == koloCollectiveBarrier) return {.count = 0, .blocks = 1, .elements = 0, .bytes = 0};
  const size_t blocks = rowOf(collective).isDivided() ? static_cast<size_t>(ranks) : 1;
  const size_t count = std::max<size_t>(1, bytes / elementBytes / blocks);
  return {.count = count, .blocks = blocks, .elements = count * blocks, .bytes = count * blocks * elementBytes};
}

double busFactor(koloCollective_t collective, int ranks) {
  const double n = ranks;
  if (collective == koloCollectiveAllReduce) return 2 * (n - 1) / n;
  return rowOf(collective).isDivided() ? (n - 1) / n : 1.0;
}

}  // namespace kolo::perf
