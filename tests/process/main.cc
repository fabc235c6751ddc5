#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "support/processes.h"

int main(int argc, char** argv) {
  const int code = kolo::test::runRole(argc, argv);
  return code >= 0 ? code : Catch::Session().run(argc, argv);
}
