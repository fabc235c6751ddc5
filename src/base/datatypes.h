// Sizes of the datatypes, where a call of koloDataTypeSize() would be felt.
#pragma once

#include <kolo/kolo.h>

#include <array>
#include <cstddef>

namespace kolo {

inline constexpr std::array<std::size_t, koloNumDatatypes> kElementBytes = {1, 1, 4, 4, 8, 8, 2, 4, 8,
                                                                            2, 1, 1, 2, 2, 1, 8, 16};

// REQUIRES: a known datatype.
constexpr std::size_t elementBytes(koloDataType_t datatype) {
  return kElementBytes[static_cast<std::size_t>(datatype)];
}

}  // namespace kolo
