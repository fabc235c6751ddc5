// Parts of the library while memory is short: what others wait for is told all the same, and nothing is left half done.
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "base/insist.h"
#include "bootstrap/channel.h"
#include "bootstrap/subscriptions.h"
#include "comm/factory.h"
#include "comm/in_turn.h"
#include "process/supply.h"
#include "support/watchdog.h"
#include "unit/bootstrap_fixture.h"

using namespace kolo;
using namespace kolo::bootstrap;
using kolo::test::kNever;
using kolo::test::kSanitized;  // a sanitizer has an operator new of its own
using kolo::test::memorySupply;
using kolo::test::Shortage;

namespace {

// Without an allocation, as the checks of Catch are not.
bool comes(const std::atomic<bool>& event) {
  for (const auto end = Clock::now() + 20s; !event && Clock::now() < end;) std::this_thread::sleep_for(1ms);
  return event;
}

std::array<koloComm_t, 2> twoComms() {
  std::array<koloComm_t, 2> comms{};
  REQUIRE(koloCommInitAll(comms.data(), 2, nullptr) == koloSuccess);
  return comms;
}

}  // namespace

// ---- the control plane

TEST_CASE("a death and a report that find no memory are told once, when there is some", "[optimised]") {
  if (kSanitized) return;
  for (long first = 1; first <= 8; ++first) {
    INFO("allocation " << first);
    Subscriptions all;
    std::array<int, 4> heard{};
    const auto count = [&heard](std::size_t i) { return [&heard, i](const Failure&) { ++heard[i]; }; };
    for (std::size_t i = 0; i < 3; ++i) (void)all.add(i, 1, {0, 1}, count(i), nullptr);
    const Failure death(koloRemoteError, 1, "rank 1 died"), report(koloMismatch, 0, "rank 0 called broadcast");
    {
      const Shortage one(memorySupply, first, 1);
      (void)insist([&] { all.died(death); });
      (void)insist([&] { all.reported(3, report, true); });
    }
    (void)all.add(3, 1, {0}, count(3), nullptr);
    CHECK(heard == std::array{1, 1, 1, 1});
  }
}

TEST_CASE("the death of a rank is told though memory is short for a while", "[optimised]") {
  if (kSanitized) return;
  for (long first = 1; first <= 40; ++first) {
    INFO("from allocation " << first << " on");
    std::vector<ControlPtr> controls = joinAll(newId(), 3);
    std::array<std::atomic<bool>, 2> hasHeard{};
    for (std::size_t i = 0; i < hasHeard.size(); ++i)
      controls[i]->subscribe(1, upTo(3), [&hasHeard, i](const Failure&) { hasHeard[i] = true; });
    bool haveAll = false;
    {
      const Shortage few(memorySupply, first, 3);
      controls[2].reset();  // without leaving
      haveAll = comes(hasHeard[0]) && comes(hasHeard[1]);
    }
    CHECK(haveAll);
    leaveAll(controls);
  }
}

TEST_CASE("a job that fails to form is told of that though memory is short for a while", "[optimised]") {
  if (kSanitized) return;
  for (long first = 1; first <= 20; ++first) {
    INFO("from allocation " << first << " on");
    const koloUniqueId id = newId();
    const Status why(koloSystemError, "it has no device");
    std::array<Status, 2> joined;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&joined, &id, rank] {
        joined[static_cast<std::size_t>(rank)] = withoutExceptions([&] { return join(id, rank, 3, 20000).status(); });
      });
    }
    std::this_thread::sleep_for(10ms);  // both have mostly joined by then; one that is late is refused
    {
      const Shortage few(memorySupply, first, 3);
      (void)insist([&] { (void)decline(id, 2, 3, 20000, why); });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Status& status : joined) {
      INFO(status.message());
      CHECK_FALSE(status.ok());
      CHECK(status.code() != koloTimeout);
    }
  }
}

TEST_CASE("a connection for whose frames there is no memory ends at both ends", "[optimised]") {
  if (kSanitized) return;
  (void)newId();  // the control plane's thread runs
  Reactor& reactor = *Reactor::running();
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const Socket other(ends[1]);
  const auto channel = std::make_shared<Channel>(
      reactor, Socket(ends[0]), Session(Session::Side::kHub, KeyExchange(Secret{}), {}, "client", "hub"));
  std::atomic<bool> isClosed{false};
  std::optional<Shortage> shortage;
  REQUIRE(reactor.call([&] {
    REQUIRE(channel
                ->start({.onFrame = [](std::string_view) { return true; },
                         .onClosed = [&](std::string_view) { isClosed = true; }})
                .ok());
    channel->send(std::string(100, 'x'));
    shortage.emplace(memorySupply, 1, kNever);
  }));
  const bool isTold = comes(isClosed);
  shortage.reset();
  CHECK(isTold);
  char byte = 0;
  CHECK(::recv(other.fd(), &byte, 1, 0) == 0);
}

// ---- requests

