// What an array is, as it goes from one rank to another: its shape and datatype, and the function that gives a receiver
// memory for it.
//
// Thread safety: any thread.
#pragma once

#include <kolo/kolo.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace kolo::comm {

// Tags that messages of arrays have; KOLO_ANY_TAG does not stand for them.
inline constexpr int kArrayTag = -2;           // a description
inline constexpr int kFirstArrayDataTag = -3;  // data; and all below

// What an array is, as it goes over the wire.
struct ArrayDescription {
  std::int32_t problem = koloSuccess;  // of a broadcast: the root cannot send the array, and why
  std::uint32_t number = 0;            // of a sent array, by which its data is found
  std::uint8_t datatype = koloUint8;
  std::uint8_t ndim = 0;
  std::uint8_t hasData = 0;  // it follows in the same message
  std::uint8_t axis = 0;     // of a scatter
  std::uint8_t unused[4] = {};
  std::array<std::uint64_t, KOLO_MAX_DIMS> shape{};

  koloDataType_t type() const { return static_cast<koloDataType_t>(datatype); }
  // REQUIRES: check() has found nothing.
  std::uint64_t elements() const;
  std::uint64_t bytes() const;
};
// Of a description from another rank, or from a caller: what is wrong with it.
Status check(const ArrayDescription& description);

struct Allocation {
  koloAllocateFunction_t function = nullptr;
  void* context = nullptr;
};

// The receiver's memory for an array. null: it has none.
void* allocate(const Allocation& allocation, const ArrayDescription& description);

// Data up to this length goes in the message of the description, which then costs less than a second one.
inline constexpr std::uint64_t kMostAlong = 256;
inline constexpr std::size_t kMostMessageBytes = sizeof(ArrayDescription) + kMostAlong;
// The description with the lengths that it has, and the data if that is short.
std::vector<unsigned char> pack(const ArrayDescription& description, const void* data);
// Into a description, from rank `source`; *data: where the data is that follows.
Status unpack(int source, const unsigned char* packed, std::size_t bytes, ArrayDescription& description,
              const unsigned char** data);

}  // namespace kolo::comm
