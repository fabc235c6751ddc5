// What the library tells about itself and its choices.
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/ranks.h"
#include "support/settings.h"

using namespace kolo::test;

namespace {

template <class Fill>
std::string textOf(Fill fill) {
  size_t needed = 0;
  REQUIRE_OK(fill(nullptr, size_t{0}, &needed));
  REQUIRE(needed > 1);
  std::string text(needed + 8, '\x7f');
  REQUIRE_OK(fill(text.data(), needed, nullptr));
  CHECK(text[needed - 1] == '\0');
  CHECK(text[needed] == '\x7f');
  return text.c_str();
}

std::string infoOf(koloInfoTopic_t topic) {
  return textOf([&](char* text, size_t size, size_t* needed) { return koloGetInfo(topic, text, size, needed); });
}

// The name of the algorithm that an explanation calls chosen in this way; "" if none.
std::string chosenIn(const std::string& text, const std::string& way) {
  const size_t mark = text.find("chosen " + way);
  if (mark == std::string::npos) return "";
  const size_t line = text.rfind('\n', mark) + 1;
  return text.substr(line, text.find(' ', line) - line);
}

// What would be executed, by both functions that tell it.
void checkThatTheyAgree(koloComm_t comm, koloCollective_t collective, size_t bytes, koloRedOp_t op) {
  for (const int registered : {0, 1}) {
    INFO(koloCollectiveName(collective) << " of " << bytes << " bytes, registered " << registered);
    koloPlan_t plan{};
    REQUIRE_OK(koloCommGetPlan(comm, collective, bytes, koloInt8, op, registered, &plan));
    const std::string text = textOf([&](char* place, size_t size, size_t* needed) {
      return koloExplain(comm, 0, collective, bytes, koloInt8, op, registered, place, size, needed);
    });
    INFO(text);
    const std::string staged = chosenIn(text, "through staging"), direct = chosenIn(text, "zero-copy");
    const std::string explained = registered != 0 && !direct.empty() ? direct : staged;
    if (explained != plan.algorithm) CHECK(explained == plan.algorithm);  // thousands of assertions would take long
  }
}

}  // namespace

TEST_CASE("every topic of koloGetInfo is JSON with its parts") {
  const auto parse = [](koloInfoTopic_t topic) { return nlohmann::json::parse(infoOf(topic)); };
  CHECK(parse(koloInfoBuild).contains("version"));
  CHECK(parse(koloInfoTopology).at("cores").get<int>() >= 1);
  bool hasSharedMemory = false;
  const nlohmann::json transports = parse(koloInfoTransports), settings = parse(koloInfoSettings);
  for (const auto& transport : transports.at("transports")) {
    hasSharedMemory = hasSharedMemory || transport.at("name") == "shm";
  }
  CHECK(hasSharedMemory);
  bool hasTimeout = false;
  for (const auto& setting : settings.at("settings")) {
    hasTimeout = hasTimeout || setting.at("name") == "KOLO_TIMEOUT_MS";
  }
  CHECK(hasTimeout);
  size_t needed = 0;
  CHECK_CODE(koloInvalidArgument, koloGetInfo(static_cast<koloInfoTopic_t>(99), nullptr, 0, &needed));
}

TEST_CASE("texts are cut to the room there is, with their end") {
  const std::string whole = infoOf(koloInfoBuild);
  char small[8];
  std::memset(small, 'x', sizeof small);
  size_t needed = 0;
  REQUIRE_OK(koloGetInfo(koloInfoBuild, small, 5, &needed));
  CHECK(needed == whole.size() + 1);
  CHECK(std::string(small) == whole.substr(0, 4));
  CHECK(small[5] == 'x');
}

TEST_CASE("koloExplain names every candidate and why the winner won, with and without a communicator") {
  World world(2);
  for (int c = 0; c < koloNumCollectives; ++c) {
    const auto collective = static_cast<koloCollective_t>(c);
    INFO(koloCollectiveName(collective));
    for (koloComm_t comm : {koloComm_t{}, world[0]}) {
      const std::string text = textOf([&](char* place, size_t size, size_t* needed) {
        return koloExplain(comm, 2, collective, 1 << 18, koloFloat32, koloSum, 1, place, size, needed);
      });
      CHECK(text.find(koloCollectiveName(collective)) != std::string::npos);
      if (collective != koloCollectiveSendRecv) CHECK(text.find("chosen") != std::string::npos);
    }
  }
  const std::string wide = textOf([&](char* place, size_t size, size_t* needed) {
    return koloExplain(nullptr, 131072, koloCollectiveAllReduce, 1 << 20, koloFloat32, koloSum, 0, place, size, needed);
  });
  CHECK(wide.find("131072 ranks") != std::string::npos);
  size_t needed = 0;
  CHECK_CODE(koloInvalidRankCount, koloExplain(nullptr, KOLO_MAX_RANKS + 1, koloCollectiveAllReduce, 1, koloFloat32,
                                               koloSum, 0, nullptr, 0, &needed));
  CHECK_CODE(koloInvalidRankCount,
             koloExplain(nullptr, 0, koloCollectiveAllReduce, 1, koloFloat32, koloSum, 0, nullptr, 0, &needed));
  CHECK_CODE(koloInvalidArgument, koloExplain(nullptr, 2, static_cast<koloCollective_t>(77), 1, koloFloat32, koloSum, 0,
                                              nullptr, 0, &needed));
}

