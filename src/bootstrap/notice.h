// What a rank says to the other ranks of this user on this host where no file can be written: it listens at a name of
// the kernel's (an abstract socket), and gives the words to each that asks. Names are those of one network namespace.
//
// Other users could listen at that name, and so are not believed; nor are they told.
//
// Thread safety: all functions, from any thread; give() blocks, on the calling thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "bootstrap/socket.h"

namespace kolo::bootstrap {

// Gives the words to those who ask at the name, until so many have or the deadline comes. False: nobody can ask, for
// the name cannot be had.
bool giveNotice(const std::string& name, std::string_view words, int readers, Clock::time_point deadline);

// What stands at the name; nothing: nobody listens there.
std::optional<std::string> readNotice(const std::string& name);

}  // namespace kolo::bootstrap
