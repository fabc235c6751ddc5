// What every transport refuses before it looks further.
//
// Thread safety: pure functions.
#pragma once

#include <kolo/transport.h>

#include "why.h"

namespace kolo::common {

// A koloTransportMemory that is not whole, or a range of no bytes.
int checkRange(const koloTransportMemory& range, const Why& why);

}  // namespace kolo::common
