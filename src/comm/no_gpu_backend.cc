// What stands for communicators on GPUs in a build without CUDA.
#include "comm/communicator.h"

namespace kolo::comm {

Result<std::unique_ptr<Backend>> makeGpuBackend(Communicator& owner, const std::vector<planner::Uplink>&,
                                                const std::string&) {
  return error(koloUnsupported, "device is {}: this library was built without CUDA; expected -1, host memory",
               owner.options().device);
}

}  // namespace kolo::comm
