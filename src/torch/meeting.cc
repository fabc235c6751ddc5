#include "torch/meeting.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "torch/errors.h"

namespace kolo::pytorch {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr std::size_t kNumberBytes = 16;  // of a number in hexadecimal
constexpr char kReady = 'r', kFailed = 'f';

std::string drawNumber() {
  std::random_device source;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string number;
  while (number.size() < kNumberBytes) number += kDigits[source() % 16];
  return number;
}

// Sleeps between looks at the store, longer and longer.
class Patience {
 public:
  explicit Patience(Milliseconds timeout) : until_(Clock::now() + timeout) {}
  bool isOver() const { return Clock::now() >= until_; }
  void nap() {
    std::this_thread::sleep_for(nap_);
    nap_ = std::min(nap_ * 2, Milliseconds{20});
  }

 private:
  const Clock::time_point until_;
  Milliseconds nap_{1};
};

struct Venue {
  c10d::Store& store;
  const std::string& key;
  int rank, size;
  const std::string& group;

  std::string numberKey(int of) const { return key + "/" + std::to_string(of); }
  std::string readKey(int of) const { return key + "/read/" + std::to_string(of); }
  std::string get(const std::string& name) const { return store.check({name}) ? store.get_to_str(name) : ""; }

  [[noreturn]] void fail(const std::string& why) const {
    C10_THROW_ERROR(DistBackendError, c10::str("kolo:init: rank ", rank, " of group \"", group, "\": ", why));
  }
};

// The numbers of all ranks, one after the other; "" while some are missing.
std::string numbersOf(const Venue& at) {
  std::string numbers;
  for (int rank = 0; rank < at.size; ++rank) {
    const std::string number = at.get(at.numberKey(rank));
    if (number.size() != kNumberBytes) return "";
    numbers += number;
  }
  return numbers;
}

std::string notRead(const Venue& at, const std::string& token) {
  std::string ranks;
  for (int rank = 1; rank < at.size; ++rank) {
    if (at.get(at.readKey(rank)) != token) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

// The ranks that have not joined. Numbers of an earlier attempt cannot be recognised.
std::string missingRanks(const Venue& at, const std::string& token) {
  std::string ranks;
  for (int rank = 1; rank < at.size; ++rank) {
    if (!at.store.check({at.numberKey(rank)})) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks.empty() ? notRead(at, token) : ranks;
}

// Writes a record for the numbers that are there, again when one has changed, until all ranks have found theirs in it.
Meeting lead(const Venue& at, const std::string& own, Milliseconds timeout) {
  Meeting meeting{.token = own};
  const koloResult_t result = koloGetUniqueId(&meeting.id);
  const std::string text = result == koloSuccess ? std::string(meeting.id.internal, sizeof meeting.id.internal)
                                                 : std::string(koloGetLastError(nullptr));
  Patience patience(timeout);
  std::string written;
  for (; !notRead(at, own).empty(); patience.nap()) {
    const std::string numbers = numbersOf(at);
    if (!numbers.empty() && numbers != written) {
      at.store.set(at.key, numbers + (result == koloSuccess ? kReady : kFailed) + text);
      written = numbers;
    }
    if (patience.isOver())
      at.fail("waited " + std::to_string(timeout.count()) + " ms for ranks " + missingRanks(at, own));
  }
  check(result, "kolo:init");
  return meeting;
}

Meeting follow(const Venue& at, const std::string& own, Milliseconds timeout) {
  const std::size_t numbersBytes = kNumberBytes * static_cast<std::size_t>(at.size);
  Patience patience(timeout);
  std::string record;
  for (;; patience.nap()) {
    record = at.get(at.key);
    if (record.size() > numbersBytes &&
        record.compare(kNumberBytes * static_cast<std::size_t>(at.rank), kNumberBytes, own) == 0)
      break;
    if (patience.isOver())
      at.fail("waited " + std::to_string(timeout.count()) + " ms for rank 0, which waits for all others");
  }
  Meeting meeting{.token = record.substr(0, kNumberBytes)};
  at.store.set(at.readKey(at.rank), meeting.token);
  const std::string text = record.substr(numbersBytes + 1);
  if (record[numbersBytes] == kFailed || text.size() != sizeof meeting.id.internal) at.fail("rank 0 failed: " + text);
  std::copy(text.begin(), text.end(), meeting.id.internal);
  return meeting;
}

}  // namespace

Meeting meetInStore(c10d::Store& store, const std::string& key, int rank, int size, Milliseconds timeout,
                    const std::string& group) {
  const Venue at{store, key, rank, size, group};
  const std::string own = drawNumber();
  if (size > 1) store.set(at.numberKey(rank), own);
  const Milliseconds limit = timeout > kNoTimeout ? timeout : kBackendDefaultTimeout;
  return rank == 0 ? lead(at, own, limit) : follow(at, own, limit);
}

}  // namespace kolo::pytorch
