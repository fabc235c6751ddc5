// CRC-32C (Castagnoli), by the processor's instructions where it has them.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kolo::tcp {

// Of bytes that follow others: `before` is the checksum of those, 0 at the beginning.
std::uint32_t crc32c(std::uint32_t before, const void* bytes, std::size_t count);

// The checksum by tables, for machines without the instructions and for tests.
std::uint32_t crc32cByTable(std::uint32_t before, const void* bytes, std::size_t count);

}  // namespace kolo::tcp
