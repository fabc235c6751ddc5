// What a system has no more of is a result: memory for an operation, the barrier that a bias needs.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <new>
#include <thread>
#include <vector>

#include "base/bias.h"
#include "base/quiet_thread.h"
#include "comm/factory.h"
#include "comm/in_turn.h"
#include "comm/stream.h"
#include "support/refusals.h"
#include "support/text.h"

namespace kolo::comm {
namespace {

using test::contains;

std::vector<Owned> twoRanks() {
  Options options;
  options.name = "world";
  options.transports = "shm";
  options.timeoutMs = 60000;
  Result<std::vector<Owned>> created = createAll(2, options);
  REQUIRE(created.status().message() == "");
  return created.take();
}

}  // namespace

TEST_CASE("a task of a stream that finds no memory is the stream's error", "[exhaustion][threads]") {
  Stream stream;
  stream.enqueue([]() -> Status { throw std::bad_alloc(); });
  bool isNextDone = false;
  stream.enqueue([&] {
    isNextDone = true;
    return Status();
  });
  CHECK(stream.synchronize().code() == koloOutOfMemory);
  CHECK(isNextDone);
}

TEST_CASE("a thread of the library that finds no memory ends alone", "[exhaustion]") {
  startQuietly([] { throw std::bad_alloc(); }).join();
}

TEST_CASE("a request that finds no memory ends with that on all ranks, and calls after it do not wait",
          "[exhaustion][threads]") {
  const std::vector<Owned> ranks = twoRanks();
  Request request(1);
  ranks[0]->requests().start([]() -> Status { throw std::bad_alloc(); }, request);
  ranks[0]->requests().wait(request, Requests::kNever);
  CHECK(request.status().code() == koloOutOfMemory);
  CHECK_FALSE(ranks[0]->requests().hasCollectives());
  ranks[0]->requests().executeCollectives();
  const unsigned char sent = 1;
  for (const Owned& rank : ranks) {  // the other one is told, and in the same words
    while (!rank->failed()) std::this_thread::yield();
    const Message message{.isSend = true, .send = &sent, .count = 1, .peer = 1 - rank->rank()};
    Request its(1);
    rank->requests().start(&message, 1, its, false);
    rank->requests().wait(its, Requests::kNever);
    CHECK(its.status().code() == koloOutOfMemory);
    CHECK(rank->failure().code() == koloOutOfMemory);
    CHECK(contains(rank->failure().message(), "on rank 0: out of memory"));
  }
}

TEST_CASE("an exception in an operation ends the communicator", "[exhaustion]") {
  const std::vector<Owned> ranks = twoRanks();
  const Status status = orFail(*ranks[1], []() -> Status { throw std::bad_alloc(); });
  CHECK(status.code() == koloOutOfMemory);
  CHECK(ranks[1]->failed());
}

#ifndef __SANITIZE_THREAD__  // it has no threads in a child of a process that had some
// In a process of its own, whose biases end with that.
TEST_CASE("where the barrier is refused later, biases are taken away all the same, and given no more", "[exhaustion]") {
  if (!Bias::isPossible()) return;
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Bias bias;
    const auto isRefused = [&] {
      bias.give();
      if (!bias.enter()) return 1;
      int problem = 0;
      std::thread([&] {
        if (!test::refuse({SYS_membarrier}, EPERM)) return;  // of this thread alone
        bias.revoke();
        if (bias.isLeft()) problem = 2;
      }).join();
      bias.leave();
      if (problem == 0 && !bias.isLeft()) problem = 3;
      bias.give();
      if (problem == 0 && bias.enter()) problem = 4;
      return problem;
    };
    _exit(isRefused());
  }
  REQUIRE(child > 0);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

}  // namespace kolo::comm
