// Tensors on CUDA devices: a communicator for the device, and the order between its operations and torch's streams.
// cuda.cc where torch has CUDA, else no_cuda.cc.
//
// Thread safety: all functions.
#pragma once

#include <functional>
#include <memory>

#include "torch/communicator.h"
#include "torch/operation.h"
#include "torch/work.h"

namespace kolo::pytorch {

class Gpu {
 public:
  // Collective over the group. Throws where this build has no CUDA.
  static std::unique_ptr<Gpu> make(const Membership& member, at::Device device);
  virtual ~Gpu() = default;

  virtual Communicator& communicator(at::Device device) = 0;
  // Enqueues the operation behind what torch's current stream holds. Of a synchronous call the current stream goes on
  // behind it.
  virtual c10::intrusive_ptr<c10d::Work> run(Operation&& operation, bool asyncOp, const Facts& facts,
                                             const std::function<koloResult_t(const Place&, Operation&)>& call) = 0;
  // The first failure of a communicator, or koloSuccess.
  virtual koloResult_t failure() = 0;
  virtual void end(bool abort) = 0;
};

}  // namespace kolo::pytorch
