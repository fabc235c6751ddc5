// Ranks as threads: a communicator of n of them, and a function that runs on each.
//
// Thread safety: a World belongs to one thread; a Self to the thread of its rank.
#pragma once

#include <kolo/kolo.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/deadline.h"
#include "support/watchdog.h"

namespace kolo::test {

inline std::string nameOf(koloResult_t code) { return std::to_string(code) + " (" + koloGetErrorString(code) + ")"; }

// One rank inside World::run. Catch's assertions are not for threads: what a rank finds is kept and asserted after the
// join.
struct Self {
  int rank;
  int ranks;
  koloComm_t comm;
  std::vector<std::string> faults;

  void fault(const char* where, const std::string& what) {
    faults.push_back(std::string(where) + ": rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": " +
                     what);
  }
};

#define EXPECT(self, condition)                                       \
  do {                                                                \
    ::kolo::test::place(KOLO_HERE, (self).rank);                      \
    if (!(condition)) (self).fault(KOLO_HERE, "not so: " #condition); \
  } while (false)

// The call returns this code; otherwise the message is shown.
#define EXPECT_CODE(self, code, call)                                                             \
  do {                                                                                            \
    ::kolo::test::place(KOLO_HERE ": " #call, (self).rank);                                       \
    if (const koloResult_t koloGot = (call); koloGot != (code)) {                                 \
      (self).fault(KOLO_HERE, #call " gave " + ::kolo::test::nameOf(koloGot) + ", expected " +    \
                                  ::kolo::test::nameOf(code) + ": " + koloGetLastError(nullptr)); \
    }                                                                                             \
  } while (false)
// The same of CHECK_WITHIN (support/deadline.h).
#define EXPECT_WITHIN(self, limit, begin)                                                              \
  if (const auto koloLate = ::kolo::test::lateness(std::chrono::steady_clock::now() - (begin), limit); \
      !koloLate.empty())                                                                               \
  (self).fault(KOLO_HERE, koloLate)
#define EXPECT_OK(self, call) EXPECT_CODE(self, koloSuccess, call)

// The same on the main thread, by Catch.
#define CHECK_CODE(code, call)                                                              \
  do {                                                                                      \
    ::kolo::test::place(KOLO_HERE ": " #call);                                              \
    const koloResult_t koloGot = (call);                                                    \
    INFO(#call ": " << ::kolo::test::nameOf(koloGot) << ": " << koloGetLastError(nullptr)); \
    CHECK(koloGot == (code));                                                               \
  } while (false)
#define REQUIRE_OK(call)                                                                    \
  do {                                                                                      \
    ::kolo::test::place(KOLO_HERE ": " #call);                                              \
    const koloResult_t koloGot = (call);                                                    \
    INFO(#call ": " << ::kolo::test::nameOf(koloGot) << ": " << koloGetLastError(nullptr)); \
    REQUIRE(koloGot == koloSuccess);                                                        \
  } while (false)

inline bool messageHas(const char* part) { return std::strstr(koloGetLastError(nullptr), part) != nullptr; }

// What the communicator has failed with, once this rank knows of it; success: it has not failed within 20 s. Another
// rank may know of a failure before, so that until here this one's calls may succeed.
inline koloResult_t awaitFailure(koloComm_t comm) {
  place(KOLO_HERE ": waiting for the news of a failure");
  koloResult_t failure = koloSuccess;
  for (int i = 0; i < 4000 && failure == koloSuccess; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i == 0 ? 0 : 5));
    if (const koloResult_t asked = koloCommGetAsyncError(comm, &failure); asked != koloSuccess) return asked;
  }
  return failure;
}

inline koloConfig_t defaultConfig() { return KOLO_CONFIG_INITIALIZER; }

inline koloConfig_t configWithAlgorithm(const char* algorithm) {
  koloConfig_t config = defaultConfig();
  config.algorithm = algorithm;
  return config;
}

// Runs function(self) for each communicator on a thread of its own and asserts that no rank found a fault.
inline void runOn(const std::vector<koloComm_t>& comms, const std::function<void(Self&)>& function) {
  std::vector<Self> selves;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    selves.push_back({static_cast<int>(i), static_cast<int>(comms.size()), comms[i], {}});
  }
  std::vector<std::thread> threads;
  for (Self& self : selves) threads.emplace_back([&self, &function] { function(self); });
  place(KOLO_HERE ": joining the ranks");
  for (std::thread& thread : threads) thread.join();
  for (const Self& self : selves) {
    for (const std::string& fault : self.faults) FAIL_CHECK(fault);
  }
}

class World {
 public:
  explicit World(int ranks, const koloConfig_t* config = nullptr) : comms_(static_cast<std::size_t>(ranks)) {
    REQUIRE_OK(koloCommInitAll(comms_.data(), ranks, config));
  }
  World(int ranks, const koloConfig_t& config) : World(ranks, &config) {}
  ~World() {
    for (koloComm_t comm : comms_) {
      if (comm != nullptr) koloCommDestroy(comm);
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(comms_.size()); }
  koloComm_t& operator[](int rank) { return comms_[static_cast<std::size_t>(rank)]; }
  const std::vector<koloComm_t>& comms() const { return comms_; }
  void run(const std::function<void(Self&)>& function) const { runOn(comms_, function); }

 private:
  std::vector<koloComm_t> comms_;
};

// That a communicator still does its work: an all-reduce whose result is known.
inline void expectWorks(Self& self) {
  int mine = self.rank + 1, sum = 0;
  EXPECT_OK(self, koloAllReduce(&mine, &sum, 1, koloInt32, koloSum, self.comm, nullptr));
  EXPECT(self, sum == self.ranks * (self.ranks + 1) / 2);
}

}  // namespace kolo::test
