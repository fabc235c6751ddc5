#define CATCH_CONFIG_RUNNER
#include "support/run_tests.h"

#include <catch2/catch.hpp>

#include "support/seed.h"

namespace kolo::test {

int runTests(int argc, char** argv, const std::string& filter) {
  (void)testSeed();  // into the environment, before there are threads that read it
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  if (!filter.empty()) session.configData().testsOrTags.push_back(filter);
  return session.run();
}

}  // namespace kolo::test
