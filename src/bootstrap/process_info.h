// What this process is called in messages, and what /proc says of it and of others.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/identity.h"

namespace kolo::bootstrap {

// Equal in two processes: they see one network stack (network::stackName).
std::uint64_t stackIdentity();
const std::string& hostName();

// Clock ticks since boot at which a process started; 0: no such process. With the pid it names a process for ever,
// within one processSpace().
std::uint64_t startTime(int pid);
// The parent of a process and its command name. False: no such process.
bool parentOf(int pid, int& parent, std::string& command);
// How many processes, from this one on through its parent without a gap, were started with this value in the
// environment; a process whose environment cannot be read ends the row. 0: this process has set the variable itself.
int inheritedBy(const std::string& variable, const std::string& value);
// Identifies the namespaces of pids and of time: pids and start times mean the same only within one of each. 0 unknown.
std::uint64_t processSpace();
// Equal in two processes: they see one network stack, and pids and users' numbers mean the same to both. 0: unknown.
std::uint64_t placeIdentity();
// Who has connected at the other end of a socket, or listened there, as the kernel says, which knows it within this
// host and not of TCP. Else pid 0, and no user's number.
ucred processAt(int fd);

}  // namespace kolo::bootstrap
