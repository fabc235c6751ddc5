#include "posted.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace kolo::contract {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::uint64_t wordOf(const PostedEnd& end, std::size_t at) {
  auto* const word = reinterpret_cast<std::uint64_t*>(end.rank->data(end.inbox) + at);
  return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire);
}

// splitmix64
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Ping {
  std::size_t bytes, at, from;
  std::uint64_t seed;
};

// Small, large and empty ones; aligned and not.
Ping pingOf(std::uint64_t round, bool answers, std::size_t most) {
  const std::uint64_t seed = mix(2 * round + answers);
  const std::size_t largest = most >> (seed % 12);
  const std::size_t bytes = seed % 7 == 0 ? 0 : mix(seed) % (largest + 1);
  return {bytes, kSignals + mix(seed + 1) % (kMostPayload - most + 1),
          kSignals + mix(seed + 2) % (kMostPayload - most + 1), seed};
}

void fill(unsigned char* to, const Ping& ping) {
  for (std::size_t i = 0; i < ping.bytes; i += 8) {
    const std::uint64_t word = mix(ping.seed + i);
    std::memcpy(to + i, &word, std::min<std::size_t>(8, ping.bytes - i));
  }
}

std::string check(const unsigned char* inbox, const Ping& ping) {
  for (std::size_t i = 0; i < ping.bytes; i += 8) {
    const std::uint64_t word = mix(ping.seed + i);
    if (std::memcmp(inbox + ping.at + i, &word, std::min<std::size_t>(8, ping.bytes - i)) != 0) {
      return fmt::format("byte {} of {} is wrong", i, ping.bytes);
    }
  }
  // What is around it is what the receiver left there.
  for (std::size_t i = 1; i <= 64; ++i) {
    if (inbox[ping.at - i] != kUntouched || inbox[ping.at + ping.bytes + i - 1] != kUntouched)
      return "a byte beside the payload was changed";
  }
  return "";
}

std::string post(const PostedEnd& end, std::uint64_t round, bool answers, std::size_t most) {
  const Ping ping = pingOf(round, answers, most);
  fill(end.rank->data(end.outbox) + ping.from, ping);
  const Status status = putAll(
      end,
      {.memory = end.outbox, .from = ping.from, .bytes = ping.bytes, .to = ping.at, .signalTo = 64, .signal = round});
  return status.message();
}

std::string take(const PostedEnd& end, std::uint64_t round, bool answers, std::size_t most) {
  unsigned char* const inbox = end.rank->data(end.inbox);
  const Ping ping = pingOf(round, answers, most);
  if (const Status status = awaitSignal(end, 64, round); !status.ok()) return status.message();
  const std::string problem = check(inbox, ping);
  if (problem != "") return fmt::format("round {}: {}", round, problem);
  std::memset(inbox + ping.at, kUntouched, ping.bytes);
  return "";
}

}  // namespace

Status putAll(const PostedEnd& end, const PutOptions& options) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  for (;;) {
    const Status status = end.rank->put(end.link, options);
    if (status.code() != koloInProgress || Clock::now() > deadline) return status;
    end.rank->progress(end.peer, 100);
  }
}

Status awaitSignal(const PostedEnd& end, std::size_t at, std::uint64_t value, int ms) {
  const auto deadline = Clock::now() + milliseconds(ms);
  while (wordOf(end, at) < value) {
    if (Clock::now() > deadline) return error(koloTimeout, "signal {} is {}, expected {}", at, wordOf(end, at), value);
    if (!end.rank->progress(end.peer, 200)) KOLO_TRY(end.rank->state(end.link));
  }
  return {};
}

Status settle(const PostedEnd& end, int ms) {
  const auto deadline = Clock::now() + milliseconds(ms);
  while (end.rank->unfinished(end.link) != 0) {
    if (Clock::now() > deadline)
      return error(koloTimeout, "{} requests are unfinished", end.rank->unfinished(end.link));
    end.rank->progress(end.peer, 200);
  }
  return {};
}

void progressFor(const Rank& rank, int peer, int ms) {
  for (const auto deadline = Clock::now() + milliseconds(ms); Clock::now() < deadline;) rank.progress(peer, 1000);
}

std::string watchRails(const PostedEnd& end, std::uint64_t rails, std::uint64_t puts) {
  std::uint64_t last[KOLO_TRANSPORT_MAX_RAILS] = {}, done = 0;
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (done < rails) {
    if (Clock::now() > deadline) return "not all puts came within a minute";
    end.rank->progress(end.peer, 200);
    done = 0;
    for (std::uint64_t rail = 0; rail < rails; ++rail) {
      const std::uint64_t n = wordOf(end, 128 + 8 * rail);
      if (n < last[rail]) return fmt::format("rail {}: signal {} after {}", rail, n, last[rail]);
      const std::uint64_t found = n == 0 ? 0 : wordOf(end, kSignals + 64 * (n % 1024) + 8 * rail);
      // A later put may have overwritten it: with a greater number.
      if (n != 0 && found < n) return fmt::format("rail {}: signal {} came before its bytes, {}", rail, n, found);
      last[rail] = n;
      done += n == puts;
    }
  }
  return "";
}

void prepareInbox(const Rank& rank, std::size_t inbox) {
  std::memset(rank.data(inbox), 0, kSignals - 64);
  std::memset(rank.data(inbox) + kSignals - 64, kUntouched, kInbox - kSignals + 64);
}

// The outbox may be filled anew when what was in it has been sent: the answer says so.
std::string sendPostedPings(const PostedEnd& end, std::uint64_t rounds, std::size_t most) {
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (std::string problem = post(end, round, false, most); problem != "") return problem;
    if (std::string problem = take(end, round, true, most); problem != "") return problem;
  }
  return settle(end).message();
}

std::string answerPostedPings(const PostedEnd& end, std::uint64_t rounds, std::size_t most) {
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (std::string problem = take(end, round, false, most); problem != "") return problem;
    if (std::string problem = post(end, round, true, most); problem != "") return problem;
  }
  return settle(end).message();
}

}  // namespace kolo::contract
