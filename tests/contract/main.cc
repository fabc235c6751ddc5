#include <cstdlib>
#include <cstring>

#include "peer.h"
#include "support/run_tests.h"
#if KOLO_HAVE_CUDA
#include "mock_cuda/mock_cuda.h"
#endif
#if KOLO_HAVE_VERBS
#include "mock_verbs/mock_verbs.h"
#endif

// Transports between GPUs are checked on mocked ones, whose memory the tests can read and write. So is the one over
// InfiniBand, but where KOLO_TEST_REAL_VERBS says that there are devices.
int main(int argc, char** argv) {
#if KOLO_HAVE_CUDA
  kolo::test::MockCuda{}.install();
#endif
#if KOLO_HAVE_VERBS
  if (std::getenv("KOLO_TEST_REAL_VERBS") == nullptr && !kolo::test::MockVerbs::join())
    kolo::test::MockVerbs{}.install();
#endif
  if (argc == 3 && std::strcmp(argv[1], "--peer") == 0) return kolo::contract::servePeer(std::atoi(argv[2]));
  return kolo::test::runTests(argc, argv);
}
