// What tells processes, and running kernels, apart.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <array>
#include <string_view>

namespace kolo {

using Identity = std::array<unsigned char, 16>;

// Random, one for each process: a forked child has its own address space and does not pass for its parent.
const Identity& processIdentity();
// Which the kernel draws at each start; all containers of one kernel see the same. Empty: there is no /proc.
std::string_view bootId();

}  // namespace kolo
