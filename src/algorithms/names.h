// The words for datatypes, operations, collectives and algorithms, in one place.
#pragma once

#include <string>
#include <string_view>

#include "device/work.h"

namespace kolo {

const char* name(device::Algorithm algorithm);
// kCount for an unknown name.
device::Algorithm algorithmByName(std::string_view name);
device::Collective collectiveByName(std::string_view name);

// What a rank called, from its header. count: the count, or a digest of what stands in its place.
struct CalledOperation {
  device::Signature signature;
  std::uint64_t count = 0;
};
// "all_reduce(float32, sum, count 100) by ring"
std::string describe(const CalledOperation& called);
// The first part in which what two ranks called differs: "rank 0 gave count 100, rank 1 gave count 200".
std::string describeDifference(int one, const CalledOperation& oneCalled, int other,
                               const CalledOperation& otherCalled);

}  // namespace kolo
