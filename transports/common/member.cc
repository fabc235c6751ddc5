#include "member.h"

#include <unistd.h>

namespace kolo::common {
namespace {

constexpr int kFallbackTimeoutMs = 10000;

}  // namespace

int openMember(const koloTransportHost& host, const char* purpose, Member* member, const Why& why) {
  if (sodium_init() < 0) return why.fail(KOLO_TRANSPORT_ERROR, "libsodium cannot be initialised");
  *member = {.key = deriveKey(host.communicator, purpose),
             .rank = host.rank,
             .ranks = host.ranks,
             .timeoutMs = host.timeoutMs > 0 ? host.timeoutMs : kFallbackTimeoutMs,
             .pid = getpid(),
             .generation = forkGeneration()};
  return KOLO_TRANSPORT_OK;
}

int checkProcess(const Member& member, const Why& why) {
  if (member.isOurs()) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR,
                  "this process was forked from process %d, which made the communicator; make one here", member.pid);
}

int checkRange(const Member& member, const koloTransportMemory& range, const Why& why) {
  if (const int code = checkProcess(member, why); code != KOLO_TRANSPORT_OK) return code;
  if (range.size < sizeof range) {
    return why.fail(KOLO_TRANSPORT_ERROR, "koloTransportMemory has %u bytes, expected at least %zu", range.size,
                    sizeof range);
  }
  if (range.address == nullptr || range.bytes == 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "a range of %llu bytes at %p, expected at least one byte",
                    static_cast<unsigned long long>(range.bytes), range.address);
  }
  return KOLO_TRANSPORT_OK;
}

int failAltered(const char* what, const Why& why) {
  return why.fail(KOLO_TRANSPORT_ERROR, "the %s was altered, or comes from another communicator", what);
}

}  // namespace kolo::common
