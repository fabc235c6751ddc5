// From a fault to words: the error of an operation, or of messages, that the communicator fails with.
#include <time.h>

#include <utility>

#include "algorithms/names.h"
#include "comm/communicator.h"

namespace kolo::comm {

using device::Fault;
using device::Signature;
using device::Work;

std::string Communicator::label(const Work& work) const {
  return label(work.signature, work.number != 0 ? work.number : boards_->lastNumber());
}

std::string Communicator::label(const Signature& signature, std::uint64_t number) const {
  return fmt::format("{} (operation {} of communicator {})",
                     koloCollectiveName(static_cast<koloCollective_t>(signature.collective)), number, options_.name);
}

std::string Communicator::describeMismatch(std::uint64_t number, int one, const Called& oneCalled, int other,
                                           const Called& otherCalled) const {
  return fmt::format(
      "the ranks called different operations as number {} of communicator {}: rank {} called {}, rank {} called {}",
      number, options_.name, one, kolo::describe(Signature::unpack(oneCalled.word), oneCalled.count), other,
      kolo::describe(Signature::unpack(otherCalled.word), otherCalled.count));
}

// Whether a peer whose buffer could not be read has given up, and why: it says so on its board before its caller can
// take the memory away, and to the control plane soon after.
bool Communicator::hearsWhyGivenUp(int peer) const {
  constexpr int kRounds = 1000;
  const timespec nap{0, 1'000'000};
  for (int i = 0; i < kRounds && !failed() && device::loadAcquire(boards_->of(peer).gaveUp) != 0; ++i)
    nanosleep(&nap, nullptr);  // [gave up]
  return failed();
}

bootstrap::Failure Communicator::mismatch(const Work& work, const Fault& fault) const {
  const Signature called = Signature::unpack(fault.mine);  // now, or some operations ago
  const std::uint64_t number =
      work.number != 0 ? work.number
                       : boards_->lastNumber() - static_cast<std::uint16_t>(work.signature.sequence - called.sequence);
  return {koloMismatch, jobRank(fault.peer),
          describeMismatch(number, rank(), {fault.mine, fault.mineCount}, fault.peer, {fault.signature, fault.count})};
}

Status Communicator::conclude(const Work& work, const Fault& fault) {
  bootstrap::Failure failure;
  const std::string mine = kolo::describe(work.signature, work.headerCount);
  switch (fault.kind) {
    case Fault::kMismatch: failure = mismatch(work, fault); break;
    case Fault::kTimeout: {
      const WaitStep step{rank(),
                          fault.peer,
                          boards_->lastNumber(),
                          {work.word, work.headerCount},
                          false,
                          waitedNs(),
                          fmt::format("{}: {}", label(work), mine)};
      if (backend_->waits()) return giveUp(step);  // a thread that waits can ask the others why
      failure = timedOut(step, "");
      break;
    }
    case Fault::kUnreadable:
    case Fault::kUnwritable:
      if (failed() || hearsWhyGivenUp(fault.peer)) return conclude(work, {Fault::kAborted, fault.peer, 0, 0});
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} could not {} buffer of rank {} in {}: {}: {}", rank(),
                             fault.kind == Fault::kUnreadable ? "read the send" : "write the receive", fault.peer,
                             label(work), mine, readFailure_.message())};
      break;
    case Fault::kLost:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} has no link to rank {} in {}: {}: {}", rank(), fault.peer, label(work), mine,
                             lostLink_.message())};
      break;
    case Fault::kCorrupt:
      (void)distrust(
          fault.peer,
          fmt::format(
              "a header that offers memory at offset {} of window {}, where it has registered none that is as long as "
              "the operation needs",
              fault.count, fault.signature - 1));
      failure = {koloRemoteError, jobRank(fault.peer), fmt::format("{}; in {}: {}", distrusted_, label(work), mine)};
      break;
    case Fault::kLeft:
      failure = {koloRemoteError, jobRank(fault.peer),
                 fmt::format("rank {} destroyed its communicator while rank {} waited for it in {}: {}", fault.peer,
                             rank(), label(work), mine)};
      break;
    default: {
      const Status why = this->failure();
      return error(why.code(), "{}; rank {} was waiting for rank {} in {}: {}", why.message(), rank(), fault.peer,
                   label(work), mine);
    }
  }
  fail(failure);
  return Status(failure.code, failure.message);
}

Status Communicator::giveUpMessages(const Fault& fault, int peer) {
  Status why = concludeMessages(fault, peer);
  releaseBuffers();  // behind that, for peers that find the mark wait for the reason
  return why;
}

Status Communicator::concludeMessages(const Fault& fault, int peer) {
  const std::string whom = peer < 0 ? "any rank" : fmt::format("rank {}", peer);
  if (fault.kind == Fault::kTimeout) {
    return giveUp({rank(), peer, boards_->lastNumber(), {}, true, waitedNs(), {}});
  }
  const int culprit = fault.peer < 0 ? -1 : jobRank(fault.peer);
  std::string mine;  // what is news to the others
  if (fault.kind == Fault::kLost) {
    mine = fmt::format("rank {} has no link to rank {} for messages on communicator {}: {}", rank(), fault.peer,
                       options_.name, lostLink_.message());
  } else if (fault.kind == Fault::kCorrupt) {
    mine = fmt::format("{}; communicator {}", distrusted_, options_.name);
  } else if (fault.kind == Fault::kLeft) {
    mine = fmt::format("{} destroyed its communicator {} while rank {} waited for a message from or to it",
                       peer < 0 ? "every other rank" : whom, options_.name, rank());
  }
  if (!mine.empty()) {
    fail({koloRemoteError, culprit, mine});
    return Status(koloRemoteError, mine);
  }
  const Status why = failure();
  return error(why.code(), "{}; rank {} was waiting for a message from or to {}", why.message(), rank(), whom);
}

}  // namespace kolo::comm
