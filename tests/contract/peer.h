// The other process of a contract test: this test binary started anew (never only forked, so it shares no thread and no
// memory with the test), commanded over a socket.
#pragma once

#include <sys/types.h>

#include "rank.h"

namespace kolo::contract {

enum class Op : std::uint32_t {
  kOpen,
  kClose,
  kRegister,
  kDeregister,
  kFree,
  kLink,
  kUnlink,
  kStoreLink,
  kLoadLink,
  kStoreOwn,
  kLoadOwn,
  kAddressOfOwn,
  kReads,  // whether ordinary memory can be read through a link; the message: why not
  kAnswerPings,
  kOpenFiles,
  kSharedMappings,
  kLimitFiles,  // leaves a free file descriptors; kNoLimit: as many as the system allows
  kOwnNetwork,  // moves to a network namespace of its own
  kBecomeUser,
  // Of posted links; a: the link, unless said otherwise. The put itself is in Request.put.
  kPut,
  kProgress,  // a: peer; b: for so many milliseconds
  kUnfinished,
  kState,  // the message: why it is lost
  kRails,
  kKey,           // a: memory
  kFill,          // a: memory, b: byte, c: from this offset on
  kAwaitSignal,   // a: memory, b: offset, c: value, d: a link that is looked at; peer 0
  kWatchRails,    // a: memory, b: rails, c: puts on each, d: link: see watchRails
  kAnswerPosted,  // a: link, b: inbox, c: outbox; the rest in Request.put: signal: rounds, bytes: most; peer 0
  kForkAndWait,   // forks a child that does nothing; its process id
  kAnswerBench,   // as kAnswerPosted; c: also the bytes of an answer, in Request.put.to
  kAnswerRaw,     // a: rounds, b: bytes, c: of an answer; replies twice, first with the port
  kCount,         // a: memory, b: byte, c: from this offset on: how many bytes are not that
  kExit           // exits with everything open, threads running
};

inline constexpr std::uint64_t kNoLimit = UINT64_MAX;

struct Request {
  Op op;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;
  std::uint64_t d = 0;
  HostOptions options;
  PutOptions put;
  char transport[32] = {};
  koloTransportBlob address{};
  koloTransportBlob descriptor{};
};

struct Reply {
  koloResult_t code = koloSuccess;
  char message[1200] = {};
  std::uint64_t value = 0;
  koloTransportBlob blob{};
  koloTransportKey key{};
};

class Peer {
 public:
  Peer();
  // Kills it if it still runs.
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Sends the request and waits for its reply, half a minute at most; koloTimeout if none comes.
  Reply call(const Request& request);
  // The two halves, for what runs on both sides at once.
  void send(const Request& request);
  Reply receive();
  void kill();
  // The exit status after Op::kExit was sent; -1 if it was ended by a signal.
  int exitStatus();
  // Stops (SIGSTOP) and resumes it.
  void pause();
  void resume();

  Reply open(const std::string& transport, const HostOptions& options = {});
  Reply registerMemory(std::size_t bytes, std::size_t offset = 0, Backing backing = Backing::kFile);
  Reply link(const koloTransportBlob& address, const koloTransportBlob& descriptor);
  Reply put(std::uint64_t link, const PutOptions& options);
  std::uint64_t value(Op op, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0);
  const koloTransportBlob& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  koloTransportBlob address_{};
};

// What the started process does: serves requests until the socket closes.
int servePeer(int socket);

}  // namespace kolo::contract
