// Test cases that hold over every kind of links.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "subgroups.h"
#include "support/settings.h"
#include "support/text.h"
#include "support/watchdog.h"

namespace kolo::test {

// Calls body(config) for communicators over the transports that this program was told of, and over TCP.
inline void withToldAndTcp(const std::function<void(const koloConfig_t&)>& body) {
  for (const char* const transports : {static_cast<const char*>(nullptr), "tcp"})
    body(configWithTransports(transports));
}

// And, in a process of its own, over mixed links: ranks 2k and 2k + 1 map each other's memory, and the others are
// reached by posted links. Call from the main thread, once in a test case.
inline void withEachLinks(const std::function<void(const koloConfig_t&)>& body) {
  extendDeadline(std::chrono::seconds(60));  // for three kinds of links
  if (!hasSettingsOfItsOwn()) withToldAndTcp(body);
  const char* const plugin = std::getenv("KOLO_TEST_LATE_PLUGIN");
  REQUIRE(plugin != nullptr);
  withSettings({{"KOLO_TRANSPORT_PLUGINS", plugin},
                {"KOLO_TRANSPORTS", "late,shm"},
                {"KOLO_TEST_LATE_PER_HOST", "2"},
                {"KOLO_TEST_CONNECT_ALL_RANKS", "1000"}},
               [&] {
                 {
                   World world(3);
                   koloPlan_t plan{};
                   REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 1000, koloInt32, koloSum, 0, &plan));
                   const std::string used = plan.transport;
                   CHECK((contains(used, "late") && contains(used, "shm")));
                 }
                 body(defaultConfig());
               });
}

// The same for function(self) on each of so many ranks. The links of two ranks cannot be mixed.
inline void runOverEachLinks(int ranks, const std::function<void(Self&)>& function) {
  const auto run = [&](const koloConfig_t& config) {
    const World world(ranks, config);
    world.run(function);
  };
  ranks > 2 ? withEachLinks(run) : withToldAndTcp(run);
}

}  // namespace kolo::test