TEST_CASE("koloExplain and koloCommGetPlan agree for sizes on both sides of every threshold") {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  for (const int reproducible : {0, 1}) {
    config.reproducible = reproducible;
    World world(4, config);
    for (int c = 0; c < koloNumCollectives; ++c) {
      const auto collective = static_cast<koloCollective_t>(c);
      if (collective == koloCollectiveSendRecv) continue;
      for (size_t power = 1; power <= size_t{1} << 26; power *= 2) {
        for (const size_t bytes : {power - 1, power, power + 1, power + power / 4, power + 3 * power / 4}) {
          checkThatTheyAgree(world[0], collective, bytes, koloSum);
        }
      }
    }
  }
  World world(4);
  koloRedOp_t ordered = koloSum;
  REQUIRE_OK(koloRedOpCreate(
      &ordered, [](void*, const void*, size_t, koloDataType_t, void*) {}, 0, nullptr, world[0]));
  for (const size_t bytes : {size_t{8}, size_t{1000}, size_t{100000}, size_t{10000000}}) {
    checkThatTheyAgree(world[0], koloCollectiveAllReduce, bytes, ordered);
  }
  REQUIRE_OK(koloCommSetAlgorithm(world[0], "all_reduce:ring@1000-"));  // with limits every size is planned by itself
  for (const size_t bytes : {size_t{999}, size_t{1000}, size_t{1001}}) {
    checkThatTheyAgree(world[0], koloCollectiveAllReduce, bytes, koloSum);
  }
}

TEST_CASE("koloCommGetPlan says what is forced, and what is forbidden is not chosen") {
  World world(2);
  for (const char* name : {"one_shot", "two_shot", "ring", "biring", "recursive", "tree"}) {
    REQUIRE_OK(koloCommSetAlgorithm(world[0], (std::string("all_reduce:") + name).c_str()));
    koloPlan_t plan{};
    REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 100000, koloFloat32, koloSum, 0, &plan));
    CHECK(std::string(plan.algorithm) == name);
    CHECK(std::string(plan.transport) == "shm");
    CHECK(plan.zeroCopy == 0);
    CHECK(plan.predictedUs > 0);
    CHECK(plan.chunkBytes > 0);
    CHECK(plan.channels >= 1);
  }
  REQUIRE_OK(koloCommSetAlgorithm(world[0], ""));
  koloPlan_t free{}, forbidden{};
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 100000, koloFloat32, koloSum, 0, &free));
  REQUIRE_OK(koloCommSetAlgorithm(world[0], (std::string("all_reduce:^") + free.algorithm).c_str()));
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 100000, koloFloat32, koloSum, 0, &forbidden));
  CHECK(std::string(free.algorithm) != forbidden.algorithm);
  REQUIRE_OK(koloCommSetAlgorithm(world[0], "all_reduce:ring@1M-"));
  koloPlan_t below{}, above{};
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 1000, koloInt8, koloSum, 0, &below));
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 1 << 20, koloInt8, koloSum, 0, &above));
  CHECK(std::string(above.algorithm) == "ring");
  CHECK(std::string(below.algorithm) != "ring");
}

TEST_CASE("the plan of one rank is itself") {
  World world(1);
  koloPlan_t plan{};
  REQUIRE_OK(koloCommGetPlan(world[0], koloCollectiveAllReduce, 1000, koloFloat32, koloSum, 1, &plan));
  CHECK(std::string(plan.transport) == "self");
}

