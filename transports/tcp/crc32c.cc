#include "crc32c.h"

#include <array>
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace kolo::tcp {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;  // reflected

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables makeTables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = value;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::uint32_t i = 0; i < 256; ++i) tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
  }
  return tables;
}

constexpr Tables kTables = makeTables();

std::uint64_t load(const unsigned char* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// Eight bytes a step ("slicing by eight").
std::uint32_t byTable(std::uint32_t crc, const unsigned char* at, std::size_t count) {
  for (; count >= 8; at += 8, count -= 8) {
    const std::uint64_t word = load(at) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; count > 0; ++at, --count) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xff];
  return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) std::uint32_t byInstruction(std::uint32_t crc, const unsigned char* at,
                                                              std::size_t count) {
  std::uint64_t wide = crc;
  for (; count >= 8; at += 8, count -= 8) wide = __builtin_ia32_crc32di(wide, load(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; count > 0; ++at, --count) crc = __builtin_ia32_crc32qi(crc, *at);
  return crc;
}

bool hasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__)

__attribute__((target("+crc"))) std::uint32_t byInstruction(std::uint32_t crc, const unsigned char* at,
                                                            std::size_t count) {
  for (; count >= 8; at += 8, count -= 8) crc = __builtin_aarch64_crc32cx(crc, load(at));
  for (; count > 0; ++at, --count) crc = __builtin_aarch64_crc32cb(crc, *at);
  return crc;
}

bool hasInstruction() {
  constexpr unsigned long kCrc32 = 1ul << 7;  // HWCAP_CRC32
  return (getauxval(AT_HWCAP) & kCrc32) != 0;
}

#else

std::uint32_t byInstruction(std::uint32_t crc, const unsigned char* at, std::size_t count) {
  return byTable(crc, at, count);
}
bool hasInstruction() { return false; }

#endif

const bool kHasInstruction = hasInstruction();

}  // namespace

std::uint32_t crc32c(std::uint32_t before, const void* bytes, std::size_t count) {
  const auto* const at = static_cast<const unsigned char*>(bytes);
  return ~(kHasInstruction ? byInstruction(~before, at, count) : byTable(~before, at, count));
}

std::uint32_t crc32cByTable(std::uint32_t before, const void* bytes, std::size_t count) {
  return ~byTable(~before, static_cast<const unsigned char*>(bytes), count);
}

}  // namespace kolo::tcp
