#include "comm/agreement.h"

#include <time.h>

#include <algorithm>
#include <iterator>

#include "base/caller.h"
#include "bootstrap/wire.h"
#include "comm/factory.h"
#include "comm/parts.h"
#include "common/clock.h"

namespace kolo::comm {
namespace {

constexpr std::uint64_t kKeyOfAgreements = ~std::uint64_t{3};  // no split has such a number
constexpr std::size_t kMostVerdictBytes = 2000;
// Between two exchanges of a rank that is ahead of others, which are still to hear of a death.
constexpr std::int64_t kFirstNapNs = 1'000'000, kLongestNapNs = 64'000'000;

std::vector<int> ranksBut(const Communicator& communicator, const std::vector<int>& excluded,
                          const std::vector<int>& dead) {
  const auto isIn = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  std::vector<int> living;
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    if (!isIn(dead, rank) && !isIn(excluded, rank)) living.push_back(rank);
  }
  return living;
}

std::vector<int> livingRanks(Communicator& communicator, const std::vector<int>& excluded) {
  return ranksBut(communicator, excluded, communicator.failureState().dead());
}

std::vector<int> jobRanks(Communicator& communicator, const std::vector<int>& ranks) {
  std::vector<int> of;
  for (const int rank : ranks) of.push_back(communicator.membership().jobRank(rank));
  return of;
}

// Under a key of its own: a failure that was reported for the communicator does not end it. The hub tells of a rank
// that gives up and of the end of an exchange in one order to all. So a rank that has heard of the former before the
// latter leaves no other rank with a result.
Result<std::vector<std::string>> meet(Communicator& communicator, const std::vector<int>& living, std::string_view mine,
                                      bootstrap::Interrupt* interrupt) {
  const Membership& whole = communicator.membership();
  const std::uint64_t key = mixKeys(whole.key, kKeyOfAgreements);
  std::uint64_t list = key;
  for (const int rank : living) list = mixKeys(list, static_cast<std::uint64_t>(rank));
  const auto own = std::find(living.begin(), living.end(), communicator.rank());
  return whole.control->allGather(key, bootstrap::kPartialSequence | list, jobRanks(communicator, living),
                                  static_cast<int>(own - living.begin()), mine, whole.initTimeoutMs, interrupt);
}

void nap(std::int64_t& ns) {
  const WhileLent lent;
  const timespec time{0, static_cast<long>(ns)};
  nanosleep(&time, nullptr);
  ns = std::min(2 * ns, kLongestNapNs);
}

// A failure that names ranks of the job.
Status translate(Communicator& communicator, const std::vector<int>& ranks, const Status& why) {
  const std::vector<int> ofTheJob = jobRanks(communicator, ranks);
  if (ofTheJob == ranks) return why;
  return error(why.code(), "{} (ranks {} of communicator {} are ranks {} of the job)", why.message(),
               bootstrap::describeRanks(ranks), communicator.options().name, bootstrap::describeRanks(ofTheJob));
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
    if (!each.verdict.ok()) {
      return error(each.verdict.code(), "on rank {}: {}", agreement.ranks[i],
                   std::string_view(each.verdict.message()).substr(0, kMostVerdictBytes));
    }
  }
  return {};
}

// There is a result that this rank does not know, or the others wait for it in vain.
void giveUpAgreements(Communicator& communicator, const Status& why) {
  communicator.failureState().giveUp(error(koloUnreachable, "rank {} takes part in no agreement of communicator {}: {}",
                                           communicator.rank(), communicator.options().name, why.message()));
}

Statement withVerdict(Statement statement, const Status& verdict) {
  statement.verdict = {verdict.code(), verdict.message().substr(0, kMostVerdictBytes)};
  return statement;
}

