// Where an operation is to go: to a stream of the library's, or, on GPUs, one of CUDA's; neither: at once, or to the
// default stream.
#pragma once

#include "base/handle_table.h"
#include "comm/request.h"
#include "comm/stream.h"

namespace kolo::comm {

struct Target {
  Weak<Stream> stream;
  void* gpuStream = nullptr;
  Request* request = nullptr;  // instead: started, and not waited for
  bool operator==(const Target&) const = default;
};

}  // namespace kolo::comm
