// Mocked NICs with properties of a test's own, two ranks of this process that are linked by them, and a stream between
// these whose every byte is checked.
#pragma once

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "mock_verbs/mock_verbs.h"
#include "posted_pair.h"

namespace kolo::contract {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using test::MockVerbs;

// These are for the mock alone.
inline bool isReal() { return std::getenv("KOLO_TEST_REAL_VERBS") != nullptr; }

// Devices with other properties than the suite's; all that was made of them must be given back.
struct World {
  explicit World(const MockVerbs& properties = {}) {
    CHECK(MockVerbs::remove() == "");
    properties.install();
  }
  ~World() {
    CHECK(MockVerbs::remove() == "");
    MockVerbs{}.install();
  }
};

inline HostOptions with(const std::string& settings, int rank = 0, int timeoutMs = 20000) {
  HostOptions options;
  std::snprintf(options.settings, sizeof options.settings, "%s", settings.c_str());
  options.rank = rank;
  options.timeoutMs = timeoutMs;
  return options;
}

// Two ranks of this process, each with an inbox (0) and an outbox (1), and links both ways.
struct Two {
  explicit Two(const std::string& settings = "", int timeoutMs = 20000, const char* nearFirst = "",
               const char* nearSecond = "") {
    for (int i = 0; i < 2; ++i) {
      HostOptions options = with(settings, i, timeoutMs);
      std::snprintf(options.nearNics, sizeof options.nearNics, "%s", i == 0 ? nearFirst : nearSecond);
      REQUIRE_OK(ranks[i].open("ib", options));
      registered(ranks[i], kInbox);
      registered(ranks[i], kInbox);
      std::memset(ranks[i].data(0), 0, kSignals);
    }
    links[0] = linked(ranks[0], ranks[1].address(), ranks[1].descriptor(0));
    links[1] = linked(ranks[1], ranks[0].address(), ranks[0].descriptor(0));
  }
  PostedEnd end(int i) const { return {&ranks[i], 1 - i, links[i], 0, 1}; }
  std::uint32_t rails() const { return ranks[0].rails(links[0]); }
  // Progress of both until both have lost the link.
  std::string awaitLoss() {
    Status lost[2];
    for (const auto deadline = Clock::now() + 15s; Clock::now() < deadline && (lost[0].ok() || lost[1].ok());) {
      for (int i = 0; i < 2; ++i) {
        ranks[i].progress(1 - i, 200);
        lost[i] = ranks[i].state(links[i]);
      }
    }
    for (int i = 0; i < 2; ++i) {
      CHECK(lost[i].code() == koloRemoteError);
      CHECK(contains(lost[i].message(), "rank " + std::to_string(1 - i)));
      CHECK(ranks[i].unfinished(links[i]) == 0);
      CHECK(ranks[i].queued(links[i]) == 0);
      CHECK(ranks[i].put(links[i], {.memory = 1, .bytes = 8}).code() == koloRemoteError);
    }
    return lost[0].message();
  }

  Rank ranks[2];
  std::size_t links[2];
};

// ---- a stream as the core sends it: slots in a mirror, each written anew only when the receiver has shown that it has
// seen it

inline constexpr std::uint64_t kSlots = 16;
inline constexpr std::size_t kSlotBytes = 64 << 10;

inline std::uint64_t wordAt(const PostedEnd& end, std::size_t at) {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(end.rank->data(end.inbox) + at))
      .load(std::memory_order_acquire);
}
inline std::size_t bytesOf(std::uint64_t n) {
  return n % 3 == 0 ? 56 : n % 3 == 1 ? 1000 + n % 7 : kSlotBytes - n % 64;
}
inline std::size_t placeOf(std::uint64_t n) { return kSignals + n % kSlots * kSlotBytes; }
inline std::uint64_t valueOf(std::uint64_t n, std::size_t i) { return (n << 24 ^ i) * 0x9e3779b97f4a7c15u; }

inline void fillSlot(unsigned char* to, std::uint64_t n) {
  for (std::size_t i = 0; i < bytesOf(n); i += 8) {
    const std::uint64_t value = valueOf(n, i);
    std::memcpy(to + i, &value, std::min<std::size_t>(8, bytesOf(n) - i));
  }
}
inline bool isRight(const unsigned char* slot, std::uint64_t n) {
  for (std::size_t i = 0; i < bytesOf(n); i += 8) {
    const std::uint64_t value = valueOf(n, i);
    if (std::memcmp(slot + i, &value, std::min<std::size_t>(8, bytesOf(n) - i)) != 0) return false;
  }
  return true;
}

// Waits for a word to reach a value, and that it never goes back.
inline std::string awaitRising(const PostedEnd& end, std::size_t at, std::uint64_t value, std::uint64_t* seen) {
  const auto deadline = Clock::now() + 60s;
  for (;;) {
    const std::uint64_t now = wordAt(end, at);
    if (now < *seen) return "a signal went back";
    *seen = now;
    if (now >= value) return "";
    if (Clock::now() > deadline) return "a signal does not come";
    if (!end.rank->progress(end.peer, 200)) {
      if (const Status state = end.rank->state(end.link); !state.ok()) return state.message();
    }
  }
}

// Message n goes by rail n % rails, and is counted there; the credits come back by rail 0.
inline std::string sendStream(const PostedEnd& end, std::uint64_t count, std::uint32_t rails,
                              const std::function<void(std::uint64_t)>& at) {
  std::uint64_t credits = 0;
  for (std::uint64_t n = 1; n <= count; ++n) {
    if (at) at(n);
    if (n > kSlots) {
      if (std::string problem = awaitRising(end, 512, n - kSlots, &credits); problem != "") return problem;
    }
    const std::size_t place = placeOf(n);
    fillSlot(end.rank->data(end.outbox) + place, n);
    const auto rail = static_cast<std::uint32_t>(n % rails);
    const Status status = putAll(end, {.memory = end.outbox,
                                       .from = place,
                                       .bytes = bytesOf(n),
                                       .to = place,
                                       .signalTo = 8 * rail,
                                       .signal = n,
                                       .rail = rail});
    if (!status.ok()) return status.message();
  }
  if (std::string problem = awaitRising(end, 512, count, &credits); problem != "") return problem;
  return settle(end).message();
}

inline std::string takeStream(const PostedEnd& end, std::uint64_t count, std::uint32_t rails) {
  std::uint64_t seen[4] = {};
  for (std::uint64_t n = 1; n <= count; ++n) {
    if (std::string problem = awaitRising(end, 8 * (n % rails), n, &seen[n % rails]); problem != "") return problem;
    if (!isRight(end.rank->data(end.inbox) + placeOf(n), n)) return "wrong bytes in message " + std::to_string(n);
    const Status status = putAll(end, {.memory = end.outbox, .signalTo = 512, .signal = n});
    if (!status.ok()) return status.message();
  }
  return settle(end).message();
}

// Both sides at once; `at` is called before each message is sent.
inline void stream(Two& two, std::uint64_t count, const std::function<void(std::uint64_t)>& at = {}) {
  std::string problem = "not ended";
  std::thread taker([&] { problem = takeStream(two.end(1), count, two.rails()); });
  CHECK(sendStream(two.end(0), count, two.rails(), at) == "");
  taker.join();
  CHECK(problem == "");
}

inline constexpr std::uint64_t kCount = 600;

}  // namespace kolo::contract
