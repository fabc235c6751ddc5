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

Status Membership::agree(const Status& mine) {
  KOLO_ASSIGN(const std::vector<std::string> verdicts, allGather(BlobWriter().put(mine).text()));
  if (!mine.ok()) return mine;
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    const auto theirs = BlobReader(verdicts[i]).get<Status>();
    if (!theirs.ok()) return error(theirs.code(), "on rank {}: {}", i, theirs.message());
  }
  return {};
}

}  // namespace kolo::links
