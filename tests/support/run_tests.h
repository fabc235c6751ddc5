// Catch2's own main, for programs that do something first.
#pragma once

#include <string>

namespace kolo::test {

// Runs the cases that the arguments name, of those that `filter` (Catch2's, empty: all) leaves; the exit status.
int runTests(int argc, char** argv, const std::string& filter = {});

}  // namespace kolo::test
