// Figures, not checks; not run by itself: kolo-contract "[bench]".
#include <catch2/catch.hpp>
#include <tuple>

#include "bench.h"
#include "posted_pair.h"

namespace kolo::contract {

TEST_CASE("figures of posted links beside plain sockets", "[.bench]") {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  const std::tuple<const char*, std::uint64_t, std::size_t, std::size_t> cases[] = {
      {"8 bytes", 20000, 8, 8},
      {"4 KiB", 20000, 4096, 4096},
      {"64 KiB", 4000, 64 << 10, 64 << 10},
      {"256 KiB one way", 2000, 256 << 10, 8},
      {"1 MiB one way", 1000, 1 << 20, 8},
      {"64 MiB one way", 16, kLarge, 8}};
  for (const std::string& name : working(koloLinkPosted)) {
    PostedPair pair(name);
    const Reply theirs = accepted(pair.peer.registerMemory(kSignals + kLarge));
    const std::size_t box = registered(pair.rank, kSignals + kLarge), in = registered(pair.rank, kSignals + kLarge);
    const std::uint64_t theirBox = accepted(pair.peer.registerMemory(kSignals + kLarge)).value;
    const std::size_t link = linked(pair.rank, pair.peer.address(), theirs.blob);
    const std::uint64_t theirLink = accepted(pair.peer.link(pair.rank.address(), pair.rank.descriptor(in))).value;
    for (int turn = 0; turn < 3; ++turn) {
      for (const auto& [what, rounds, bytes, answer] : cases) {
        Request request{Op::kAnswerBench, theirLink, theirs.value, theirBox};
        request.put.signal = rounds;
        request.put.bytes = bytes;
        request.put.to = answer;
        std::memset(pair.rank.data(in), 0, 128);
        pair.peer.value(Op::kStoreOwn, theirs.value, 64, 0);
        for (std::size_t at = 64; at < 72; ++at) pair.peer.value(Op::kStoreOwn, theirs.value, at, 0);
        pair.peer.send(request);
        const double seconds = benchPosted({&pair.rank, 1, link, in, box}, rounds, bytes, answer, true);
        accepted(pair.peer.receive());
        pair.peer.send({Op::kAnswerRaw, rounds, bytes, answer});
        const double raw =
            benchRaw(static_cast<std::uint16_t>(accepted(pair.peer.receive()).value), rounds, bytes, answer);
        accepted(pair.peer.receive());
        const auto perRound = [&](double s) { return 1e6 * s / static_cast<double>(rounds); };
        const auto rate = [&](double s) { return static_cast<double>(bytes * rounds) / s / 1e9; };
        WARN(name << ", " << what << ": " << perRound(seconds) << " us a round, " << rate(seconds)
                  << " GB/s; plain sockets " << perRound(raw) << " us, " << rate(raw) << " GB/s; ratio of times "
                  << seconds / raw);
      }
    }
  }
}

}  // namespace kolo::contract
