#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "gpu/support.h"
#include "support/processes.h"

int main(int argc, char** argv) {
  const int code = kolo::test::runRole(argc, argv);
  if (code >= 0) return code;
  Catch::Session session;
  if (const int wrong = session.applyCommandLine(argc, argv); wrong != 0) return wrong;
  // On a real GPU: only what is about one.
  if (kolo::test::hasRealDevice()) session.configData().testsOrTags.emplace_back("~[mock]");
  return session.run();
}
