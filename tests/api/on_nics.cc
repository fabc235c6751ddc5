// The cases of this folder where the NICs are mocked.
#include "mock_verbs/mock_verbs.h"
#include "support/run_tests.h"

int main(int argc, char** argv) {
  // Those of the process that started this one (withSettings), or its own.
  if (!kolo::test::MockVerbs::join()) kolo::test::MockVerbs{}.install();
  return kolo::test::runTests(argc, argv);
}
