#include "support/seed.h"

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

namespace kolo::test {
namespace {

constexpr std::uint64_t kStride = 1'000'000'007;  // from a round's seed to that of the next one
constexpr std::chrono::duration<double> kBudget(0.2);

std::atomic<std::uint64_t> current{0};
std::atomic<std::chrono::steady_clock::time_point> lastBegin{};

std::uint64_t givenOrDrawn() {
  if (const char* const given = std::getenv("KOLO_TEST_SEED"); given != nullptr)
    return std::strtoull(given, nullptr, 0);
  const std::uint64_t drawn = std::random_device{}();
  ::setenv("KOLO_TEST_SEED", std::to_string(drawn).c_str(), 1);
  return drawn;
}

std::chrono::duration<double> budget() {
  const char* const factor = std::getenv("KOLO_TEST_BUDGET");
  return factor != nullptr ? std::strtod(factor, nullptr) * kBudget : kBudget;
}

}  // namespace

std::uint64_t testSeed() {
  static const std::uint64_t seed = current = givenOrDrawn();
  return seed;
}

std::uint64_t currentSeed() { return current; }

std::chrono::steady_clock::time_point lastRoundBegin() { return lastBegin; }

Rounds::Rounds(int number, std::initializer_list<std::uint64_t> failed) : number_(number), failed_(failed) {}

Rounds::~Rounds() { current = testSeed(); }

bool Rounds::next() {
  const std::size_t repeated = failed_.size();
  const Clock::time_point before = std::exchange(last_, Clock::now());
  if (round_ == repeated) begin_ = last_;
  if (round_ > repeated && last_ - begin_ + (last_ - before) > budget()) return false;
  base_ = round_ < repeated ? failed_[round_] : testSeed() + (round_ - repeated) * kStride;
  current = base_;
  lastBegin = last_;
  message_.reset();
  Catch::MessageBuilder text("", CATCH_INTERNAL_LINEINFO, Catch::ResultWas::Info);
  text << "KOLO_TEST_SEED=" << base_ << " repeats this round";
  if (base_ != testSeed()) text << " (number " << round_ + 1 << " of seed " << testSeed() << ")";
  message_.emplace(text);
  ++round_;
  return true;
}

std::uint64_t Rounds::seed() const { return base_ + static_cast<std::uint64_t>(number_); }

}  // namespace kolo::test
