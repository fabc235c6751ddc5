// The connections to one peer: its rails, each a socket with its two halves.
//
// Thread safety: the device's thread, but that the listener's thread makes one, and asks isStale() with the device's
// lock held, which is also held to close the sockets.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "../connect/listener.h"
#include "parser.h"
#include "sender.h"

namespace kolo::tcp {

using connect::Clock;

struct Way;

struct Rail {
  Rail(Way* owner, network::Socket connection, const Memories& memories, const Direction& sends,
       const Direction& receives)
      : way(owner), socket(std::move(connection)), sender(sends), parser(memories, receives) {}
  Way* way;
  network::Socket socket;
  Sender sender;
  Parser parser;
  bool hasEnded = false;  // the peer sends no more by it
  bool isHalfClosed = false;
  bool isGathering = false;  // stands in the device's list of those with short requests
  bool isAwaited = false;    // stands in the device's list of those to be armed
  bool isArmed = false;      // the device's epoll tells when it may be written to
};

struct Way {
  connect::Caller peer;
  int silenceMs = 0;  // how long its host may be silent
  std::vector<std::unique_ptr<Rail>> rails;
  bool isLost = false;
  bool isBroken = false;        // cannot be sent by; what the peer has sent is still taken
  Clock::time_point endedAt{};  // the first rail ended, or broke; 0: none has
  std::string why;              // of both

  // Takes what has come. True if something has; wrong: what was wrong with it.
  static constexpr std::size_t kScratch = 16384 + 1024;  // an eager message (src/comm/messages.h) with its frames
  static constexpr std::size_t kSealedScratch = 8 * (Seal::kPiece + Seal::kTag) + 1024;  // where payloads pass it, too
  using Scratch = std::vector<unsigned char>;
  bool receive(Rail& rail, Scratch& scratch, std::string* wrong);
  bool hasEnded() const;
  // The peer has closed it, or it broke, and the device has not noticed yet.
  bool isStale() const;
  // Requests are over.
  void abandon();
  // Of a device that is closed: half closes; what is left on its way: bytes that the peer's kernel has not
  // acknowledged, and requests.
  std::uint64_t drain(Scratch& scratch);
};

// Options of every connection, once it is proven.
void prepare(const network::Socket& socket, int silenceMs);

// Bytes are under way, and the other host has answered nothing for so long, however often they were sent again. A peer
// that merely does not take them does answer.
bool isSilent(const network::Socket& socket, int silenceMs);
// There is no connection any more.
bool isClosed(const network::Socket& socket);

}  // namespace kolo::tcp
