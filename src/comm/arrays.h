// Arrays whose shape and datatype travel with the data: sent, broadcast and scattered, into memory that the receiver's
// function gives when it knows both.
//
// A sent array is a message with a description, and behind it one with the data, unless that is short and goes along.
// Both have tags that no user's message has. The data's tag is from the description, so several threads may receive
// arrays from one rank. A broadcast is three collectives in one turn: the description, a vote on whether every rank has
// memory, and the data. On GPUs descriptions and votes go through the control plane, and the data into the caller's
// stream.
//
// Thread safety: any thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/handle_table.h"
#include "base/status.h"
#include "comm/group.h"

namespace kolo::comm {

// Tags that messages of arrays have; KOLO_ANY_TAG does not stand for them.
inline constexpr int kArrayTag = -2;           // a description
inline constexpr int kFirstArrayDataTag = -3;  // data; and all below

// What an array is, as it goes over the wire.
struct ArrayDescription {
  std::int32_t problem = koloSuccess;  // of a broadcast: the root cannot send the array, and why
  std::uint32_t number = 0;            // of a sent array, by which its data is found
  std::uint8_t datatype = koloUint8;
  std::uint8_t ndim = 0;
  std::uint8_t hasData = 0;  // it follows in the same message
  std::uint8_t unused[5] = {};
  std::array<std::uint64_t, KOLO_MAX_DIMS> shape{};

  koloDataType_t type() const { return static_cast<koloDataType_t>(datatype); }
  // REQUIRES: check() has found nothing.
  std::uint64_t elements() const;
  std::uint64_t bytes() const;
};
// Of a description from another rank, or from a caller: what is wrong with it.
Status check(const ArrayDescription& description);

struct Allocation {
  koloAllocateFunction_t function = nullptr;
  void* context = nullptr;
};

// A broadcast, or a scatter along dimension 0.
struct ArrayCall {
  bool scatters = false;
  int root = 0;
  const void* data = nullptr;  // on the root, with the next two
  ArrayDescription description;
  Status problem;  // why the root cannot send it
  Allocation allocation;
};

// REQUIRES: no open group.
Status sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                 const ArrayDescription& description, int peer);
Status receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation, int peer,
                    koloRecvStatus_t* status);
Status runArrayCall(Held<Communicator>& communicator, const Target& target, const ArrayCall& call);

}  // namespace kolo::comm
