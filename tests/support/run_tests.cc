#define CATCH_CONFIG_RUNNER
#include "support/run_tests.h"

#include <catch2/catch.hpp>

namespace kolo::test {

int runTests(int argc, char** argv, const std::string& filter) {
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  if (!filter.empty()) session.configData().testsOrTags.push_back(filter);
  return session.run();
}

}  // namespace kolo::test
