// The calls of the API, with their arguments already checked.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "device/work.h"

namespace kolo::comm {

// Counts and displacements of a v-variant, copied from the caller.
struct VectorCounts {
  std::vector<std::uint64_t> sendCounts, sendDispls, recvCounts, recvDispls;
};

struct CustomReduction;

// A collective as its caller says it.
struct Call {
  const void* send = nullptr;
  void* recv = nullptr;
  std::uint64_t count = 0;          // as in the API; v-variants: of this rank's own block
  device::Collective collective = device::Collective::kBarrier;
  koloDataType_t datatype = koloInt8;
  koloRedOp_t op = koloSum;
  int root = 0;

  bool operator==(const Call&) const = default;
  bool reduces() const { return device::isIn(collective, device::kReducing); }
};

// And with what its handles and arrays stood for.
struct Operation : Call {
  // With a reduction that a user made; held here, because its handle may be destroyed before the operation runs.
  std::shared_ptr<const CustomReduction> custom;
  std::shared_ptr<const VectorCounts> counts;   // v-variants
};

// One end of a message.
struct Message {
  bool isSend = false;
  bool strict = false;              // a receive whose count and datatype must be the sender's
  const void* send = nullptr;       // one of the two
  void* recv = nullptr;
  std::uint64_t count = 0;
  koloDataType_t datatype = koloInt8;
  int peer = 0;
  int tag = 0;
  koloRecvStatus_t* status = nullptr;
};

}  // namespace kolo::comm
