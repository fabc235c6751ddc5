// Says on standard error which test case begins, where tools/run_suites.py asks for it (KOLO_TEST_MARKS): so it can
// show the output of a failed case alone; tools/run-gpu-checks, which may kill a program that hangs, asks for it too.
// Every line is then written at once.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

namespace {

struct Marks : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    if (std::getenv("KOLO_TEST_MARKS") != nullptr) std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  }
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    if (std::getenv("KOLO_TEST_MARKS") == nullptr) return;
    std::fprintf(stderr, "\n== case %s\n", info.name.c_str());
  }
};
CATCH_REGISTER_LISTENER(Marks)

}  // namespace
