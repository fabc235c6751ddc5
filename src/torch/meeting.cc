#include "torch/meeting.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <thread>

#include "torch/errors.h"
#include "torch/signals.h"

namespace kolo::pytorch {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kNumberBytes = 16;  // of a number in hexadecimal
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

Meeting::Venue withLimit(Meeting::Venue venue) {
  if (venue.timeout <= kNoTimeout) venue.timeout = kBackendDefaultTimeout;
  return venue;
}

}  // namespace

Meeting::Meeting(Venue venue) : venue_(withLimit(std::move(venue))), until_(Clock::now() + venue_.timeout) {}

std::vector<std::string> Meeting::gather(const std::string& text) {
  const std::string own = drawNumber();
  if (venue_.rank == 0) {
    token_ = own;
    std::vector<std::string> texts{text};
    if (venue_.size == 1) return texts;
    answerUntilAllTell();
    std::vector<std::string> others = getAll(venue_.store, keys([this](int of) { return textKey(of); }));
    std::move(others.begin(), others.end(), std::back_inserter(texts));
    return texts;
  }
  venue_.store.set(numberKey(venue_.rank), own);
  awaitRank0(answerKey(own));
  token_ = venue_.store.get_to_str(answerKey(own));
  venue_.store.set(textKey(venue_.rank), text);
  return {};
}

std::string Meeting::broadcast(const std::string& text) {
  if (venue_.rank == 0) {
    if (venue_.size > 1) venue_.store.set(wordKey(), text);
    return text;
  }
  awaitRank0(wordKey());
  signals::endWait();
  return venue_.store.get_to_str(wordKey());
}

// Answers the numbers that are there, again those that have changed, until the text of each rank is there.
void Meeting::answerUntilAllTell() {
  const std::vector<std::string> numbers = keys([this](int of) { return numberKey(of); });
  const std::vector<std::string> texts = keys([this](int of) { return textKey(of); });
  std::set<std::string> answered;
  do {
    if (Clock::now() >= until_ || !await(numbers, venue_.timeout)) fail(lateFor("ranks " + missingRanks()));
    std::vector<std::string> asked;
    for (const std::string& number : getAll(venue_.store, numbers)) {
      if (answered.insert(number).second) asked.push_back(answerKey(number));
    }
    if (!asked.empty()) setAll(venue_.store, asked, token_);
  } while (!await(texts, kBetweenNumbers));
  signals::endWait();
}

// Looks until all keys are there, for so long at most: without a pause at first, for the others are mostly there at
// once, then less and less often. (A wait of the store's own would not see signals, and one that ends in vain is a
// warning on standard error.) Asks for all keys at once. After each look in vain it asks for half as many, so that the
// keys asked for are few in all.
bool Meeting::await(const std::vector<std::string>& keys, Milliseconds most) const {
  const Clock::time_point begin = Clock::now(), until = std::min(until_, begin + most);
  auto next = keys.begin();
  for (std::ptrdiff_t count = keys.end() - next; next != keys.end();) {
    count = std::min(count, keys.end() - next);
    if (venue_.store.check({next, next + count})) {
      next += count;
      count *= 2;
      continue;
    }
    count = std::max<std::ptrdiff_t>(count / 2, 1);
    const Clock::time_point now = Clock::now();
    if (now >= until) return false;
    if (const std::string why = venue_.whyInVain(); !why.empty()) fail(why);
    if (now - begin > kWithoutPause)
      std::this_thread::sleep_for(std::min<Clock::duration>((now - begin) / 8, kLongestNap));
    if (!signals::look().empty()) signals::endWait();
  }
  return true;
}

void Meeting::awaitRank0(const std::string& key) const {
  if (!await({key}, venue_.timeout)) fail(lateFor("rank 0, which waits for all others"));
}

// The ranks that have not joined. Numbers of an earlier attempt cannot be recognised.
std::string Meeting::missingRanks() const {
  const auto without = [&](const auto& keyOf) {
    std::string ranks;
    for (int of = 1; of < venue_.size; ++of) {
      if (!venue_.store.check({keyOf(of)})) ranks += (ranks.empty() ? "" : ", ") + std::to_string(of);
    }
    return ranks;
  };
  const std::string absent = without([this](int of) { return numberKey(of); });
  return absent.empty() ? without([this](int of) { return textKey(of); }) : absent;
}

std::string Meeting::keepTrying(const std::string& whatFor, const std::function<bool(Milliseconds)>& attempt) const {
  do {
    if (std::string why = venue_.whyInVain(); !why.empty()) return why;
    if (Clock::now() >= until_) return lateFor(whatFor);
    if (const std::string raised = signals::look(); !raised.empty()) return "a signal's handler has raised " + raised;
  } while (!attempt(kLongestNap));
  return {};
}

void Meeting::check(koloResult_t result) const {
  signals::endWait();
  if (result == koloSuccess) return;
  if (const std::string why = venue_.whyInVain(); !why.empty()) fail(why + "; " + koloGetLastError(nullptr));
  raise(result, "kolo:init");
}

void Meeting::fail(const std::string& why) const {
  C10_THROW_ERROR(DistBackendError,
                  c10::str("kolo:init: rank ", venue_.rank, " of group \"", venue_.group, "\": ", why));
}

std::string Meeting::lateFor(const std::string& whom) const {
  return "waited " + std::to_string(venue_.timeout.count()) + " ms for " + whom;
}

}  // namespace kolo::pytorch
