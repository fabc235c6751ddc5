// A collective for functions of the API that consist of one.
#pragma once

#include <kolo/kolo.h>

#include "comm/operation.h"

namespace kolo::api {

// An all-reduce, at once. function: the one that errors name. REQUIRES: no open group.
koloResult_t allReduce(const char* function, const comm::Call& call, koloComm_t comm) noexcept;

}  // namespace kolo::api
