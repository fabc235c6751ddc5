// What the calls of the API become: collectives, and messages, with their arguments already checked.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>

#include "collectives/operation.h"

namespace kolo::comm {

using collectives::Call;
using collectives::CountArrays;
using collectives::CustomReduction;
using collectives::Operation;
using collectives::VectorCounts;

// One end of a message.
struct Message {
  bool isSend = false;
  bool strict = false;         // a receive whose count and datatype must be the sender's
  const void* send = nullptr;  // one of the two
  void* recv = nullptr;
  std::uint64_t count = 0;
  koloDataType_t datatype = koloInt8;
  int peer = 0;
  int tag = 0;
  koloRecvStatus_t* status = nullptr;
};

}  // namespace kolo::comm
