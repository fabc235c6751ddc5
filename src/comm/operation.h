// The calls of the API, with their arguments already checked.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "device/work.h"

namespace kolo::comm {

// A v-variant's arrays of one number for each rank, as a caller gives them. Without displacements blocks are in a row.
struct CountArrays {
  const std::size_t* sendCounts = nullptr;
  const std::size_t* sendDispls = nullptr;
  const std::size_t* recvCounts = nullptr;
  const std::size_t* recvDispls = nullptr;
};

// The same, copied; empty where the operation does not look at them.
struct VectorCounts {
  std::vector<std::uint64_t> sendCounts, sendDispls, recvCounts, recvDispls;

  bool are(const CountArrays& given) const {
    return same(sendCounts, sendDispls, given.sendCounts, given.sendDispls) &&
           same(recvCounts, recvDispls, given.recvCounts, given.recvDispls);
  }
  CountArrays arrays() const { return {sendCounts.data(), sendDispls.data(), recvCounts.data(), recvDispls.data()}; }

 private:
  static bool same(const std::vector<std::uint64_t>& counts, const std::vector<std::uint64_t>& displs,
                   const std::size_t* givenCounts, const std::size_t* givenDispls) {
    if (!counts.empty() && givenCounts == nullptr) return false;
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < counts.size(); next += counts[i++]) {
      if (counts[i] != givenCounts[i] || displs[i] != (givenDispls != nullptr ? givenDispls[i] : next)) return false;
    }
    return true;
  }
};

struct CustomReduction;

// A collective as its caller says it.
struct Call {
  const void* send = nullptr;
  void* recv = nullptr;
  std::uint64_t count = 0;  // as in the API; 0 where only arrays say it
  device::Collective collective = device::Collective::kBarrier;
  koloDataType_t datatype = koloInt8;
  koloRedOp_t op = koloSum;
  int root = 0;
  bool vector = false;  // a v-variant

  bool operator==(const Call&) const = default;
  bool reduces() const { return device::isIn(collective, device::kReducing); }
};

// And with what its handles and arrays stood for.
struct Operation : Call {
  // With a reduction that a user made; held here, because its handle may be destroyed before the operation runs.
  std::shared_ptr<const CustomReduction> custom;
  std::shared_ptr<const VectorCounts> counts;  // v-variants
};

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
