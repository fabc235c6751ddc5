// The receiving side: gets a peer's file from its exporter, and maps the range.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstddef>

#include "network/socket.h"
#include "wire.h"

namespace kolo::handover {

using Deadline = network::Clock::time_point;

// The caller's own view of itself, against which an unreachable peer is explained.
std::uint64_t networkNamespace();  // inode; 0: unknown

// The error of what process `process` could not do because of errnum: EMFILE, its limit of open files, or another one.
int failForFiles(int errnum, std::uint64_t limit, int process, const Why& why);

// process: which one the kernel says has listened, by its number here; 0: one that has none here (another namespace).
// REQUIRES: both proven, descriptor with a file.
int fetchFile(const Address& address, const Descriptor& descriptor, const Key& key, Deadline deadline, const Why& why,
              network::Socket* file, pid_t* process);

// A mapping of a range of a file, at any offset.
struct Mapping {
  void* base = nullptr;  // page-aligned
  std::size_t length = 0;
  void* first = nullptr;  // the range's first byte
};
// The file may not shrink any more: a process that touches what is gone is killed by SIGBUS.
bool isSealed(int fd);
int mapRange(int fd, std::uint64_t offset, std::uint64_t bytes, const Why& why, Mapping* mapping);
void unmap(const Mapping& mapping);

}  // namespace kolo::handover
