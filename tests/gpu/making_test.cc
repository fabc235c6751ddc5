// As tests/unit/making_test.cc, of communicators on GPUs, whose ranks have more to arrange.
#include "support/making.h"

#include "gpu/support.h"

namespace kolo::test {

TEST_CASE("a rank that fails or dies at any exchange of making a communicator on GPUs is named by the others",
          "[mock]") {
  const MockScene scene({.devices = 1, .multiprocessors = 132});  // one communicator leaves some for others
  const SettingsScope settings({std::pair{"KOLO_GPU_CHANNELS", std::string("1")}});  // arenas are small
  const char* const transports =
      GENERATE("p2p,shm", "tcp");  // from GPU to GPU, and by posted links through the host's memory
  INFO(transports);
  Result<comm::Options> options = comm::Options::make(nullptr, nullptr);
  REQUIRE(options.ok());
  options.value().transports = transports;
  options.value().device = 0;
  failAtEachExchange(byShrink(), options.value(), 2, 1);
}

}  // namespace kolo::test
