#include "links/membership.h"

#include "links/blob.h"

namespace kolo::links {

Result<std::vector<std::string>> Membership::allGather(std::string_view mine) {
  Result<std::vector<std::string>> told =
      control->allGather(key, ++gathers, members, rank, mine, initTimeoutMs, interrupt.get());
  const bool isLate = told.status().code() == koloInProgress;
  isUnanswered = isLate || (!told.ok() && isInterrupted());
  if (isLate) return Status(koloUnreachable, told.status().message());
  return told;
}

// Of a rank that has died the control plane tells before it says that nobody answers. One that lives answers at once,
// but if its process is stopped.
Status Membership::whyUnreached(int ofRank, const Status& why) const {
  const std::uint64_t ofThis = key ^ 0x9e3779b97f4a7c15;  // another than all communicators have
  const auto death = std::make_shared<bootstrap::Interrupt>();
  control->subscribe(ofThis, {jobRank(ofRank)}, [death](const bootstrap::Failure& failure) {
    if (failure.isDeath) death->raise(failure.why);
  });
  const std::shared_ptr<bootstrap::Answer> answer = control->ask(ofThis, jobRank(ofRank), {});
  for (int ms = std::min(linkTimeMs(), 1000); ms > 0 && !death->isRaised() && answer->wait(1) == nullptr;) --ms;
  control->unsubscribe(ofThis);
  return death->isRaised() ? error(koloRemoteError, "{}; {}", death->why().message(), why.message()) : why;
}

Result<bool> Membership::agreeWhether(const Status& mine, bool iSay) {
  KOLO_ASSIGN(const std::vector<std::string> verdicts, allGather(BlobWriter().put(mine).put(iSay).text()));
  if (!mine.ok()) return mine;
  bool anySays = false;
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    BlobReader reader(verdicts[i]);
    const auto theirs = reader.get<Status>();
    if (!theirs.ok()) return error(theirs.code(), "on rank {}: {}", i, theirs.message());
    anySays = reader.get<std::uint8_t>() != 0 || anySays;
  }
  return anySays;
}

Status Membership::agree(const Status& mine) { return agreeWhether(mine, false).status(); }

}  // namespace kolo::links
