#include "support/processes.h"
#include "support/run_tests.h"

int main(int argc, char** argv) {
  const int code = kolo::test::runRole(argc, argv);
  return code >= 0 ? code : kolo::test::runTests(argc, argv);
}