// Ranks that have no links yet open them in their operations.
TEST_CASE("choices may be asked for while they change, and while operations run", "[threads]") {
  withSettings({{"KOLO_TEST_CONNECT_ALL_RANKS", "1"}}, [] {
    World world(3);
    std::atomic<bool> isOver{false};
    std::atomic<int> asked{0}, refused{0};
    std::thread asker([&] {
      for (char text[4096]; !isOver; ++asked) {
        koloPlan_t plan{};
        if (koloCommGetPlan(world[0], koloCollectiveAllReduce, 1000, koloFloat32, koloSum, 0, &plan) != koloSuccess)
          ++refused;
        if (koloExplain(world[0], 0, koloCollectiveAllReduce, 1000, koloFloat32, koloSum, 0, text, sizeof text,
                        nullptr) != koloSuccess)
          ++refused;
      }
    });
    world.run([&](Self& self) {
      const auto enough = [&](int calls) { return self.rank != 0 || asked >= calls; };
      while (!enough(1)) std::this_thread::yield();
      for (int turn = 0; turn < 100 || !enough(100); ++turn) {
        EXPECT_OK(self, koloCommSetAlgorithm(self.comm, turn % 2 == 0 ? "all_reduce:ring,broadcast:^tree" : ""));
        if (turn >= 100) continue;
        int one = 1, sum = 0;
        EXPECT_OK(self, koloAllReduce(&one, &sum, 1, koloInt32, koloSum, self.comm, nullptr));
      }
    });
    isOver = true;
    asker.join();
    CHECK(refused == 0);
  });
}

TEST_CASE("koloExplainList tells what a call over a list would take, with and without a communicator") {
  World world(3, configWithAlgorithm("all_reduce:tree,all_gather:bruck"));
  std::vector<float> send(9000), recv(9000);
  koloItem_t items[2] = {KOLO_ITEM_INITIALIZER, KOLO_ITEM_INITIALIZER};
  for (koloItem_t& item : items) {
    item.sendbuf = send.data() + 4000 * (&item - items);
    item.recvbuf = recv.data() + 4000 * (&item - items);
    item.count = 1024;
    item.sendtype = koloFloat32;
  }
  const auto explained = [&](koloComm_t comm, koloCollective_t collective, koloRedOp_t op = koloSum) {
    return textOf([&](char* text, size_t size, size_t* needed) {
      return koloExplainList(comm, 3, collective, items, 2, op, 0, 0, text, size, needed);
    });
  };
  const std::string forced = explained(world[0], koloCollectiveAllReduce);
  INFO(forced);
  CHECK(forced.find("all_reduce of 8192 bytes, 3 ranks") != std::string::npos);
  CHECK(forced.find("tree was asked for\n") != std::string::npos);
  CHECK(chosenIn(forced, "through staging") == "tree");
  // What is received in another datatype rules algorithms out; an average of small integers others.
  items[1].transfertype = koloBfloat16;
  CHECK(explained(world[0], koloCollectiveAllReduce).find("tree was asked for but does not fit") != std::string::npos);
  items[1].transfertype = KOLO_SAME_DATATYPE;
  items[0].sendtype = koloInt8;
  CHECK(explained(world[0], koloCollectiveAllReduce, koloAvg).find("folded at once") != std::string::npos);
  CHECK(explained(nullptr, koloCollectiveAllReduce, koloAvg).find("folded at once") != std::string::npos);
  items[0].sendtype = koloFloat32;
  // As it runs: the line of the log has the algorithm, too.
  CHECK(chosenIn(explained(world[0], koloCollectiveAllGather), "through staging") == "bruck");
  CHECK(explained(nullptr, koloCollectiveAllGather).find("all_gather of 8192 bytes, 3 ranks") != std::string::npos);
  for (koloItem_t& item : items) item.count = 10;
  CHECK(explained(world[0], koloCollectiveAllReduce).find("between windows, too") != std::string::npos);
  const auto refused = [&](koloResult_t code, koloCollective_t collective, const koloItem_t* list, int root) {
    char text[8];
    CHECK_CODE(code, koloExplainList(world[0], 0, collective, list, 2, koloSum, root, 0, text, sizeof text, nullptr));
  };
  refused(koloInvalidArgument, koloCollectiveBarrier, items, 0);
  refused(koloInvalidArgument, koloCollectiveSendRecv, items, 0);
  refused(koloInvalidPointer, koloCollectiveAllReduce, nullptr, 0);
  refused(koloInvalidRoot, koloCollectiveReduce, items, 3);
  items[1].sendtype = KOLO_SAME_DATATYPE;
  refused(koloInvalidDatatype, koloCollectiveAllReduce, items, 0);
  CHECK(messageHas("item 1: sendtype is not set (KOLO_SAME_DATATYPE)"));
}
