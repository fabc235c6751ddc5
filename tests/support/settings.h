// Test cases that need settings of their own in the environment, which the library reads once a process.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace kolo::test {

// Runs the Catch2 test case that calls it again, in a process with these variables, and there `body`; a check fails
// with that process's output unless it passed. In such a process, does nothing for other settings than its own. Call
// from the main thread.
void withSettings(const std::map<std::string, std::string>& settings, const std::function<void()>& body);
// Whether this is such a process.
bool hasSettingsOfItsOwn();

}  // namespace kolo::test
