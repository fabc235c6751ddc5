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

// "all_reduce(float32, sum, count 100)": what a rank called, from its header.
std::string describe(const device::Signature& signature, std::uint64_t count);

}  // namespace kolo
