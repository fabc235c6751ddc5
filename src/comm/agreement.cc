#include "comm/agreement.h"

#include <time.h>

#include <algorithm>
#include <iterator>

#include "bootstrap/wire.h"
#include "comm/factory.h"
#include "comm/parts.h"
#include "common/clock.h"

namespace kolo::comm {
namespace {

constexpr std::uint64_t kKeyOfAgreements = ~std::uint64_t{3};  // no color is so large
// Between two exchanges of a rank that is ahead of others, which are still to hear of a death.
constexpr std::int64_t kFirstNapNs = 1'000'000, kLongestNapNs = 64'000'000;

std::vector<int> livingRanks(Communicator& communicator, const std::vector<int>& excluded) {
  const std::vector<int> dead = communicator.failureState().dead();
  const auto isIn = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  std::vector<int> living;
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    if (!isIn(dead, rank) && !isIn(excluded, rank)) living.push_back(rank);
  }
  return living;
}

// Under a key of its own: a failure that was reported for the communicator does not end it.
Result<std::vector<std::string>> meet(Communicator& communicator, const std::vector<int>& living,
                                      std::string_view mine) {
  const Membership& whole = communicator.membership();
  const std::uint64_t key = mixKeys(whole.key, kKeyOfAgreements);
  std::uint64_t list = key;
  std::vector<int> members;
  for (const int rank : living) {
    list = mixKeys(list, static_cast<std::uint64_t>(rank));
    members.push_back(whole.jobRank(rank));
  }
  const auto own = std::find(living.begin(), living.end(), communicator.rank());
  return whole.control->allGather(key, bootstrap::kPartialSequence | list, members,
                                  static_cast<int>(own - living.begin()), mine, whole.initTimeoutMs,
                                  communicator.failureState().abortInterrupt().get());
}

void nap(std::int64_t& ns) {
  const timespec time{0, static_cast<long>(ns)};
  nanosleep(&time, nullptr);
  ns = std::min(2 * ns, kLongestNapNs);
}

// Whether all that have come mean the same, and can go on: alike on all of them.
Status check(const Communicator& communicator, const Agreement& agreement) {
  for (std::size_t i = 0; i < agreement.statements.size(); ++i) {
    const Statement& first = agreement.statements.front();
    const Statement& each = agreement.statements[i];
    const auto nameOf = [](std::uint32_t purpose) {
      return purpose == Statement::kFlags    ? "koloCommAgree"
             : purpose == Statement::kShrink ? "koloCommShrink"
                                             : "an unknown function";
    };
    if (each.purpose != first.purpose) {
      return error(koloMismatch, "communicator {}: rank {} calls {}, rank {} calls {}", communicator.options().name,
                   agreement.ranks.front(), nameOf(first.purpose), agreement.ranks[i], nameOf(each.purpose));
    }
    if (!each.verdict.ok())
      return error(each.verdict.code(), "on rank {}: {}", agreement.ranks[i], each.verdict.message());
  }
  return {};
}

}  // namespace

Result<Agreement> agree(Communicator& communicator, const std::vector<int>& excluded, Statement mine) {
  constexpr std::size_t kMostReasonBytes = 2000;
  mine.verdict = {mine.verdict.code(), mine.verdict.message().substr(0, kMostReasonBytes)};
  const std::string text = links::encode(mine);
  const int limitMs = communicator.membership().initTimeoutMs;
  const std::int64_t startedNs = nowNs();
  std::int64_t napNs = kFirstNapNs;
  for (;;) {
    Agreement agreement;
    agreement.ranks = livingRanks(communicator, excluded);
    const Result<std::vector<std::string>> told = meet(communicator, agreement.ranks, text);
    if (told.ok()) {
      std::transform(told.value().begin(), told.value().end(), std::back_inserter(agreement.statements),
                     links::decode<Statement>);
      KOLO_TRY(check(communicator, agreement));
      return agreement;
    }
    const Status& why = told.status();
    const bool knowsMore = livingRanks(communicator, excluded) != agreement.ranks;
    const bool isDisagreement = why.code() == koloMismatch;
    if (why.code() == koloRemoteError && knowsMore) continue;
    if (why.code() == koloRemoteError || why.code() == koloInProgress) return Status(koloUnreachable, why.message());
    const bool isLate = limitMs > 0 && nowNs() - startedNs > limitMs * std::int64_t{1'000'000};
    if (!isDisagreement || (isLate && !knowsMore)) return why;
    nap(napNs);
  }
}

// All ranks that take part have the same statements, so they have the same result.
Status agreeOnFlags(Communicator& communicator, std::uint64_t* flags) {
  Statement mine{.purpose = Statement::kFlags, .verdict = {}, .value = *flags};
  mine.acknowledged.assign(static_cast<std::size_t>(communicator.ranks()), '0');
  for (const int rank : communicator.failureState().acknowledged())
    mine.acknowledged[static_cast<std::size_t>(rank)] = '1';
  KOLO_ASSIGN(const Agreement agreement, agree(communicator, {}, std::move(mine)));
  std::vector<int> missing;
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    if (!std::binary_search(agreement.ranks.begin(), agreement.ranks.end(), rank)) missing.push_back(rank);
  }
  std::uint64_t all = ~std::uint64_t{0};
  bool isAcknowledged = true;
  for (const Statement& each : agreement.statements) {
    all &= each.value;
    isAcknowledged = isAcknowledged && std::all_of(missing.begin(), missing.end(), [&](int rank) {
                       const auto at = static_cast<std::size_t>(rank);
                       return at < each.acknowledged.size() && each.acknowledged[at] == '1';
                     });
  }
  *flags = all;
  if (isAcknowledged) return {};
  return error(koloRemoteError,
               "the ranks of communicator {} agreed without {} {}, whose death not every rank had acknowledged "
               "(koloCommFailedRanks)",
               communicator.options().name, missing.size() == 1 ? "rank" : "ranks", bootstrap::describeRanks(missing));
}

}  // namespace kolo::comm
