// Says on standard error which test case begins, where tools/run_suites.py asks for it (KOLO_TEST_MARKS): so it can show the output of a
// failed case alone.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>

namespace {

struct Marks : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    if (std::getenv("KOLO_TEST_MARKS") == nullptr) return;
    std::fflush(stdout);   // standard output and standard error go to one file
    std::fprintf(stderr, "\n== case %s\n", info.name.c_str());
  }
  void testCaseEnded(const Catch::TestCaseStats&) override { std::fflush(stdout); }
};
CATCH_REGISTER_LISTENER(Marks)

}  // namespace
