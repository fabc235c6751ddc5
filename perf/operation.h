// One collective with all that decides what it moves, where its buffers lie, and how it is called.
//
// Thread safety: values and free functions; runOnce as the library's collectives.
#pragma once

#include <cstddef>

#include "kolo/kolo.h"
#include "perf/buffers.h"
#include "perf/sizes.h"

namespace kolo::perf {

struct Operation {
  koloCollective_t collective = koloCollectiveAllReduce;
  koloDataType_t datatype = koloFloat32;
  koloRedOp_t op = koloSum;  // of reductions
  int root = 0;              // of rooted collectives
  bool inPlace = false;
};

struct Ranks {
  int self;
  int count;
};

// Where one rank's call finds its operands: the lengths are what this rank's part in the collective reads and writes.
struct Placement {
  std::byte* send;
  std::byte* recv;
  size_t sendElements;
  size_t recvElements;
  // send and recv share memory, which starts at `recv` or before it and holds `elements` of the shape.
  bool inPlace;
};

// Whether the interface defines an in-place form.
bool canBeInPlace(koloCollective_t collective);

// Where a collective is in place on its root only, the other ranks' placements are out of place.
Placement place(const Operation& operation, const Shape& shape, Ranks ranks, const Buffers& buffers);

// One call, which is enqueued into the stream, or done on return where that is NULL. send_recv is one group: to the
// next rank, from the previous.
koloResult_t runOnce(const Operation& operation, const Shape& shape, const Placement& at, Ranks ranks, koloComm_t comm,
                     koloStream_t stream);

}  // namespace kolo::perf