Result<Agreement> agreeOrThrow(Communicator& communicator, const std::vector<int>& excluded, Statement mine) {
  FailureState& failures = communicator.failureState();
  const std::int64_t limitNs = communicator.membership().initTimeoutMs * std::int64_t{1'000'000};
  std::int64_t rivalsSinceNs = 0;  // 0: there are none
  std::int64_t napNs = kFirstNapNs;
  for (mine = withVerdict(mine, mine.verdict);;) {
    Agreement agreement;
    agreement.ranks = livingRanks(communicator, excluded);
    if (!std::binary_search(agreement.ranks.begin(), agreement.ranks.end(), communicator.rank())) {
      return error(koloUnreachable, "rank {} counts as dead on the other ranks of communicator {}: {}",
                   communicator.rank(), communicator.options().name, failures.ownDeath().message());
    }
    // By those that have died behind that, too: other ranks may have heard of the former before the latter.
    const std::shared_ptr<bootstrap::Interrupt> interrupt = failures.interruptFor(ranksBut(communicator, excluded, {}));
    const Result<std::vector<std::string>> told =
        withoutExceptions([&] { return meet(communicator, agreement.ranks, links::encode(mine), interrupt.get()); });
    if (told.ok()) {
      std::transform(told.value().begin(), told.value().end(), std::back_inserter(agreement.statements),
                     links::decode<Statement>);
      KOLO_TRY(check(communicator, agreement));
      return agreement;
    }
    const Status& why = told.status();
    if (why.code() == koloInProgress) {
      giveUpAgreements(communicator, why);  // the others may have a result, and go on
      return Status(koloUnreachable, why.message());
    }
    KOLO_TRY(interrupt->why());  // which may have come behind the end by a death
    const bool knowsMore = livingRanks(communicator, excluded) != agreement.ranks;
    if (why.code() == koloMismatch) {
      // Another rank has heard, or is to hear, of a death. Or it excludes others, or has another purpose.
      if (rivalsSinceNs == 0 || knowsMore) rivalsSinceNs = nowNs();
      if (limitNs > 0 && nowNs() - rivalsSinceNs > limitNs) return translate(communicator, agreement.ranks, why);
      nap(napNs);
      continue;
    }
    rivalsSinceNs = 0;
    if (why.code() == koloRemoteError && knowsMore) continue;
    if (why.code() == koloRemoteError)
      return translate(communicator, agreement.ranks, {koloUnreachable, why.message()});
    if (why.code() == koloTimeout) return translate(communicator, agreement.ranks, why);
    if (!mine.verdict.ok()) {
      giveUpAgreements(communicator, why);
      return why;
    }
    mine = withVerdict(mine, why);  // this rank has not come, and the others wait to hear why
    nap(napNs);
  }
}

}  // namespace

Result<Agreement> agree(Communicator& communicator, const std::vector<int>& excluded, Statement mine) {
  bool hasThrown = true;
  Result<Agreement> agreement = withoutExceptions([&] {
    Result<Agreement> made = agreeOrThrow(communicator, excluded, std::move(mine));
    hasThrown = false;
    return made;
  });
  if (hasThrown) giveUpAgreements(communicator, agreement.status());
  return agreement;
}

// All ranks that take part have the same statements, so they have the same result. A rank that is told of a death is
// one that does not take part: all deaths are acknowledged where as many are as ranks are missing.
Status agreeOnFlags(Communicator& communicator, std::uint64_t* flags) {
  const int told = communicator.failureState().acknowledged();
  KOLO_ASSIGN(const Agreement agreement, agree(communicator, {},
                                               {.purpose = Statement::kFlags,
                                                .verdict = {},
                                                .value = *flags,
                                                .acknowledged = static_cast<std::uint32_t>(told)}));
  std::vector<int> missing;
  for (int rank = 0; rank < communicator.ranks(); ++rank) {
    if (!std::binary_search(agreement.ranks.begin(), agreement.ranks.end(), rank)) missing.push_back(rank);
  }
  std::uint64_t all = ~std::uint64_t{0};
  bool isAcknowledged = true;
  for (const Statement& each : agreement.statements) {
    all &= each.value;
    isAcknowledged = isAcknowledged && each.acknowledged >= missing.size();
  }
  *flags = all;
  if (isAcknowledged) return {};
  return error(koloRemoteError,
               "the ranks of communicator {} agreed without {} {}, whose death not every rank had acknowledged "
               "(koloCommFailedRanks)",
               communicator.options().name, missing.size() == 1 ? "rank" : "ranks", bootstrap::describeRanks(missing));
}

}  // namespace kolo::comm