TEST_CASE("of the messages of a call all are posted or none", "[optimised]") {
  if (kSanitized) return;
  for (long first = 1; first <= 4; ++first) {
    INFO("allocation " << first);
    comm::Options options;
    options.name = "world";
    options.transports = "shm";
    Result<std::vector<comm::Owned>> ranks = comm::createAll(2, options);
    REQUIRE(ranks.ok());
    comm::Communicator& rank = *ranks.value()[0];
    std::array<int, 2> words{};
    std::array<comm::Message, 2> receives;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      receives[i].recv = &words[i];
      receives[i].count = sizeof words[i];
      receives[i].peer = 1;
    }
    comm::Request request(3);  // one more than there are, and so not over
    bool isPosted = true;
    {
      const comm::InTurn another(rank.turn());
      const Shortage one(memorySupply, first, 1);
      try {
        rank.requests().start(receives.data(), receives.size(), request, false);
      } catch (const std::bad_alloc&) {
        isPosted = false;
      }
    }
    if (!isPosted) {
      for (std::size_t i = 0; i < receives.size(); ++i) CHECK_FALSE(request.end(Status(koloOutOfMemory, {})));
    }
    ranks.value().clear();  // ends what was posted
    CHECK_FALSE(request.isOver());
    (void)request.end({});
    CHECK(request.isOver());
  }
}

TEST_CASE("receives of one call end though there is no memory for the messages that have come", "[optimised]") {
  if (kSanitized) return;
  const std::array<koloComm_t, 2> comms = twoComms();
  std::vector<int> sent(100'000), got(sent.size());
  const auto receiveTwo = [&](std::size_t count) {  // the last call is koloGroupEnd
    REQUIRE(koloGroupStart() == koloSuccess);
    for (const int tag : {1, 2})
      REQUIRE(koloRecvTag(got.data(), count, koloInt32, 1, tag, nullptr, comms[0], nullptr) == koloSuccess);
  };
  std::thread sender([&] {
    for (const std::size_t count : {std::size_t{1}, sent.size()}) {
      std::array<koloRequest_t, 2> requests{};
      for (const int tag : {1, 2})
        (void)koloIsend(sent.data(), count, koloInt32, 0, tag, comms[1], &requests[static_cast<std::size_t>(tag - 1)]);
      if (count != 1) (void)koloSendTag(sent.data(), 1, koloInt32, 0, 3, comms[1], nullptr);
      for (koloRequest_t request : requests) {
        (void)koloRequestWait(request, -1);
        (void)koloRequestFree(request);
      }
    }
  });
  receiveTwo(1);  // the thread has storage for such a group from here on
  REQUIRE(koloGroupEnd() == koloSuccess);
  // Behind the long ones, which have come then.
  REQUIRE(koloRecvTag(got.data(), 1, koloInt32, 1, 3, nullptr, comms[0], nullptr) == koloSuccess);
  receiveTwo(got.size());
  koloResult_t result = koloSuccess;
  {
    const Shortage few(memorySupply, 1, 20);
    result = koloGroupEnd();
  }
  CHECK(result == koloOutOfMemory);
  sender.join();
  for (koloComm_t comm : comms) (void)koloCommAbort(comm);
}

TEST_CASE("a group ends though there is no memory for its request", "[optimised]") {
  if (kSanitized) return;
  std::thread([] {  // which has no spare request
    koloResult_t begun = koloGroupStart(), ended = koloSuccess;
    koloRequest_t request = nullptr;
    {
      const Shortage all(memorySupply, 1, kNever);
      ended = koloIgroupEnd(&request);
    }
    CHECK(begun == koloSuccess);
    CHECK(ended == koloOutOfMemory);
    CHECK(koloGroupEnd() == koloInvalidUsage);  // none is open
  })
      .join();
}

TEST_CASE("a notice needs no memory once it has been asked for", "[optimised]") {
  if (kSanitized) return;
  const std::array<koloComm_t, 2> comms = twoComms();
  std::atomic<bool> isTold{false}, isScarce{false};
  std::thread other([&] {
    for (int i = 0; i < 2; ++i) (void)koloBarrier(comms[1], nullptr);  // what a further one needs is there behind them
    if (comes(isScarce)) (void)koloBarrier(comms[1], nullptr);
  });
  for (int i = 0; i < 2; ++i) REQUIRE(koloBarrier(comms[0], nullptr) == koloSuccess);
  koloRequest_t request = nullptr;
  REQUIRE(koloIbarrier(comms[0], &request) == koloSuccess);
  const auto tell = [](koloResult_t, const char*, void* told) { *static_cast<std::atomic<bool>*>(told) = true; };
  REQUIRE(koloRequestNotify(request, tell, &isTold) == koloSuccess);
  bool hasCome = false;
  {
    const Shortage all(memorySupply, 1, kNever);
    isScarce = true;
    hasCome = comes(isTold);
  }
  CHECK(hasCome);
  other.join();
  CHECK(koloRequestFree(request) == koloSuccess);
  for (koloComm_t comm : comms) CHECK(koloCommDestroy(comm) == koloSuccess);
}
