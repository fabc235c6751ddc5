// Arrays whose shape and datatype travel with the data, which are broadcast and scattered into memory that the
// receiver's function gives when it knows both: three collectives in one turn, for the description, a vote on whether
// every rank has memory, and the data. Backend::tell() and reduceWords() carry the first two.
//
// Thread safety: any thread.
#pragma once

#include "base/handle_table.h"
#include "base/status.h"
#include "comm/array_description.h"
#include "comm/backend.h"
#include "comm/target.h"

namespace kolo::comm {

// A broadcast, or a scatter along an axis.
struct ArrayCall {
  bool scatters = false;
  int root = 0;
  const void* data = nullptr;  // on the root, with the next two
  ArrayDescription description;
  Status problem;  // why the root cannot send it
  Allocation allocation;
};

// REQUIRES: no open group.
Status runArrayCall(Held<Communicator>& communicator, const Target& target, const ArrayCall& call);

// Why there is no memory for an array, or success.
Status checkMemory(const Backend& backend, const Allocation& allocation, const ArrayDescription& description,
                   const void* memory);

}  // namespace kolo::comm
