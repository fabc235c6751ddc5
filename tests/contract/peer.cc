#include "peer.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "bench.h"
#include "support/stops.h"

namespace kolo::contract {
namespace {

constexpr timeval kPatience{30, 0};

static_assert(std::is_trivially_copyable_v<Request> && std::is_trivially_copyable_v<Reply>);

void fillIn(Reply& reply, const Status& status) {
  reply.code = status.code();
  std::snprintf(reply.message, sizeof reply.message, "%s", status.message().c_str());
}

void putIndex(Reply& reply, const Result<std::size_t>& result) {
  fillIn(reply, result.status());
  if (result.ok()) reply.value = result.value();
}

Status systemCall(int result, const char* what) { return result == 0 ? Status() : systemError(errno, what); }

// File descriptors are limited by number, and some numbers above the lowest free one may be taken.
Status limitFiles(std::uint64_t leave) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  KOLO_TRY(systemCall(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit"));
  if (leave != kNoLimit) {
    std::vector<int> taken;
    for (std::uint64_t i = 0; i <= leave; ++i) taken.push_back(dup(STDERR_FILENO));
    limit.rlim_cur = static_cast<rlim_t>(taken.back());
    for (const int fd : taken) ::close(fd);
  }
  return systemCall(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
}

Status leaveNetwork() {
  if (unshare(CLONE_NEWNET) == 0) return {};
  return systemCall(unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare");
}

void putText(Reply& reply, const std::string& problem) {
  fillIn(reply, problem == "" ? Status() : error(koloInternalError, "{}", problem));
}

// Of posted links.
Reply servePosted(Rank& rank, const Request& request) {
  Reply reply;
  switch (request.op) {
    case Op::kPut: fillIn(reply, rank.put(request.a, request.put)); break;
    case Op::kProgress: progressFor(rank, static_cast<int>(request.a), static_cast<int>(request.b)); break;
    case Op::kUnfinished: reply.value = rank.unfinished(request.a); break;
    case Op::kState: fillIn(reply, rank.state(request.a)); break;
    case Op::kRails: reply.value = rank.rails(request.a); break;
    case Op::kKey: {
      const auto key = rank.key(request.a);
      fillIn(reply, key.status());
      if (key.ok()) reply.key = key.value();
      break;
    }
    case Op::kFill:
      std::memset(rank.data(request.a) + request.c, static_cast<int>(request.b), rank.bytes(request.a) - request.c);
      break;
    case Op::kAwaitSignal: fillIn(reply, awaitSignal({&rank, 0, request.d, request.a, 0}, request.b, request.c)); break;
    case Op::kWatchRails: putText(reply, watchRails({&rank, 0, request.d, request.a, 0}, request.b, request.c)); break;
    case Op::kAnswerPosted:
      putText(reply,
              answerPostedPings({&rank, 0, request.a, request.b, request.c}, request.put.signal, request.put.bytes));
      break;
    case Op::kAnswerBench:
      benchPosted({&rank, 0, request.a, request.b, request.c}, request.put.signal, request.put.bytes, request.put.to,
                  false);
      break;
    case Op::kCount: {
      const unsigned char* const from = rank.data(request.a);
      for (std::size_t i = request.c; i < rank.bytes(request.a); ++i) reply.value += from[i] != request.b;
      break;
    }
    case Op::kForkAndWait:
      reply.value = static_cast<std::uint64_t>(fork());
      while (reply.value == 0) ::pause();
      break;
    case Op::kAnswerRaw: break;
    default: fillIn(reply, error(koloInternalError, "an operation that does not exist"));
  }
  return reply;
}

Reply serve(Rank& rank, const Request& request) {
  Reply reply;
  switch (request.op) {
    case Op::kOpen:
      fillIn(reply, rank.open(request.transport, request.options));
      if (reply.code == koloSuccess) reply.blob = rank.address();
      break;
    case Op::kClose: rank.close(); break;
    case Op::kRegister:
      putIndex(reply, rank.registerMemory(request.a, request.b, static_cast<Backing>(request.c)));
      if (reply.code == koloSuccess) reply.blob = rank.descriptor(reply.value);
      break;
    case Op::kDeregister: rank.deregister(request.a); break;
    case Op::kFree: rank.free(request.a); break;
    case Op::kLink: putIndex(reply, rank.openLink(request.address, request.descriptor)); break;
    case Op::kReads: fillIn(reply, rank.reads(request.a)); break;
    case Op::kUnlink: rank.closeLink(request.a); break;
    case Op::kStoreLink: rank.mapped(request.a)[request.b] = static_cast<unsigned char>(request.c); break;
    case Op::kLoadLink: reply.value = rank.mapped(request.a)[request.b]; break;
    case Op::kStoreOwn: rank.data(request.a)[request.b] = static_cast<unsigned char>(request.c); break;
    case Op::kLoadOwn: reply.value = rank.data(request.a)[request.b]; break;
    case Op::kAddressOfOwn: reply.value = reinterpret_cast<std::uint64_t>(rank.data(request.a)); break;
    case Op::kAnswerPings: reply.value = answerPings(rank.data(request.a), rank.mapped(request.b), request.c); break;
    case Op::kOpenFiles: reply.value = openFiles(); break;
    case Op::kSharedMappings: reply.value = sharedMappings(); break;
    case Op::kLimitFiles: fillIn(reply, limitFiles(request.a)); break;
    case Op::kOwnNetwork: fillIn(reply, leaveNetwork()); break;
    case Op::kExit: std::exit(0);
    case Op::kBecomeUser:
      // The other user may not be allowed to read the folder of the build: plugins are loaded while that is possible.
      static_cast<void>(transport::list(""));
      fillIn(reply, systemCall(setuid(static_cast<uid_t>(request.a)), "setuid"));
      break;
    default: reply = servePosted(rank, request);
  }
  return reply;
}

}  // namespace

int servePeer(int socket) {
  Rank rank;
  for (;;) {
    Request request;
    if (recv(socket, &request, sizeof request, 0) != sizeof request) return 0;  // the test is over
    if (request.op == Op::kAnswerRaw) {
      std::uint16_t port = 0;
      const int listener = listenRaw(&port);
      Reply first;
      first.value = port;
      (void)!::send(socket, &first, sizeof first, MSG_NOSIGNAL);
      serveRaw(listener, request.a, request.b, request.c);
    }
    const Reply reply = serve(rank, request);
    if (::send(socket, &reply, sizeof reply, MSG_NOSIGNAL) != sizeof reply) return 1;
  }
}

Peer::Peer() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) throw std::runtime_error("socketpair");
  char number[16];
  std::snprintf(number, sizeof number, "%d", sockets[1]);
  pid_ = fork();
  if (pid_ == 0) {
    fcntl(sockets[1], F_SETFD, 0);
    execl("/proc/self/exe", "contract", "--peer", number, nullptr);
    _exit(127);
  }
  ::close(sockets[1]);
  socket_ = sockets[0];
  if (pid_ < 0) throw std::runtime_error("fork");
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
}

Peer::~Peer() {
  kill();
  ::close(socket_);
}

void Peer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Peer::exitStatus() {
  int status = -1;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// kill() would take -1 for all processes there are.
void Peer::pause() {
  if (pid_ <= 0) return;
  test::stopProcess(pid_);
  waitpid(pid_, nullptr, WUNTRACED);
}

void Peer::resume() {
  if (pid_ > 0) test::continueProcess(pid_);
}

void Peer::send(const Request& request) {
  if (::send(socket_, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) throw std::runtime_error("send");
}

Reply Peer::receive() {
  Reply reply;
  // With a limit (SO_RCVTIMEO) the call also returns when this process has been stopped and continued.
  const ssize_t got = TEMP_FAILURE_RETRY(recv(socket_, &reply, sizeof reply, 0));
  if (got < 0) fillIn(reply, error(koloTimeout, "ran out of time: the other process did not reply"));
  else if (got != sizeof reply) fillIn(reply, error(koloRemoteError, "the other process has ended without a reply"));
  return reply;
}

Reply Peer::call(const Request& request) {
  send(request);
  return receive();
}

Reply Peer::open(const std::string& transport, const HostOptions& options) {
  Request request{Op::kOpen};
  request.options = options;
  std::snprintf(request.transport, sizeof request.transport, "%s", transport.c_str());
  const Reply reply = call(request);
  address_ = reply.blob;
  return reply;
}

Reply Peer::registerMemory(std::size_t bytes, std::size_t offset, Backing backing) {
  return call({Op::kRegister, bytes, offset, static_cast<std::uint64_t>(backing)});
}

Reply Peer::link(const koloTransportBlob& address, const koloTransportBlob& descriptor) {
  Request request{Op::kLink};
  request.address = address;
  request.descriptor = descriptor;
  return call(request);
}

Reply Peer::put(std::uint64_t link, const PutOptions& options) {
  Request request{Op::kPut, link};
  request.put = options;
  return call(request);
}

std::uint64_t Peer::value(Op op, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  const Reply reply = call({op, a, b, c});
  if (reply.code != koloSuccess) throw std::runtime_error(reply.message);
  return reply.value;
}

}  // namespace kolo::contract
