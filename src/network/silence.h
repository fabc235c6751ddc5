// How a connection of TCP notices that the other host is silent: it is down, or the network between is. A host whose
// process computes, or is stopped, is not silent: its kernel answers.
//
// Thread safety: different connections from any thread. A header alone.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace kolo::network {

inline constexpr int kSilenceMs = 10000;  // KOLO_SILENCE_MS if it is not known

// The kernel ends the connection when the other host has not answered for so long, though nothing is sent.
inline void watchForSilence(int fd, int silenceMs) {
  constexpr int kProbes = 5;
  const auto set = [fd](int level, int name, int value) {
    (void)::setsockopt(fd, level, name, &value, sizeof value);  // failure costs early notice only
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, silenceMs / 2000));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, silenceMs / 2000 / kProbes));
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

// The same of what has been sent. This also ends connections to a process that lives and takes nothing.
inline void limitSilence(int fd, int silenceMs) {
  watchForSilence(fd, silenceMs);
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silenceMs, sizeof silenceMs);
}

}  // namespace kolo::network
