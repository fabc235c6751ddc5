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
