#include "failure/cause.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "algorithms/names.h"
#include "links/blob.h"

namespace kolo::failure {
namespace {

using device::Fault;
using device::Signature;
using device::Work;

constexpr std::int64_t kMs = 1'000'000;
// How long a rank may take to answer: its reactor does nothing else, but cores may be few.
constexpr std::int64_t kAnswerNs = 1000 * kMs;
// How long the cause is looked for in all.
constexpr std::int64_t kSearchNs = 2000 * kMs;
// After which a peer by a posted link is asked what it has called; then after twice as long, and so on.
constexpr std::int64_t kInquireAfterNs = 1000 * kMs;
// A wait of which the rank has said nothing for so long is over.
constexpr std::int64_t kStaleNs = 2000 * kMs;

}  // namespace

std::optional<Account> Account::decode(std::string_view answer, int ranks) {
  links::BlobReader reader(answer);
  const auto account = reader.get<std::array<std::uint64_t, 8>>();
  const auto peer = static_cast<std::int64_t>(account[6]), waited = static_cast<std::int64_t>(account[7]);
  if (reader.truncated() || peer < -1 || peer >= ranks || waited < 0) return std::nullopt;
  return Account{
      {account[0], account[1]}, account[2], {account[3], account[4]}, (account[5] & 1) != 0, (account[5] & 2) != 0,
      static_cast<int>(peer),   waited};
}

std::string Account::encode() const {
  const std::array<std::uint64_t, 8> account{asked.word,
                                             asked.count,
                                             last,
                                             lastCalled.word,
                                             lastCalled.count,
                                             (waits ? std::uint64_t{1} : 0) | (isMessage ? 2 : 0),
                                             static_cast<std::uint64_t>(peer),
                                             static_cast<std::uint64_t>(waitedNs)};
  return links::BlobWriter().put(account).text();
}

// ---- words

std::string labelOf(const Signature& signature, std::uint64_t number, const std::string& communicator) {
  const char* const name = koloCollectiveName(static_cast<koloCollective_t>(signature.collective));
  return fmt::format("{} (operation {} of communicator {})", name != nullptr ? name : "unknown", number, communicator);
}

std::string describeMismatch(std::uint64_t number, const std::string& communicator, int one,
                             const links::Called& oneCalled, int other, const links::Called& otherCalled,
                             std::string difference) {
  if (other < one)  // so that both ranks say the same
    return describeMismatch(number, communicator, other, otherCalled, one, oneCalled, std::move(difference));
  const CalledOperation mine{Signature::unpack(oneCalled.word), oneCalled.count},
      theirs{Signature::unpack(otherCalled.word), otherCalled.count};
  if (difference.empty()) difference = describeDifference(one, mine, other, theirs);
  return fmt::format(
      "{}: the ranks called different operations as number {} of communicator {}: rank {} called {}, rank {} called {}",
      difference, number, communicator, one, kolo::describe(mine), other, kolo::describe(theirs));
}

// ---- the rank that is asked

// On the reactor's thread, whatever this rank does meanwhile.
std::string CauseFinder::answer(std::string_view question) const {
  links::BlobReader reader(question);
  const auto about = reader.get<Question>();
  const std::uint64_t number = about.number;
  if (about.asked != Asked::kNothing) return answerOf(setup_.terms.of(number).get(), about.asked, about.part);
  Account account;
  account.asked = setup_.boards.calledAs(number);
  account.last = setup_.boards.lastPosted();
  account.lastCalled = setup_.boards.calledAs(account.last);
  const std::optional<Waiting::Wait> wait = setup_.waiting.now();
  const std::int64_t now = nowNs();
  if (wait && now - wait->seenNs < kStaleNs) {
    account.waits = true;
    account.isMessage = wait->isMessage;
    account.peer = wait->peer;
    account.waitedNs = now - wait->sinceNs;
  }
  return account.encode();
}

// ---- a rank that waits

std::optional<Fault> CauseFinder::inquire(const Work& work, int peer, const executor::WaitState& state) {
  if (!setup_.peers[peer].isPosted()) return std::nullopt;
  const std::int64_t now = nowNs();
  if (inquiry_.peer != peer || inquiry_.number != setup_.boards.lastNumber())
    inquiry_ = {peer, setup_.boards.lastNumber(), state.startedNs + kInquireAfterNs, nullptr};
  if (inquiry_.answer == nullptr) {
    if (now < inquiry_.dueNs) return std::nullopt;
    inquiry_.dueNs = now + (now - state.startedNs);
    inquiry_.answer = pose(peer, {setup_.boards.lastNumber()});
    return std::nullopt;
  }
  const std::string* const text = inquiry_.answer->wait(0);
  if (text == nullptr) return std::nullopt;
  const std::optional<Account> account = Account::decode(*text, setup_.membership.ranks());
  inquiry_.answer.reset();
  if (!account || account->asked.word == 0 || account->asked.word == work.header.word) return std::nullopt;
  return Fault{Fault::kMismatch, peer, account->asked.word, account->asked.count, work.header.word, work.header.count};
}

// ---- a rank whose time is over

// On a GPU the device has waited, and says nothing meanwhile.
std::int64_t CauseFinder::waitedNs() const {
  const std::optional<Waiting::Wait> wait = setup_.waiting.now();
  return wait ? nowNs() - wait->sinceNs : timeoutInUse(setup_.timeoutMs) * kMs;
}

std::string CauseFinder::describe(const WaitStep& step) const {
  const std::string whom = step.awaited < 0 ? "any rank" : fmt::format("rank {}", step.awaited);
  const std::int64_t ms = step.waitedNs / kMs;
  if (step.isMessage) {
    return fmt::format("rank {} waited {} ms for a message from {} on communicator {}", step.waiter, ms, whom,
                       setup_.name);
  }
  return fmt::format("rank {} waited {} ms for {} in {}", step.waiter, ms, whom, step.what);
}

bootstrap::Failure CauseFinder::timedOut(const WaitStep& step, const std::string& remark) const {
  return {koloTimeout, step.awaited < 0 ? -1 : setup_.membership.jobRank(step.awaited),
          fmt::format("{}{}; the limit is {} ms ({})", describe(step), remark, timeoutInUse(setup_.timeoutMs),
                      caller.timeoutMs >= 0 ? "koloSetTimeout" : "KOLO_TIMEOUT_MS")};
}

WaitStep CauseFinder::stepOf(int waiter, const Account& account) const {
  WaitStep step{waiter,           account.peer,  account.last, account.lastCalled, account.isMessage,
                account.waitedNs, "an operation"};
  if (account.lastCalled.word != 0) {
    const Signature signature = Signature::unpack(account.lastCalled.word);
    step.what = fmt::format("{}: {}", labelOf(signature, account.last, setup_.name),
                            kolo::describe({signature, account.lastCalled.count}));
  }
  return step;
}

std::shared_ptr<bootstrap::Answer> CauseFinder::pose(int rank, const Question& question) const {
  const links::Membership& all = setup_.membership;
  return all.control->ask(all.key, all.jobRank(rank), links::BlobWriter().put(question).text());
}

// nullptr: it has not answered in time, or the communicator has failed meanwhile.
std::shared_ptr<const std::string> CauseFinder::ask(int rank, const Question& question, std::int64_t untilNs) const {
  constexpr int kSliceMs = 20;
  const std::shared_ptr<bootstrap::Answer> answer = pose(rank, question);
  do {
    if (const std::string* const text = answer->wait(kSliceMs); text != nullptr) return {answer, text};
  } while (nowNs() < untilNs && !setup_.failure.isSet());
  return nullptr;
}

// Where the host of the job's hub has gone silent, the hub cannot say what a lost link follows from: the peer may have
// given up because of that host, before the kernel of this one noticed. The kernel does so within 13 seconds
// (bootstrap/socket.cc), and then the control plane names that host's ranks. A hub that lives answers at once.
void CauseFinder::awaitNewsOfHub() const {
  constexpr std::int64_t kLongestNs = 15'000'000'000;
  const std::int64_t limitNs = setup_.timeoutMs * std::int64_t{1'000'000};
  (void)ask(setup_.membership.rank, {}, nowNs() + (limitNs > 0 ? std::min(limitNs, kLongestNs) : kLongestNs));
}

void CauseFinder::awaitNewsOf(int peer) const { (void)ask(peer, {}, nowNs() + kAnswerNs); }

// The peer is in the same operation, or has failed in it, and its control plane's thread answers meanwhile.
std::string CauseFinder::differenceOfLists(std::uint64_t number, int peer) const {
  const std::shared_ptr<const Terms> own = setup_.terms.of(number);
  if (own == nullptr || setup_.membership.control == nullptr) return {};
  return firstDifference(*own, setup_.membership.rank, peer, [&](Asked asked, std::uint64_t part) {
    return ask(peer, {number, asked, part}, nowNs() + kAnswerNs);
  });
}

// Of a wait for a rank that does not answer.
std::string CauseFinder::explainSilence(int rank) const {
  if (ask(setup_.membership.rank, {}, nowNs() + kAnswerNs / 4) != nullptr) {
    return fmt::format("; rank {} does not answer: its process is stopped, or its host is not reached", rank);
  }
  return "; it cannot be asked why: the process that made the unique id (of rank 0, if a launcher started the ranks) "
         "does not answer";
}

// Of a wait for a rank that waits for nobody.
std::string CauseFinder::explainIdleness(const WaitStep& step, const Account& account) const {
  const int rank = step.awaited;
  if (step.isMessage) return fmt::format("; rank {} waits for nobody", rank);
  if (account.last == 0) return fmt::format("; rank {} has called no operation of this communicator", rank);
  if (account.last < step.number)
    return fmt::format("; rank {} has not called it: its last is operation {}", rank, account.last);
  if (account.last > step.number) return fmt::format("; rank {} is past it, at operation {}", rank, account.last);
  return fmt::format("; rank {} has called it too, and waits for nobody", rank);
}

// In a circle of waits, the oldest wait is the cause: waits in later operations, and those that began later, follow
// from it.
Cause CauseFinder::circle(const WaitStep* begin, const WaitStep* end) const {
  const WaitStep& oldest = *std::min_element(begin, end, [](const WaitStep& a, const WaitStep& b) {
    return std::tuple(a.number, -a.waitedNs) < std::tuple(b.number, -b.waitedNs);
  });
  std::string others;
  for (const WaitStep* step = begin; step != end; ++step) {
    if (step != &oldest)
      others += fmt::format("{}rank {} for rank {}", others.empty() ? "; and " : ", ", step->waiter, step->awaited);
  }
  return {timedOut(oldest, others), oldest.waiter};
}

// Follows the waits from this rank's own on. The others still say that they wait: nobody ends a wait that was in vain.
Cause CauseFinder::find(const WaitStep& own) const {
  std::vector<WaitStep> chain{own};
  std::string remark;
  for (const std::int64_t untilNs = nowNs() + kSearchNs; chain.back().awaited >= 0 && nowNs() < untilNs;) {
    const WaitStep& step = chain.back();
    const int next = step.awaited;
    const auto before =
        std::find_if(chain.begin(), chain.end(), [&](const WaitStep& each) { return each.waiter == next; });
    if (before != chain.end()) return circle(&*before, chain.data() + chain.size());
    const std::shared_ptr<const std::string> answer = ask(next, {step.number}, std::min(untilNs, nowNs() + kAnswerNs));
    if (answer == nullptr) {
      remark = explainSilence(next);
      break;
    }
    const std::optional<Account> account = Account::decode(*answer, setup_.membership.ranks());
    if (!account) {
      remark = fmt::format("; rank {} has no such communicator any more", next);
      break;
    }
    if (!step.isMessage && account->asked.word != 0 && step.called.word != 0 &&
        account->asked.word != step.called.word) {
      const std::string words =
          describeMismatch(step.number, setup_.name, step.waiter, step.called, next, account->asked);
      return {{koloMismatch, setup_.membership.jobRank(next), words}, step.waiter};
    }
    if (!account->waits) {
      remark = explainIdleness(step, *account);
      break;
    }
    chain.push_back(stepOf(next, *account));
  }
  const WaitStep& last = chain.back();
  return {timedOut(last, remark), last.waiter};
}

}  // namespace kolo::failure
