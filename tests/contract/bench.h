// Figures of posted links beside plain sockets, in one run: latency of small puts, and throughput of large ones.
#pragma once

#include "posted.h"

namespace kolo::contract {

// Both ends: `rounds` puts each way of `bytes` bytes with a signal, from the beginning of the outbox to kSignals of the
// inbox; the other end answers with `answer` bytes. Seconds.
double benchPosted(const PostedEnd& end, std::uint64_t rounds, std::size_t bytes, std::size_t answer, bool begins);

// The same by plain sockets. Serves one connection at a port of loopback that it writes to *port before it waits.
int listenRaw(std::uint16_t* port);
double serveRaw(int listener, std::uint64_t rounds, std::size_t bytes, std::size_t answer);
double benchRaw(std::uint16_t port, std::uint64_t rounds, std::size_t bytes, std::size_t answer);

}  // namespace kolo::contract
