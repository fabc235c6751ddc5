// The planner: which algorithms fit, what is chosen, and how wishes are read.
#include "planner/planner.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "algorithms/names.h"

namespace {

using namespace kolo;
using device::Algorithm;
using device::Collective;
using planner::Machine;
using planner::Query;

Machine machineOf(int ranks, int cores) {
  Machine machine;
  machine.ranks = ranks;
  machine.cores = cores;
  return machine;
}

std::vector<planner::Wish> wishes(const char* text) {
  auto parsed = planner::parseWishes(text);
  REQUIRE(parsed.ok());
  return parsed.take();
}

constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
                               Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
                               Collective::kGather,    Collective::kScatter,       Collective::kBarrier};

TEST_CASE("planner: whatever is chosen fits, for every collective, size, number of ranks and order") {
  for (const Collective collective : kAll) {
    for (const int ranks : {2, 3, 7, 8, 33, 64}) {
      for (const std::uint64_t bytes : {0ull, 1ull, 40ull, 41ull, 2048ull, 1ull << 16, 1ull << 30}) {
        for (const bool inOrder : {false, true}) {
          for (const bool vector : {false, true}) {
            Query query{.collective = collective, .bytes = bytes, .vector = vector, .inOrder = inOrder};
            query.countsKnown =
                !vector || collective == Collective::kAllGather || collective == Collective::kReduceScatter;
            if (vector && (collective == Collective::kAllReduce || collective == Collective::kReduce ||
                           collective == Collective::kBroadcast || collective == Collective::kBarrier)) {
              continue;
            }
            if (collective == Collective::kBarrier && bytes != 0) continue;
            const Machine machine = machineOf(ranks, 2);
            const planner::Choice choice = planner::choose(query, machine, {});
            INFO(koloCollectiveName(static_cast<koloCollective_t>(collective))
                 << " of " << bytes << " bytes on " << ranks << " ranks, in order " << inOrder << ", vector " << vector
                 << ": " << name(choice.algorithm));
            REQUIRE(planner::fits(choice.algorithm, query, machine));
            REQUIRE(choice.predictedUs >= 0);
            if (inOrder && (collective == Collective::kAllReduce || collective == Collective::kReduceScatter)) {
              REQUIRE((choice.algorithm == Algorithm::kLine || choice.algorithm == Algorithm::kOneShot ||
                       choice.algorithm == Algorithm::kTwoShot));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("planner: the choice does not depend on whether this rank's own buffers are registered") {
  for (const Collective collective : kAll) {
    for (std::uint64_t bytes = 1; bytes <= 1u << 26; bytes *= 4) {
      Query query{.collective = collective, .bytes = collective == Collective::kBarrier ? 0 : bytes};
      const planner::Choice plain = planner::choose(query, machineOf(4, 2), {});
      query.registered = true;
      const planner::Choice registered = planner::choose(query, machineOf(4, 2), {});
      REQUIRE(plain.algorithm == registered.algorithm);
      REQUIRE(plain.direct == registered.direct);
    }
  }
}

TEST_CASE(
    "planner: behind a root that gave, a barrier goes through it where ranks share cores, unless somebody wishes "
    "otherwise") {
  const auto behindRoot = [](Collective collective, const Machine& machine, const char* wished) {
    return planner::choose({.collective = collective}, machine, wishes(wished)).behindRoot;
  };
  const Machine few = machineOf(4, 2);
  CHECK(behindRoot(Collective::kBarrier, few, "") == Algorithm::kTwoShot);
  CHECK(behindRoot(Collective::kBarrier, few, "all_reduce:tree") == Algorithm::kTwoShot);
  CHECK(behindRoot(Collective::kBarrier, few, "barrier:line") == Algorithm::kCount);
  CHECK(behindRoot(Collective::kBarrier, few, "barrier:^two_shot") == Algorithm::kCount);
  CHECK(behindRoot(Collective::kBarrier, machineOf(4, 4), "") == Algorithm::kCount);
  CHECK(behindRoot(Collective::kAllReduce, few, "") == Algorithm::kCount);
  Machine apart = few;
  apart.mapped = false;
  CHECK(behindRoot(Collective::kBarrier, apart, "") == Algorithm::kCount);
}

// Everybody's work counts there, not that of the busiest: two shots and trees only make more of it, and more turns.
TEST_CASE("planner: where ranks share cores, data of some kilobytes comes from a root, or goes to it, in one step") {
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    const auto algorithm = [&](std::uint64_t bytes, const Machine& machine) {
      return planner::choose({.collective = collective, .bytes = bytes}, machine, {}).algorithm;
    };
    INFO(koloCollectiveName(static_cast<koloCollective_t>(collective)));
    for (std::uint64_t bytes = 64; bytes <= 65536; bytes *= 2)
      CHECK(algorithm(bytes, machineOf(8, 2)) == Algorithm::kOneShot);
    CHECK(algorithm(1 << 20, machineOf(8, 2)) != Algorithm::kOneShot);
    CHECK(algorithm(65536, machineOf(8, 8)) != Algorithm::kOneShot);
    CHECK(algorithm(65536, machineOf(2, 2)) ==
          Algorithm::kOneShot);  // the same, and nobody has to do with more than one other
  }
}

// Measured with 2 cores: one_shot is faster up to 64 ranks, as fast as bruck on 128, and takes 2.7 times as long on
// 256, where each rank opens a link to each other one: perf/results/2026-11-30-many-ranks.txt.
TEST_CASE("planner: where many ranks share cores, a short all-gather or barrier does not visit all of them") {
  const auto chosen = [](Collective collective, int ranks, int cores) {
    return choose({.collective = collective, .bytes = 8}, machineOf(ranks, cores), {}).algorithm;
  };
  CHECK(chosen(Collective::kAllGather, 64, 2) == Algorithm::kOneShot);
  CHECK(chosen(Collective::kAllGather, 256, 2) == Algorithm::kBruck);
  CHECK(chosen(Collective::kAllGather, 1024, 2) == Algorithm::kBruck);
  CHECK(chosen(Collective::kBarrier, 1024, 2) == Algorithm::kRecursive);
}

// One behind the headers, which tell of the data, and one behind a second step; or two in each step with a partner of
// its own.
TEST_CASE("planner: a GPU's fences cost by steps, not by peers") {
  const auto fences = [](Algorithm algorithm, bool direct, int ranks, Collective collective = Collective::kAllReduce) {
    const Query query{.collective = collective, .bytes = 1024};
    Machine machine = machineOf(ranks, ranks);
    const double without = planner::predictUs(algorithm, direct, query, machine);
    machine.fenceUs = 1;
    return std::lround(planner::predictUs(algorithm, direct, query, machine) - without);
  };
  for (const int ranks : {2, 8, 64}) {
    CHECK(fences(Algorithm::kOneShot, false, ranks) == 1);
    CHECK(fences(Algorithm::kTwoShot, false, ranks) == 2);
    CHECK(fences(Algorithm::kOneShot, true, ranks) == 0);
    CHECK(fences(Algorithm::kTwoShot, true, ranks) == 0);
    CHECK(fences(Algorithm::kRecursive, false, ranks, Collective::kBarrier) == 0);
  }
  CHECK(fences(Algorithm::kRecursive, false, 8) == 6);
}

TEST_CASE("planner: a GPU's packets have no fence, and are for what is short") {
  Machine machine = machineOf(8, 8);
  machine.fenceUs = 1;
  machine.hopUs = 2;
  machine.cacheGBps = machine.memoryGBps = 200;
  machine.blockGBps = 40;
  machine.channels = 8;
  const auto choice = [&](std::uint64_t bytes, Collective collective = Collective::kAllReduce) {
    return choose({.collective = collective, .bytes = bytes}, machine, wishes("all_reduce:one_shot"));
  };
  CHECK_FALSE(choice(1024).inPackets);  // nothing goes so on this machine
  machine.packetBytes = 16 << 10;
  CHECK(choice(41).inPackets);
  CHECK(choice(4096).inPackets);
  CHECK(choice(32 << 10).inPackets);
  CHECK_FALSE(choice(1 << 20).inPackets);  // too long for eight blocks
  CHECK_FALSE(choice(0).inPackets);
  CHECK_FALSE(
      choose({.collective = Collective::kAllReduce, .bytes = 1024}, machine, wishes("all_reduce:ring")).inPackets);
  const Query query{.collective = Collective::kAllReduce, .bytes = 1024};
  const double inPackets = planner::predictUs(Algorithm::kOneShot, false, query, machine);
  machine.fenceUs = 5;
  CHECK(planner::predictUs(Algorithm::kOneShot, false, query, machine) == inPackets);
  machine.packetBytes = 0;
  CHECK(planner::predictUs(Algorithm::kOneShot, false, query, machine) > inPackets + 5);
  machine.packetBytes = 16 << 10;
  for (const Query& other :
       {Query{.bytes = 1024, .isList = true}, Query{.bytes = 1024, .reduction = planner::kPreMulSum},
        Query{.collective = Collective::kGather, .bytes = 1024, .vector = true, .countsKnown = false}})
    CHECK_FALSE(planner::goesInPackets(Algorithm::kOneShot, other, machine));
}

TEST_CASE("planner: a GPU's two-shots, trees and broadcasts go in packets while their pieces fit") {
  Machine machine = machineOf(8, 8);
  machine.fenceUs = 1;
  machine.hopUs = 2;
  machine.cacheGBps = machine.memoryGBps = 200;
  machine.blockGBps = 40;
  machine.packetBytes = 16 << 10;
  const auto goes = [&](Algorithm algorithm, Collective collective, std::uint64_t bytes) {
    return planner::goesInPackets(algorithm, {.collective = collective, .bytes = bytes}, machine);
  };
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    CHECK(goes(Algorithm::kTwoShot, collective, 1024));
    CHECK(goes(Algorithm::kTree, collective, 1024));
    CHECK_FALSE(goes(Algorithm::kTree, collective, (16 << 10) + 1));
    CHECK_FALSE(goes(Algorithm::kTwoShot, collective, 1 << 20));
  }
  CHECK(goes(Algorithm::kTwoShot, Collective::kAllReduce, 20 << 10));  // its slices are an eighth
  for (const Collective collective : {Collective::kGather, Collective::kScatter, Collective::kBarrier})
    CHECK_FALSE(goes(Algorithm::kTree, collective, 64));
  CHECK_FALSE(goes(Algorithm::kRing, Collective::kAllReduce, 1024));
}

TEST_CASE("planner: small operations use the blocks of a GPU that they can") {
  Machine machine = machineOf(8, 8);
  machine.channels = 21;
  const auto channels = [&](std::uint64_t bytes) {
    return planner::channelsFor(Algorithm::kTwoShot, {.collective = Collective::kAllReduce, .bytes = bytes}, machine);
  };
  CHECK(channels(0) == 1);
  CHECK(channels(4096) == 1);
  CHECK(channels(64 << 10) == 8);
  CHECK(channels(1 << 20) == 21);
}

// As measured on 8 ranks and 2 cores (kolo-perf gather scatter --ranks 8): 16 us between windows, 29 through staging,
// for blocks of 32 KiB. Counted as if each rank had the root's work it would be 16 times as long.
TEST_CASE("planner: what a root gathers or scatters is moved once, not by every rank") {
  for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
    const auto predicted = [&](const Machine& machine, bool direct) {
      const Query query{.collective = collective, .bytes = 32768};
      return planner::predictUs(Algorithm::kOneShot, direct, query, machine);
    };
    const Machine shared = machineOf(8, 2), own = machineOf(8, 8);
    CHECK(predicted(shared, false) < 4 * predicted(own, false));  // a quarter of the cores
    CHECK(predicted(shared, true) < predicted(shared, false));
    const planner::Choice choice = planner::choose({.collective = collective, .bytes = 32768}, shared, {});
    CHECK(choice.algorithm == Algorithm::kOneShot);
    CHECK(choice.direct == Algorithm::kOneShot);
  }
}

TEST_CASE("planner: between hosts a barrier does not go through one rank") {
  Machine machine = machineOf(16, 16);
  machine.mapped = false;
  for (const int hosts : {2, 4, 8}) {
    machine.hosts = hosts;
    machine.perHost = 16 / hosts;
    CHECK(planner::choose({.collective = Collective::kBarrier}, machine, {}).algorithm != Algorithm::kTwoShot);
    CHECK(planner::choose({.collective = Collective::kBarrier}, machine, wishes("barrier:two_shot")).algorithm ==
          Algorithm::kTwoShot);
  }
}

TEST_CASE("planner: a wish forces where it fits and in its range only; the last one wins") {
  const auto list = wishes("all_reduce:ring@1K-64K,all_reduce:tree@8K-,broadcast:tree");
  const auto chosen = [&](Collective collective, std::uint64_t bytes) {
    return planner::choose({.collective = collective, .bytes = bytes}, machineOf(4, 4), list).algorithm;
  };
  CHECK(chosen(Collective::kAllReduce, 1024) == Algorithm::kRing);
  CHECK(chosen(Collective::kAllReduce, 8191) == Algorithm::kRing);
  CHECK(chosen(Collective::kAllReduce, 8192) == Algorithm::kTree);
  CHECK(chosen(Collective::kAllReduce, 1 << 30) == Algorithm::kTree);
  CHECK(chosen(Collective::kAllReduce, 8) == planner::choose({.bytes = 8}, machineOf(4, 4), {}).algorithm);
  CHECK(chosen(Collective::kBroadcast, 100000) == Algorithm::kTree);
  CHECK(chosen(Collective::kBroadcast, 0) == Algorithm::kLine);  // nothing to move: the line alone
}

TEST_CASE("planner: an order-breaking wish yields to a fold in rank order") {
  const Query query{.collective = Collective::kAllReduce, .bytes = 1 << 20, .inOrder = true};
  for (const char* text : {"all_reduce:ring", "all_reduce:biring", "all_reduce:recursive", "all_reduce:tree"}) {
    const Algorithm algorithm = planner::choose(query, machineOf(4, 4), wishes(text)).algorithm;
    CHECK((algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot));
  }
}

TEST_CASE("planner: a forbidden algorithm is not chosen, staged or zero-copy") {
  const auto list = wishes("all_reduce:^two_shot,all_reduce:^ring@1M-");
  for (std::uint64_t bytes = 64; bytes <= 1u << 28; bytes *= 4) {
    const planner::Choice choice = planner::choose({.bytes = bytes}, machineOf(4, 4), list);
    CHECK(choice.algorithm != Algorithm::kTwoShot);
    CHECK(choice.direct != Algorithm::kTwoShot);
    if (bytes >= 1u << 20) CHECK(choice.algorithm != Algorithm::kRing);
  }
}

TEST_CASE("planner: forbidding everything does not make an operation impossible") {
  const auto list = wishes("broadcast:^line,broadcast:^one_shot,broadcast:^two_shot,broadcast:^ring,broadcast:^tree");
  const Machine machine = machineOf(4, 4);
  for (const std::uint64_t bytes : {0ull, 8ull, 100ull, 1ull << 20}) {
    const Query query{.collective = Collective::kBroadcast, .bytes = bytes};
    CHECK(planner::fits(planner::choose(query, machine, list).algorithm, query, machine));
  }
}

TEST_CASE("planner: no algorithm with one entry for each rank on its stack is chosen beyond 64 ranks") {
  for (const std::uint64_t bytes : {0ull, 8ull, 4096ull, 1ull << 24}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
      const planner::Choice choice = planner::choose({.collective = collective, .bytes = bytes}, machineOf(200, 8), {});
      INFO(name(choice.algorithm) << " of " << bytes << " bytes");
      CHECK(choice.algorithm != Algorithm::kOneShot);
      CHECK(choice.algorithm != Algorithm::kTwoShot);
      CHECK(choice.algorithm != Algorithm::kLine);
      CHECK(choice.direct == Algorithm::kCount);
    }
  }
}

TEST_CASE("S0.1 algorithms are forced and forbidden by ranks, elements, bytes and reduction") {
  const Query query{.collective = Collective::kAllReduce, .bytes = 1 << 20, .elements = 1 << 18};
  const auto algorithm = [&](const char* text, Query asked, int ranks) {
    return planner::choose(asked, machineOf(ranks, 8), wishes(text)).algorithm;
  };
  const auto isForced = [&](const char* text, const Query& asked, int ranks) {
    return algorithm(text, asked, ranks) == Algorithm::kRing;
  };
  REQUIRE_FALSE(isForced("", query, 4));
  // The document's rule: more than two ranks, and more than 256,000 elements.
  const char* const rule = "all_reduce:one_shot,all_reduce:ring/ranks=3-/elements=256001-";
  CHECK(isForced(rule, query, 3));
  CHECK(algorithm(rule, query, 2) == Algorithm::kOneShot);
  Query edge = query;
  edge.elements = 256001;
  CHECK(isForced(rule, edge, 3));
  edge.elements = 256000;
  CHECK(algorithm(rule, edge, 3) == Algorithm::kOneShot);
  // One number, and both ends.
  CHECK(isForced("all_reduce:ring/ranks=4", query, 4));
  CHECK_FALSE(isForced("all_reduce:ring/ranks=4", query, 5));
  CHECK(isForced("all_reduce:ring/ranks=3-4", query, 4));
  CHECK(isForced("all_reduce:ring/bytes=1M", query, 4));
  CHECK(isForced("all_reduce:ring@1M-/ranks=-4", query, 4));
  CHECK_FALSE(isForced("all_reduce:ring@2M-/ranks=-4", query, 4));
  // The reduction.
  Query maximum = query;
  maximum.reduction = koloMax;
  CHECK(isForced("all_reduce:ring/op=sum", query, 4));
  CHECK_FALSE(isForced("all_reduce:ring/op=sum", maximum, 4));
  CHECK(isForced("all_reduce:ring/op=sum+max", maximum, 4));
  Query user = query;
  user.reduction = planner::kUserReduction;
  CHECK(isForced("all_reduce:ring/op=user", user, 4));
  CHECK_FALSE(isForced("all_reduce:ring/op=pre_mul_sum", user, 4));
  user.reduction = planner::kPreMulSum;
  CHECK(isForced("all_reduce:ring/op=avg+pre_mul_sum", user, 4));
  // Forbidden likewise.
  const Algorithm usual = algorithm("", query, 4);
  const std::string forbid = std::string("all_reduce:^") + name(usual);
  CHECK(algorithm((forbid + "/op=sum").c_str(), query, 4) != usual);
  CHECK(algorithm((forbid + "/op=max").c_str(), query, 4) == usual);
  CHECK(algorithm((forbid + "/ranks=5-").c_str(), query, 4) == usual);
}

TEST_CASE("S1.1 an algorithm is forced for registered buffers, or for others, alone") {
  const Machine machine = machineOf(4, 4);
  for (const std::uint64_t bytes : {8ull, 40ull, 1024ull, 128ull << 10, 1ull << 20}) {
    const Query query{.collective = Collective::kAllReduce, .bytes = bytes, .elements = bytes / 4};
    const auto choose = [&](const char* text) { return planner::choose(query, machine, wishes(text)); };
    INFO(bytes << " bytes");
    const planner::Choice usual = choose("");
    // The document's rule: registered, a sum, and 128 KiB at most.
    const planner::Choice ruled = choose("all_reduce:one_shot/bytes=-128K/op=sum/registered=yes");
    CHECK(ruled.direct == (bytes <= 128 << 10 ? Algorithm::kOneShot : usual.direct));
    if (usual.algorithm != Algorithm::kLine) CHECK(ruled.algorithm == usual.algorithm);
    CHECK((bytes > 128 << 10 || ruled.algorithm != Algorithm::kLine));
    const planner::Choice staged = choose("all_reduce:ring/registered=no");
    CHECK(staged.algorithm == Algorithm::kRing);
    const planner::Choice both = choose("all_reduce:ring/registered=no,all_reduce:two_shot/registered=yes");
    CHECK(both.algorithm == Algorithm::kRing);
    CHECK(both.direct == Algorithm::kTwoShot);
    // A line, which knows nothing of buffers, leaves no choice.
    if (bytes <= 40) {
      const planner::Choice line = choose("all_reduce:line/registered=no,all_reduce:two_shot/registered=yes");
      CHECK(line.algorithm == Algorithm::kLine);
      CHECK(line.direct == Algorithm::kCount);
    }
    // Forbidden between windows, not elsewhere.
    const planner::Choice forbidden = choose("all_reduce:^one_shot/registered=yes,all_reduce:^two_shot/registered=yes");
    CHECK(forbidden.algorithm == usual.algorithm);
    CHECK(forbidden.direct == Algorithm::kCount);
  }
}

TEST_CASE("S0.1 conditions on sizes and reductions have every call planned by itself; those on ranks do not") {
  for (const char* text :
       {"all_reduce:ring@1M-", "all_reduce:ring/bytes=5", "all_reduce:ring/elements=5-", "all_reduce:ring/op=sum"}) {
    CHECK(planner::tellCallsApart(wishes(text)));
  }
  for (const char* text : {"", "all_reduce:ring", "all_reduce:ring/ranks=3-", "all_reduce:one_shot/registered=yes"}) {
    CHECK_FALSE(planner::tellCallsApart(wishes(text)));
  }
}

TEST_CASE("planner: malformed wishes are refused with the part that is wrong") {
  const auto refused = [](const char* text, const char* part) {
    const auto parsed = planner::parseWishes(text);
    INFO(text);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.status().code() == koloInvalidArgument);
    CHECK(parsed.status().message().find(part) != std::string::npos);
  };
  refused("ring", "ring");
  refused("allreduce:ring", "allreduce");
  refused("all_reduce:rings", "rings");
  refused("all_reduce:rings", "mesh_ring");  // the last of those that there are
  refused("all_reduce:ring@1M", "1M");
  refused("all_reduce:ring@x-1M", "x");
  refused("all_reduce:ring,,broadcast:tree", "");
  refused("send_recv:ring", "send_recv");
  refused("all_reduce:ring/", "is no condition; expected bytes=LOW-HIGH");
  refused("all_reduce:ring/size=3", "size=3");
  refused("all_reduce:ring/ranks=", "a range of ranks");
  refused("all_reduce:ring/ranks=4-3", "4-3");
  refused("all_reduce:ring/elements=x", "a range of elements");
  refused("all_reduce:ring/op=sums", "\"sums\" is no reduction; expected some of sum prod");
  refused("all_reduce:ring/op=sum+", "\"\" is no reduction");
  refused("broadcast:tree/op=sum", "broadcast has no reduction");
  refused("barrier:tree/registered=yes", "a barrier has no buffers");
  refused("all_reduce:one_shot/registered=maybe", "expected registered=yes or registered=no");
  refused("all_reduce:ring/registered=yes", "ring does not work between windows; expected one of one_shot two_shot");
  CHECK(planner::parseWishes("").value().empty());
}

TEST_CASE("planner: an explanation names every written algorithm and the winner") {
  const Query query{.collective = Collective::kAllReduce, .bytes = 1 << 20};
  const std::string text = planner::explain(query, machineOf(4, 4), {});
  for (const char* word : {"line", "one_shot", "two_shot", "ring", "biring", "recursive", "tree"}) {
    CHECK(text.find(word) != std::string::npos);
  }
  CHECK(text.find("bruck") == std::string::npos);
  Query planned = query;
  planned.bytes = planner::sizeForClassOf(query.bytes);
  CHECK(planned.bytes == 3 << 19);
  const std::string winner = name(planner::choose(planned, machineOf(4, 4), {}).algorithm);
  CHECK(text.find(winner + " has the least predicted time") != std::string::npos);
}

}  // namespace

TEST_CASE("planner: a wish for an algorithm that a collective does not have names those it has") {
  const auto wishes = kolo::planner::parseWishes("all_reduce:pairwise");
  REQUIRE_FALSE(wishes.ok());
  CHECK(wishes.status().message().find("all_reduce") != std::string::npos);
  CHECK(wishes.status().message().find("biring") != std::string::npos);
  CHECK(wishes.status().message().find("bruck") == std::string::npos);
}
