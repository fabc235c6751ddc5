#include "failure/conclusions.h"

#include <time.h>

#include <utility>

#include "algorithms/names.h"

namespace kolo::failure {

using device::Fault;
using device::Signature;
using device::Work;

std::string Conclusions::label(const Work& work) const {
  return labelOf(work.signature, work.header.number != 0 ? work.header.number : setup_.boards.lastNumber(),
                 setup_.name);
}

// Whether a peer whose buffer could not be read has given up or died, and why: it says so on its board before its
// caller can take the memory away, and to the control plane soon after; a process may be gone before the control plane
// knows.
bool Conclusions::hearsWhyGivenUp(int peer) const {
  constexpr int kRounds = 1000;
  const timespec nap{0, 1'000'000};
  for (int i = 0; i < kRounds && !setup_.failure.isSet() && device::loadAcquire(setup_.boards.of(peer).gaveUp) != 0;
       ++i)
    nanosleep(&nap, nullptr);  // [gave up]
  if (!setup_.failure.isSet()) setup_.causes.awaitNewsOf(peer);
  return setup_.failure.isSet();
}

// For lists, the message begins with the first item that differs. The peer's description has been fetched before, if it
// can be had.
Status Conclusions::endByMismatch(const Work& work, const Fault& fault) {
  const Signature called = Signature::unpack(fault.mine);  // now, or some operations ago
  const std::uint64_t number =
      work.header.number != 0
          ? work.header.number
          : setup_.boards.lastNumber() - static_cast<std::uint16_t>(work.signature.sequence - called.sequence);
  const Signature theirs = Signature::unpack(fault.signature);
  const bool areLists = called.datatype == koloNumDatatypes && theirs.datatype == koloNumDatatypes;
  std::string difference;
  if (areLists && called.collective == theirs.collective && fault.mineCount != fault.count) {
    difference = setup_.causes.differenceOfLists(number, fault.peer);
    if (difference.empty() && setup_.failure.isSet()) return setup_.failure.status();
  }
  const bootstrap::Failure failure{koloMismatch, jobRank(fault.peer),
                                   describeMismatch(number, setup_.name, rank(), {fault.mine, fault.mineCount},
                                                    fault.peer, {fault.signature, fault.count}, std::move(difference))};
  setup_.failure.fail(failure);
  return failure.why;
}

// All ranks return the failure that is told first: the rank whose own wait is the cause tells it at once, the others
// give it a moment.
Status Conclusions::giveUp(const WaitStep& own) {
  constexpr int kRounds = 20;
  const timespec nap{0, 5'000'000};
  const Cause cause = setup_.causes.find(own);
  for (int i = 0; i < kRounds && cause.waiter != rank() && !setup_.failure.isSet(); ++i) nanosleep(&nap, nullptr);
  if (!setup_.failure.isSet()) setup_.failure.fail(cause.failure);
  Status first = setup_.failure.status();
  const auto tells = [&](const std::string& words) { return first.message().find(words) != std::string::npos; };
  // This wait is the cause, or stands in the circle.
  if (tells(fmt::format("rank {} waited ", rank())) || tells(fmt::format("rank {} for rank {}", rank(), own.awaited)))
    return first;
  return error(first.code(), "{}; {}", first.message(), setup_.causes.describe(own));
}

Status Conclusions::of(const Work& work, const Fault& fault) {
  bootstrap::Failure failure;
  const std::string mine = kolo::describe({work.signature, work.header.count});
  switch (fault.kind) {
    case Fault::kMismatch: return endByMismatch(work, fault);
    case Fault::kTimeout: {
      const WaitStep step{rank(),
                          fault.peer,
                          setup_.boards.lastNumber(),
                          {work.header.word, work.header.count},
                          false,
                          setup_.causes.waitedNs(),
                          fmt::format("{}: {}", label(work), mine)};
      if (setup_.waits) return giveUp(step);  // a thread that waits can ask the others why
      failure = setup_.causes.timedOut(step, "");
      break;
    }
    case Fault::kUnreadable:
    case Fault::kUnwritable:
      if (setup_.failure.isSet() || hearsWhyGivenUp(fault.peer)) return of(work, {Fault::kAborted, fault.peer, 0, 0});
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} could not {} buffer of rank {} in {}: {}: {}", rank(),
                             fault.kind == Fault::kUnreadable ? "read the send" : "write the receive", fault.peer,
                             label(work), mine, setup_.reasons.access().message())};
      break;
    case Fault::kLost:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} has no link to rank {} in {}: {}: {}", rank(), fault.peer, label(work), mine,
                             setup_.reasons.lostLink(fault.peer))};
      break;
    case Fault::kCorrupt:
      (void)setup_.reasons.distrust(
          fault.peer,
          fmt::format(
              "a header that offers memory at offset {} of window {}, where it has registered none that is as long as "
              "the operation needs",
              fault.count, fault.signature - 1));
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("{}; in {}: {}", setup_.reasons.distrusted(fault.peer), label(work), mine)};
      break;
    case Fault::kLeft:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} destroyed its communicator while rank {} waited for it in {}: {}", fault.peer,
                             rank(), label(work), mine)};
      break;
    default: {
      const Status why = setup_.failure.status();
      return error(why.code(), "{}; rank {} was waiting for rank {} in {}: {}", why.message(), rank(), fault.peer,
                   label(work), mine);
    }
  }
  setup_.failure.fail(failure);
  return failure.why;
}

Status Conclusions::ofMessages(const Fault& fault, int peer) {
  const std::string whom = peer < 0 ? "any rank" : fmt::format("rank {}", peer);
  if (fault.kind == Fault::kTimeout) {
    return giveUp({rank(), peer, setup_.boards.lastNumber(), {}, true, setup_.causes.waitedNs(), {}});
  }
  const int culprit = fault.peer < 0 ? -1 : jobRank(fault.peer);
  std::string mine;  // what is news to the others
  if (fault.kind == Fault::kLost) {
    mine = fmt::format("rank {} has no link to rank {} for messages on communicator {}: {}", rank(), fault.peer,
                       setup_.name, setup_.reasons.lostLink(fault.peer));
  } else if (fault.kind == Fault::kCorrupt) {
    mine = fmt::format("{}; communicator {}", setup_.reasons.distrusted(fault.peer), setup_.name);
  } else if (fault.kind == Fault::kLeft) {
    mine = fmt::format("{} destroyed its communicator {} while rank {} waited for a message from or to it",
                       peer < 0 ? "every other rank" : whom, setup_.name, rank());
  }
  if (!mine.empty()) {
    const bootstrap::Failure failure(koloRemoteError, culprit, std::move(mine));
    setup_.failure.fail(failure);
    return failure.why;
  }
  const Status why = setup_.failure.status();
  return error(why.code(), "{}; rank {} was waiting for a message from or to {}", why.message(), rank(), whom);
}

}  // namespace kolo::failure
