// For a torch without CUDA.
#include "torch/gpu.h"

namespace kolo::pytorch {

std::unique_ptr<Gpu> Gpu::make(const Membership&, at::Device device) {
  TORCH_CHECK(false, "kolo: a tensor is on ", device.str(), ", and kolo_torch was built for a torch without CUDA");
}

}  // namespace kolo::pytorch
