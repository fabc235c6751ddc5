// What the shm transport promises beyond the contract: that its socket serves the ranks of a communicator and nobody
// else, whoever connects.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../transports/handover/importer.h"
#include "../../transports/handover/wire.h"
#include "suite.h"
#include "support/deadline.h"
#include "support/seed.h"

namespace kolo::contract {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Socket {
  int fd;
  explicit Socket(int number) : fd(number) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~Socket() {
    if (fd >= 0) ::close(fd);
  }
};

handover::Descriptor descriptorOf(const koloTransportBlob& blob) {
  handover::Descriptor descriptor;
  REQUIRE(handover::fromBlob(blob, &descriptor));
  return descriptor;
}

// As a stranger would, who read the name in /proc/net/unix.
Socket connectTo(const char* name) {
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strcpy(to.sun_path + 1, name);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
  REQUIRE(connect(socket.fd, reinterpret_cast<const sockaddr*>(&to), bytes) == 0);
  const timeval patience{10, 0};
  setsockopt(socket.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

handover::Hello hello(const Socket& socket) {
  handover::Hello received;
  REQUIRE(TEMP_FAILURE_RETRY(recv(socket.fd, &received, sizeof received, 0)) == sizeof received);
  return received;
}

handover::Key keyOf(unsigned char secret) {
  unsigned char communicator[32];
  std::memset(communicator, secret, sizeof communicator);
  return handover::deriveKey(communicator, "kolo transport shm");
}

handover::Request requestFor(const handover::Descriptor& descriptor, const handover::Hello& hello,
                             const handover::Key& key) {
  handover::Request request{};
  std::memcpy(request.serverNonce, hello.serverNonce, sizeof request.serverNonce);
  std::memcpy(request.memoryId, descriptor.memoryId, sizeof request.memoryId);
  handover::prove(request, key);
  return request;
}

// The answer, and how many files came with it.
std::pair<handover::Answer, int> ask(const Socket& socket, const handover::Request& request) {
  REQUIRE(send(socket.fd, &request, sizeof request, MSG_NOSIGNAL) == sizeof request);
  handover::Reply reply;
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) char room[256];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  REQUIRE(recvmsg(socket.fd, &message, MSG_CMSG_CLOEXEC) == sizeof reply);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) return {reply.answer, 0};
  int file;
  std::memcpy(&file, CMSG_DATA(header), sizeof file);
  ::close(file);
  return {reply.answer, 1};
}

// Ranks 0 here and 1 there, and a memory there.
struct Scene {
  explicit Scene(const HostOptions& options = {}) {
    REQUIRE(rank.open("shm", options).message() == "");
    REQUIRE(std::string(peer.open("shm", options).message) == "");
    const Reply reply = peer.registerMemory(1 << 16);
    REQUIRE(std::string(reply.message) == "");
    memory = reply.blob;
  }
  Result<std::size_t> link() { return rank.openLink(peer.address(), memory); }
  Rank rank;
  Peer peer;
  koloTransportBlob memory;
};

}  // namespace

TEST_CASE("a file is given for a request with the communicator's proof only", "[shm]") {
  Scene scene;
  const handover::Descriptor descriptor = descriptorOf(scene.memory);
  handover::Descriptor unknown = descriptor;
  unknown.memoryId[3] ^= 1;
  const auto tryWith = [&](const handover::Descriptor& wanted, unsigned char secret) {
    const Socket socket = connectTo(descriptor.socketName);
    return ask(socket, requestFor(wanted, hello(socket), keyOf(secret)));
  };
  CHECK(tryWith(descriptor, 1) == std::pair(handover::Answer::kGranted, 1));
  CHECK(tryWith(descriptor, 2) == std::pair(handover::Answer::kWrongProof, 0));
  CHECK(tryWith(unknown, 1) == std::pair(handover::Answer::kUnknownMemory, 0));
}

