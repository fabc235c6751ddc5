// The collectives of the API, with their arguments already checked.
#pragma once

#include <kolo/kolo.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/list.h"
#include "device/work.h"
#include "executor/context.h"

namespace kolo::collectives {

// The count arrays of a v-variant as the caller gives them: one number for each rank. Without displacements the blocks
// lie in a row.
struct CountArrays {
  const std::size_t* sendCounts = nullptr;
  const std::size_t* sendDispls = nullptr;
  const std::size_t* recvCounts = nullptr;
  const std::size_t* recvDispls = nullptr;
};

// A copy of these arrays. An array that the operation does not read is empty.
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

// A reduction that a user made.
struct CustomReduction {
  bool isPreMulSum = false;
  koloDataType_t datatype = koloInt8;  // of the scalar
  alignas(16) std::array<unsigned char, 16> scalar{};
  executor::UserReduction user;
  bool commutative = true;
};

// The datatype in the call of a collective over a list, whose items have datatypes of their own.
inline constexpr auto kOfItems = koloNumDatatypes;

// A collective as its caller says it.
struct Call {
  const void* send = nullptr;  // over a list, that one's address
  void* recv = nullptr;
  std::uint64_t count = 0;  // as in the API; 0 where only arrays, or a list, say it
  device::Collective collective = device::Collective::kBarrier;
  koloDataType_t datatype = koloInt8;
  koloRedOp_t op = koloSum;
  int root = 0;
  bool vector = false;  // a v-variant

  bool operator==(const Call&) const = default;
  bool reduces() const { return device::isIn(collective, device::kReducing); }
};

// A call, and what its handles and arrays stood for.
struct Operation : Call {
  // The reduction that a user made. The operation holds it: its handle may be destroyed before the operation runs.
  std::shared_ptr<const CustomReduction> custom;
  std::shared_ptr<const VectorCounts> counts;  // v-variants
  std::shared_ptr<const List> list;            // over a list

  void over(std::shared_ptr<const List> found) {
    list = std::move(found);
    send = list.get();
    collective = list->collective;
    datatype = kOfItems;
    root = list->root;
    vector = !list->areAlike;
  }
};

// The device code of a predefined reduction; an average is a sum.
device::ReduceOp reduceOpOf(koloRedOp_t op);
// Whether a predefined reduction is right only if the inputs of all ranks are folded at once: an average of 8- or
// 16-bit integers.
bool needsWholeFold(koloRedOp_t op, koloDataType_t datatype);
// And of an operation, of some of its items at least.
bool needsWholeFold(const Operation& operation);
// The planner's number of an operation's reduction (planner::Query::reduction).
int reductionOf(const Operation& operation);
// Whether each rank knows only the counts of its own blocks.
bool countsDiffer(const Call& call);
// The planner's size: bytes of one block, of the longest where they differ.
std::uint64_t plannedBytes(const Operation& operation);

}  // namespace kolo::collectives
