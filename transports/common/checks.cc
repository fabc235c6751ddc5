#include "checks.h"

namespace kolo::common {

int checkRange(const koloTransportMemory& range, const Why& why) {
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

}  // namespace kolo::common