TEST_CASE("a file that may shrink under those who map it is neither given nor taken", "[shm][lies]") {
  const int file = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, 4096) == 0);
  char words[200] = "";
  const handover::Why why{words, sizeof words};
  handover::Mapping mapping;
  CHECK(handover::mapRange(file, 0, 4096, why, &mapping) == KOLO_TRANSPORT_ERROR);
  CHECK(std::string(words).find("F_SEAL_SHRINK") != std::string::npos);
  const std::vector<transport::Entry> entries = transport::list("shm").take();
  koloTransportHost host = transport::thisProcess();
  host.rank = 0, host.ranks = 2, host.timeoutMs = 1000;
  const auto device = transport::Device::open(entries.front().table, host);
  REQUIRE(device.status().message() == "");
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(memory != MAP_FAILED);
  const koloTransportMemory range{sizeof range, memory, 4096, file, 0, koloMemoryHost};
  CHECK(device.value()->registerMemory(range).status().code() == koloUnsupported);
  REQUIRE(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(device.value()->registerMemory(range).status().message() == "");
  CHECK(handover::mapRange(file, 0, 4096, why, &mapping) == KOLO_TRANSPORT_OK);
  handover::unmap(mapping);
  munmap(memory, 4096);
  ::close(file);
}

// The liar has the communicator's key, and so proves what it wants.
TEST_CASE("a descriptor of more bytes than the file has opens no link", "[shm][lies][fuzz]") {
  Scene scene;
  for (test::Rounds rounds(960); rounds.next();) {
    std::mt19937_64 random(rounds.seed());
    handover::Descriptor forged = descriptorOf(scene.memory);
    const std::uint64_t numbers[] = {random(), random() % (1 << 18), std::uint64_t{1} << random() % 64, UINT64_MAX};
    forged.bytes = numbers[random() % std::size(numbers)];
    if (random() % 2 == 0) forged.fdOffset = numbers[random() % std::size(numbers)];
    handover::prove(forged, keyOf(1));
    koloTransportBlob blob{};
    handover::toBlob(forged, &blob);
    const bool fits = forged.fdOffset <= 1 << 16 && forged.bytes <= (1 << 16) - forged.fdOffset && forged.bytes != 0;
    INFO(forged.bytes << " bytes at " << forged.fdOffset);
    const Result<std::size_t> link = scene.rank.openLink(scene.peer.address(), blob);
    CHECK(link.ok() == fits);
    if (link.ok()) scene.rank.closeLink(link.value());
  }
}

TEST_CASE("a recorded request is worthless on another connection", "[shm]") {
  Scene scene;
  const handover::Descriptor descriptor = descriptorOf(scene.memory);
  const Socket first = connectTo(descriptor.socketName);
  const handover::Request request = requestFor(descriptor, hello(first), keyOf(1));
  CHECK(ask(first, request) == std::pair(handover::Answer::kGranted, 1));
  const Socket second = connectTo(descriptor.socketName);
  hello(second);
  CHECK(ask(second, request) == std::pair(handover::Answer::kWrongProof, 0));
}

TEST_CASE("ordinary memory is not given even to those who prove themselves", "[shm]") {
  Scene scene;
  const Reply ordinary = scene.peer.registerMemory(4096, 0, Backing::kOrdinary);
  const Socket socket = connectTo(descriptorOf(scene.memory).socketName);
  const handover::Request request = requestFor(descriptorOf(ordinary.blob), hello(socket), keyOf(1));
  CHECK(ask(socket, request) == std::pair(handover::Answer::kUnknownMemory, 0));
}

