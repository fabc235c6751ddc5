#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "peer.h"
#if KOLO_HAVE_CUDA
#include "mock_cuda/mock_cuda.h"
#endif

// Transports between GPUs are checked on mocked ones, whose memory the tests can read and write.
int main(int argc, char** argv) {
#if KOLO_HAVE_CUDA
  kolo::test::MockCuda{}.install();
#endif
  if (argc == 3 && std::strcmp(argv[1], "--peer") == 0) return kolo::contract::servePeer(std::atoi(argv[2]));
  return Catch::Session().run(argc, argv);
}
