#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "peer.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--peer") == 0) return kolo::contract::servePeer(std::atoi(argv[2]));
  return Catch::Session().run(argc, argv);
}
