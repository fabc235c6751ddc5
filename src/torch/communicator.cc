#include "torch/communicator.h"

#include <algorithm>
#include <limits>

#include "torch/errors.h"
#include "torch/without_gil.h"

namespace kolo::pytorch {
namespace {

constexpr char kReady = 'r', kFailed = 'f';   // what the first byte in the store says

koloConfig_t configOf(const Membership& member, int device) {
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = timeoutMs(member.timeout);
  config.reproducible = member.settings.reproducible;
  config.algorithm = member.settings.algorithm.empty() ? nullptr : member.settings.algorithm.c_str();
  config.transports = member.settings.transports.empty() ? nullptr : member.settings.transports.c_str();
  config.name = member.name.c_str();
  config.device = device;
  return config;
}

std::vector<std::uint8_t> message(char kind, const char* data, std::size_t bytes) {
  std::vector<std::uint8_t> text(1 + bytes, static_cast<std::uint8_t>(kind));
  std::copy(data, data + bytes, text.begin() + 1);
  return text;
}

std::string missingRanks(const Membership& member, const std::string& key) {
  std::string missing;
  for (int rank = 0; rank < member.size; ++rank) {
    if (!member.store->check({key + "/" + std::to_string(rank)})) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  return missing;
}

void await(const Membership& member, const std::string& key) {
  member.store->wait({key}, member.timeout > kNoTimeout ? member.timeout : kBackendDefaultTimeout);
}

// Members may come one after the other, as long as the group's deadline allows; Kolo's own for beginning is shorter, and
// starts when all are there.
void awaitAll(const Membership& member, const std::string& key) {
  member.store->set(key + "/" + std::to_string(member.rank), std::string("here"));
  if (member.store->add(key + "/count", 1) == member.size) member.store->set(key + "/all", std::string("here"));
  try {
    await(member, key + "/all");
  } catch (const std::exception& e) {
    C10_THROW_ERROR(DistBackendError, c10::str("kolo:init: rank ", member.rank, " of group \"", member.name,
                                               "\" waited for ranks ", missingRanks(member, key), ": ", e.what()));
  }
}

// Rank 0 makes the id. If it cannot, the others learn why instead of waiting.
koloUniqueId agreeOnId(const Membership& member, const std::string& key) {
  koloUniqueId id{};
  if (member.rank == 0) {
    const koloResult_t result = koloGetUniqueId(&id);
    if (member.size > 1) {
      const std::string why = koloGetLastError(nullptr);
      member.store->set(key, result == koloSuccess ? message(kReady, id.internal, sizeof id.internal)
                                                   : message(kFailed, why.data(), why.size()));
    }
    check(result, "kolo:init");
    return id;
  }
  try {
    await(member, key);
  } catch (const std::exception& e) {
    C10_THROW_ERROR(DistBackendError, c10::str("kolo:init: rank ", member.rank, " of group \"", member.name,
                                               "\" waited for rank 0's id: ", e.what()));
  }
  const std::vector<std::uint8_t> text = member.store->get(key);
  if (text.size() == 1 + sizeof id.internal && text[0] == kReady) {
    std::copy(text.begin() + 1, text.end(), id.internal);
    return id;
  }
  C10_THROW_ERROR(DistBackendError, c10::str("kolo:init: rank 0 of group \"", member.name, "\" failed: ",
                                             std::string(text.begin() + (text.empty() ? 0 : 1), text.end())));
}

}  // namespace

int timeoutMs(std::chrono::milliseconds timeout) {
  return static_cast<int>(std::clamp<std::int64_t>(timeout.count(), 0, std::numeric_limits<int>::max()));
}

std::shared_ptr<Communicator> Communicator::meet(const Membership& member, const std::string& key, int device) {
  const WithoutGil others;
  if (member.size > 1) awaitAll(member, key);
  const koloUniqueId id = agreeOnId(member, key);
  const koloConfig_t config = configOf(member, device);
  koloComm_t comm = nullptr;
  check(koloCommInitRankConfig(&comm, member.size, id, member.rank, &config), "kolo:init");
  return std::make_shared<Communicator>(comm, member.timeout);
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int>& excluded, const Membership& member) const {
  const WithoutGil others;
  const koloConfig_t config = configOf(member, KOLO_HOST);
  koloComm_t comm = nullptr;
  check(koloCommShrink(get(), excluded.data(), static_cast<int>(excluded.size()), &comm, &config), "kolo:shrink");
  return std::make_shared<Communicator>(comm, member.timeout);
}

koloComm_t Communicator::get() const {
  koloComm_t const comm = comm_.load(std::memory_order_acquire);
  if (comm == nullptr) [[unlikely]] {
    C10_THROW_ERROR(DistBackendError, "kolo: the process group was shut down or aborted");
  }
  return comm;
}

int Communicator::rank() const {
  int rank = -1;
  check(koloCommUserRank(get(), &rank), "kolo:rank");
  return rank;
}

int Communicator::size() const {
  int size = -1;
  check(koloCommCount(get(), &size), "kolo:size");
  return size;
}

koloResult_t Communicator::failure() const {
  koloComm_t const comm = comm_.load(std::memory_order_acquire);
  koloResult_t failure = koloSuccess;
  if (comm == nullptr || koloCommGetAsyncError(comm, &failure) != koloSuccess) return koloAborted;
  return failure;
}

// A child that was forked has no handles: Kolo refuses what it tries to end.
void Communicator::end() {
  koloComm_t const comm = comm_.exchange(nullptr, std::memory_order_acq_rel);
  if (comm == nullptr) return;
  const WithoutGil others;
  (void)koloCommDestroy(comm);
}

void Communicator::abort() {
  koloComm_t const comm = comm_.exchange(nullptr, std::memory_order_acq_rel);
  if (comm == nullptr) return;
  const WithoutGil others;
  (void)koloCommAbort(comm);
}

Deadline::Deadline(std::chrono::milliseconds wanted, const Communicator& communicator) {
  if (wanted == communicator.timeout()) [[likely]] return;
  set_ = koloSetTimeout(timeoutMs(wanted)) == koloSuccess;
}

}  // namespace kolo::pytorch