TEST_CASE("silent, babbling and numerous strangers do not keep a rank from its link", "[shm]") {
  Scene scene;
  const std::uint64_t files = scene.peer.value(Op::kOpenFiles);
  const std::string name = descriptorOf(scene.memory).socketName;
  std::vector<Socket> strangers;
  for (std::size_t i = 0; i < 400; ++i) {  // more than it serves at a time
    strangers.push_back(connectTo(name.c_str()));
    const std::vector<char> garbage(i % 5 == 0 ? sizeof(handover::Request) : i * 7 + 1, static_cast<char>(i));
    if (i % 3 != 0) (void)send(strangers.back().fd, garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const auto before = Clock::now();
  const auto link = scene.link();
  CHECK(link.status().message() == "");
  CHECK_WITHIN(5s, before);
  // The strangers still hold on; their places are taken back all the same.
  while (scene.peer.value(Op::kOpenFiles) > files && Clock::now() - before < 10s) std::this_thread::sleep_for(50ms);
  CHECK(scene.peer.value(Op::kOpenFiles) == files);
}

TEST_CASE("files that a stranger sends are not kept", "[shm]") {
  Scene scene;
  const std::uint64_t files = scene.peer.value(Op::kOpenFiles);
  const Socket socket = connectTo(descriptorOf(scene.memory).socketName);
  char text[] = "hello";
  iovec part{text, sizeof text};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &socket.fd, sizeof(int));
  REQUIRE(sendmsg(socket.fd, &message, MSG_NOSIGNAL) == sizeof text);
  handover::Hello first;
  REQUIRE(TEMP_FAILURE_RETRY(recv(socket.fd, &first, sizeof first, 0)) == sizeof first);
  char rest;
  CHECK(TEMP_FAILURE_RETRY(recv(socket.fd, &rest, 1, 0)) <= 0);  // closed without an answer
  // The file may be closed just after the socket.
  const auto before = Clock::now();
  while (scene.peer.value(Op::kOpenFiles) > files && Clock::now() - before < 10s) std::this_thread::sleep_for(1ms);
  CHECK(scene.peer.value(Op::kOpenFiles) == files);
}

TEST_CASE("a stopped process is an error when the time is over", "[shm]") {
  Scene scene({.timeoutMs = 2000});
  scene.peer.pause();
  const auto before = Clock::now();
  const auto link = scene.link();
  const auto took = Clock::now() - before;
  scene.peer.resume();
  CHECK(link.status().code() == koloSystemError);
  CHECK(link.status().message().find("does not answer") != std::string::npos);
  CHECK(took >= 1950ms);
  CHECK_TOOK(15s, took);
  CHECK(scene.link().ok());
}

TEST_CASE("an importer without file descriptors is told so, and works when it has some again", "[shm]") {
  Rank rank;
  Peer peer;
  REQUIRE(rank.open("shm", {}).ok());
  REQUIRE(peer.open("shm").code == koloSuccess);
  const auto memory = rank.registerMemory(4096, 0, Backing::kFile);
  REQUIRE(memory.ok());
  for (const std::uint64_t left : {0, 1}) {  // none for the socket; none for the file
    peer.value(Op::kLimitFiles, left);
    const Reply reply = peer.link(rank.address(), rank.descriptor(memory.value()));
    CHECK(reply.code == koloSystemError);
    INFO(reply.message);
    CHECK(std::string(reply.message).find("open files") != std::string::npos);
  }
  peer.value(Op::kLimitFiles, kNoLimit);
  CHECK(peer.link(rank.address(), rank.descriptor(memory.value())).code == koloSuccess);
}

TEST_CASE("an exporter without file descriptors says so, and serves when it has some again", "[shm]") {
  Scene scene({.timeoutMs = 3000});
  scene.peer.value(Op::kLimitFiles, 0);
  const auto link = scene.link();
  INFO(link.status().message());
  CHECK(link.status().code() == koloSystemError);
  CHECK(link.status().message().find("is at its limit of") != std::string::npos);
  CHECK(link.status().message().find("open files (RLIMIT_NOFILE)") != std::string::npos);
  CHECK(link.status().message().find("ulimit -n") != std::string::npos);
  scene.peer.value(Op::kLimitFiles, kNoLimit);
  CHECK(scene.link().status().message() == "");
}

TEST_CASE("a peer in another network namespace is unreachable, and the reason says what to do", "[shm]") {
  Rank rank;
  Peer peer;
  REQUIRE(rank.open("shm", {}).ok());
  if (const Reply moved = peer.call({Op::kOwnNetwork}); moved.code != koloSuccess) {
    WARN("not tested: this machine allows no new network namespace: " << moved.message);
    return;
  }
  REQUIRE(peer.open("shm").code == koloSuccess);
  const Reply memory = peer.registerMemory(4096);
  const auto link = rank.openLink(peer.address(), memory.blob);
  CHECK(link.status().code() == koloUnreachable);
  CHECK(link.status().message().find("network namespace") != std::string::npos);
}

TEST_CASE("ranks of different users share memory if they are of one communicator", "[shm]") {
  if (geteuid() != 0) {
    WARN("not tested: needs root to become another user");
    return;
  }
  Rank rank;
  Peer peer;
  REQUIRE(rank.open("shm", {}).ok());
  peer.value(Op::kBecomeUser, 65534);
  REQUIRE(peer.open("shm").code == koloSuccess);
  const Reply theirs = peer.registerMemory(4096);
  CHECK(rank.openLink(peer.address(), theirs.blob).status().message() == "");
  const auto mine = rank.registerMemory(4096, 0, Backing::kFile);
  CHECK(std::string(peer.link(rank.address(), rank.descriptor(mine.value())).message) == "");
}

TEST_CASE("what may not be traced is not read, with the reason", "[shm]") {
  if (geteuid() != 0) return;
  Rank rank;
  Peer peer;
  REQUIRE(rank.open("shm", {}).ok());
  peer.value(Op::kBecomeUser, 65534);
  REQUIRE(peer.open("shm").code == koloSuccess);
  const auto mine = rank.registerMemory(4096, 0, Backing::kFile);
  const Reply link = peer.link(rank.address(), rank.descriptor(mine.value()));
  REQUIRE(std::string(link.message) == "");
  const std::string why = peer.call({Op::kReads, link.value}).message;
  CHECK(why.find("process_vm_readv") != std::string::npos);
  CHECK(why.find("same user") != std::string::npos);
}

TEST_CASE("a file that is not open for writing is unsupported", "[shm]") {
  Rank rank;
  REQUIRE(rank.open("shm", {}).ok());
  const auto entries = transport::list("shm");
  koloTransportHost host{};
  host.size = sizeof host;
  host.ranks = 2;
  const auto device = transport::Device::open(entries.value().front().table, host);
  REQUIRE(device.ok());
  const Socket file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  char byte = 0;
  koloTransportMemory range{};
  range.size = sizeof range;
  range.address = &byte;
  range.bytes = 1;
  range.fd = file.fd;
  CHECK(device.value()->registerMemory(range).status().code() == koloUnsupported);
  range.fd = 1 << 20;  // no file at all
  CHECK(device.value()->registerMemory(range).status().code() == koloSystemError);
}

TEST_CASE("a forked child neither hangs nor disturbs its parent, and can start anew", "[shm]") {
  Scene scene;
  const auto mine = scene.rank.registerMemory(4096, 0, Backing::kFile);
  REQUIRE(mine.ok());
  // AddressSanitizer's allocator has locks that fork() copies as they are: let the exporter's thread come to rest.
  std::this_thread::sleep_for(20ms);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs ends by a signal
    const bool refused = scene.link().status().message().find("forked") != std::string::npos;
    scene.rank.close();
    Rank fresh;
    const Backing backing = kThreadsInChild ? Backing::kFile : Backing::kOrdinary;
    const bool opened = fresh.open("shm", {}).ok() && fresh.registerMemory(4096, 0, backing).ok();
    fresh.close();
    _exit(refused && opened ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  const Reply link = scene.peer.link(scene.rank.address(), scene.rank.descriptor(mine.value()));
  CHECK(std::string(link.message) == "");
}

TEST_CASE("a process may exit while its memories are registered", "[shm]") {
  Scene scene;
  const Socket idle = connectTo(descriptorOf(scene.memory).socketName);
  hello(idle);
  scene.peer.send({Op::kExit});
  CHECK(scene.peer.exitStatus() == 0);
}

TEST_CASE("the exporter's thread and socket end with the last device that needs them", "[shm][threads]") {
  const std::size_t files = openFiles();
  Rank one, other;
  REQUIRE(one.open("shm", {}).ok());
  REQUIRE(other.open("shm", {}).ok());
  CHECK(openFiles() == files);  // nothing is registered yet
  REQUIRE(one.registerMemory(4096, 0, Backing::kFile).ok());
  const auto second = other.registerMemory(4096, 0, Backing::kFile);
  REQUIRE(second.ok());
  const std::string name = descriptorOf(other.descriptor(second.value())).socketName;
  one.close();
  hello(connectTo(name.c_str()));
  other.close();
  CHECK(openFiles() == files);
}

}  // namespace kolo::contract
