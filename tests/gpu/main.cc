#include <cstdlib>

#include "gpu/support.h"
#include "support/processes.h"
#include "support/run_tests.h"
#if KOLO_HAVE_VERBS
#include "mock_verbs/mock_verbs.h"
#endif

int main(int argc, char** argv) {
#if KOLO_HAVE_VERBS
  // Of the process that started this one; or, to run a whole suite over InfiniBand, of its own.
  if (!kolo::test::MockVerbs::join() && std::getenv("KOLO_TEST_MOCK_NICS") != nullptr)
    kolo::test::MockVerbs{}.install();
#endif
  const int code = kolo::test::runRole(argc, argv);
  if (code >= 0) return code;
  // On a real GPU: only what is about one.
  return kolo::test::runTests(argc, argv, kolo::test::hasRealDevice() ? "~[mock]" : "");
}
