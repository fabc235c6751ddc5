// What a part of libkolo takes of api that is a client of kolo.h otherwise: the end of a function of the C interface,
// and what a list transfers.
//
// Thread safety: everything here, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>

#include "base/status.h"
#include "common/float_mode.h"

namespace kolo::api {

// What a function returns whose body has failed. Its message is kept.
koloResult_t keepError(const char* function, const Status& status) noexcept;
koloResult_t keepException(const char* function) noexcept;  // REQUIRES: one is being handled

// Runs the body of an API function, in the usual floating-point mode. calculates: false for what finds the mode itself
// where it needs it.
template <bool calculates = true, class Body>
koloResult_t guard(const char* function, Body&& body) noexcept {
  const UsualFloatMode usual(calculates);
  try {
    const Status status = body();
    return status.ok() ? koloSuccess : keepError(function, status);
  } catch (...) {
    return keepException(function);
  }
}

// Why an operation is not submitted. The end of an open group returns that, too.
Status refuse(Status why);

// What an item of a list transfers in a collective: the longer of its buffers, which is the one with the blocks of all
// ranks where one is divided.
struct Transfer {
  koloDataType_t datatype = koloInt8;
  std::uint64_t bytes = 0;
};
// number: of the item, for messages.
Result<Transfer> transferOf(const koloItem_t& item, std::size_t number, koloCollective_t collective, koloComm_t comm);

}  // namespace kolo::api
