#include "comm/sent_arrays.h"

#include <cstring>
#include <utility>

namespace kolo::comm {
namespace {

struct ArrayQuestion {
  char subject[8] = {'a', 'r', 'r', 'a', 'y', '?', '?', '?'};  // no other question begins so
  std::int64_t rank = -1;                                      // the rank that asks
  std::uint64_t number = 0;
};

constexpr char kNotYet = '-', kHere = '+';

}  // namespace

void SentArrays::add(int peer, std::string description) {
  const std::lock_guard lock(mutex_);
  sent_[peer].descriptions.push_back(std::move(description));
}

std::optional<std::string> SentArrays::answer(int asker, std::string_view question) {
  ArrayQuestion asked;
  if (question.size() != sizeof asked || std::memcmp(question.data(), asked.subject, sizeof asked.subject) != 0)
    return std::nullopt;
  std::memcpy(static_cast<void*>(&asked), question.data(), sizeof asked);
  if (asked.rank != asker) return std::string(1, kNotYet);  // that would take another rank's
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(asker);
  if (found == sent_.end()) return std::string(1, kNotYet);
  Sent& sent = found->second;
  // A rank that asks for one has those before it.
  for (; sent.first < asked.number && !sent.descriptions.empty(); ++sent.first) sent.descriptions.pop_front();
  if (sent.first != asked.number || sent.descriptions.empty()) return std::string(1, kNotYet);
  return kHere + sent.descriptions.front();
}

void* SentArrays::memoryToDrop(std::uint64_t bytes) {
  for (memory::DeviceMemory& memory : dropping_) {
    if (memory.bytes() >= bytes) return memory.as<void>();
  }
  return nullptr;
}

void* SentArrays::keepToDrop(memory::DeviceMemory memory) {
  dropping_.push_back(std::move(memory));
  return dropping_.back().as<void>();
}

std::string SentArrays::question(int rank, int peer) const {
  ArrayQuestion question;
  question.rank = rank;
  if (const auto found = received_.find(peer); found != received_.end()) question.number = found->second;
  return {reinterpret_cast<const char*>(&question), sizeof question};
}

std::string_view SentArrays::descriptionIn(std::string_view answer) {
  return answer.empty() || answer.front() != kHere ? std::string_view() : answer.substr(1);
}

}  // namespace kolo::comm
