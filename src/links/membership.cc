#include "links/membership.h"

#include "links/blob.h"

namespace kolo::links {

Result<std::vector<std::string>> Membership::allGather(std::string_view mine) {
  Result<std::vector<std::string>> told = control->allGather(key, ++gathers, members, rank, mine, initTimeoutMs);
  isUnanswered = told.status().code() == koloInProgress;
  if (isUnanswered) return Status(koloUnreachable, told.status().message());
  return told;
}

Status Membership::agree(const Status& mine) {
  BlobWriter writer;
  writer.put(static_cast<std::int32_t>(mine.code())).putText(mine.message());
  KOLO_ASSIGN(const std::vector<std::string> verdicts, allGather(writer.text()));
  if (!mine.ok()) return mine;
  for (std::size_t i = 0; i < verdicts.size(); ++i) {
    BlobReader reader(verdicts[i]);
    const auto code = reader.get<std::int32_t>();
    if (code != koloSuccess) return error(failureCode(code), "on rank {}: {}", i, reader.getText());
  }
  return {};
}

}  // namespace kolo::links
