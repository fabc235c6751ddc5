// What the interposer asks of the CUDA driver that the program has loaded: whose memory an address is, and copies
// between it and the host's. It neither loads the driver nor initialises it.
//
// Thread safety: all functions.
#pragma once

#include <cstddef>
#include <vector>

namespace kolo::mpi::gpu {

// Whether the driver is in this process, so that buffers may be a GPU's. Some ten nanoseconds.
bool isUsed();
// Whether a GPU has the memory: its own or managed. REQUIRES: isUsed().
bool owns(const void* address);

// `rows` pieces of `width` bytes, `pitch` bytes from one to the next, at the same offsets on both sides.
struct Pieces {
  std::size_t offset;
  std::size_t width, pitch, rows;
};
// All of one buffer's. Return when the bytes have arrived: nullptr, or what the driver called the error. They wait for
// nothing that the program's streams have under way, and are no part of a graph that it captures. REQUIRES: isUsed().
const char* toHost(unsigned char* host, const unsigned char* device, const std::vector<Pieces>& all);
const char* fromHost(unsigned char* device, const unsigned char* host, const std::vector<Pieces>& all);

}  // namespace kolo::mpi::gpu
