#include "torch/meeting.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "torch/errors.h"
#include "torch/signals.h"

namespace kolo::pytorch {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kNumberBytes = 16;  // of a number in hexadecimal
constexpr char kReady = 'r', kFailed = 'f';
constexpr Milliseconds kWithoutPause{1}, kLongestNap{20};
// After which rank 0 looks whether a number that it has answered was one of an earlier attempt.
constexpr Milliseconds kBetweenNumbers{50};

std::string drawNumber() {
  std::random_device source;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string number;
  while (number.size() < kNumberBytes) number += kDigits[source() % 16];
  return number;
}

struct Venue {
  c10d::Store& store;
  const std::string& key;
  int rank, size;
  const std::string& group;
  Milliseconds timeout;
  Clock::time_point until;

  std::string numberKey(int of) const { return key + "/" + std::to_string(of); }
  std::string answerKey(const std::string& number) const { return key + "/to/" + number; }
  std::string readKey(const std::string& token, int of) const { return key + "/" + token + "/" + std::to_string(of); }
  // Of all ranks but 0.
  template <class KeyOf>
  std::vector<std::string> keys(KeyOf&& keyOf) const {
    std::vector<std::string> all;
    for (int of = 1; of < size; ++of) all.push_back(keyOf(of));
    return all;
  }

  [[noreturn]] void fail(const std::string& why) const {
    C10_THROW_ERROR(DistBackendError, c10::str("kolo:init: rank ", rank, " of group \"", group, "\": ", why));
  }
  [[noreturn]] void failLate(const std::string& whom) const {
    fail("waited " + std::to_string(timeout.count()) + " ms for " + whom);
  }
};

bool isOver(const Venue& at) { return Clock::now() >= at.until; }

// Looks until all keys are there, for so long at most: without a pause at first, for the others are mostly there at
// once, then less and less often. (A wait of the store's own would not see signals, and one that ends in vain is a
// warning on standard error.)
bool await(const Venue& at, const std::vector<std::string>& keys, Milliseconds most) {
  const Clock::time_point begin = Clock::now(), until = std::min(at.until, begin + most);
  while (!at.store.check(keys)) {
    const Clock::time_point now = Clock::now();
    if (now >= until) return false;
    if (now - begin > kWithoutPause)
      std::this_thread::sleep_for(std::min<Clock::duration>((now - begin) / 8, kLongestNap));
    if (!signals::look().empty()) signals::endWait();
  }
  return true;
}

std::vector<std::string> getAll(c10d::Store& store, const std::vector<std::string>& keys) {
  std::vector<std::string> texts;
  if (store.hasExtendedApi()) {
    for (const std::vector<std::uint8_t>& value : store.multiGet(keys)) texts.emplace_back(value.begin(), value.end());
  } else {
    for (const std::string& key : keys) texts.push_back(store.get_to_str(key));
  }
  return texts;
}

void setAll(c10d::Store& store, const std::vector<std::string>& keys, const std::string& text) {
  const std::vector<std::uint8_t> value(text.begin(), text.end());
  if (store.hasExtendedApi()) {
    store.multiSet(keys, std::vector(keys.size(), value));
  } else {
    for (const std::string& key : keys) store.set(key, value);
  }
}

// The ranks that have not joined. Numbers of an earlier attempt cannot be recognised.
std::string missingRanks(const Venue& at, const std::string& token) {
  const auto without = [&](const auto& keyOf) {
    std::string ranks;
    for (int of = 1; of < at.size; ++of) {
      if (!at.store.check({keyOf(of)})) ranks += (ranks.empty() ? "" : ", ") + std::to_string(of);
    }
    return ranks;
  };
  const std::string absent = without([&](int of) { return at.numberKey(of); });
  return absent.empty() ? without([&](int of) { return at.readKey(token, of); }) : absent;
}

// Answers the numbers that are there, again those that have changed, until all ranks have read their answers.
Meeting lead(const Venue& at, const std::string& own) {
  Meeting meeting{.token = own};
  const koloResult_t result = koloGetUniqueId(&meeting.id);
  const std::string text = result == koloSuccess ? std::string(meeting.id.internal, sizeof meeting.id.internal)
                                                 : std::string(koloGetLastError(nullptr));
  const std::string answer = own + (result == koloSuccess ? kReady : kFailed) + text;
  const std::vector<std::string> numbers = at.keys([&](int of) { return at.numberKey(of); });
  const std::vector<std::string> read = at.keys([&](int of) { return at.readKey(own, of); });
  std::set<std::string> answered;
  for (bool isRead = read.empty(); !isRead;) {
    if (isOver(at) || !await(at, numbers, at.timeout)) at.failLate("ranks " + missingRanks(at, own));
    std::vector<std::string> asked;
    for (const std::string& number : getAll(at.store, numbers)) {
      if (answered.insert(number).second) asked.push_back(at.answerKey(number));
    }
    if (!asked.empty()) setAll(at.store, asked, answer);
    isRead = await(at, read, kBetweenNumbers);
  }
  check(result, "kolo:init");
  return meeting;
}

Meeting follow(const Venue& at, const std::string& own) {
  at.store.set(at.numberKey(at.rank), own);
  const std::string key = at.answerKey(own);
  if (!await(at, {key}, at.timeout)) at.failLate("rank 0, which waits for all others");
  const std::string answer = at.store.get_to_str(key);
  Meeting meeting{.token = answer.substr(0, kNumberBytes)};
  at.store.set(at.readKey(meeting.token, at.rank), std::string("read"));
  const std::string text = answer.substr(kNumberBytes + 1);
  if (answer[kNumberBytes] == kFailed || text.size() != sizeof meeting.id.internal) at.fail("rank 0 failed: " + text);
  std::copy(text.begin(), text.end(), meeting.id.internal);
  return meeting;
}

}  // namespace

Meeting meetInStore(c10d::Store& store, const std::string& key, int rank, int size, Milliseconds timeout,
                    const std::string& group) {
  const Milliseconds limit = timeout > kNoTimeout ? timeout : kBackendDefaultTimeout;
  const Venue at{store, key, rank, size, group, limit, Clock::now() + limit};
  const Meeting meeting = rank == 0 ? lead(at, drawNumber()) : follow(at, drawNumber());
  signals::endWait();
  return meeting;
}

}  // namespace kolo::pytorch
