#include "support/settings.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "support/watchdog.h"

namespace kolo::test {
namespace {

constexpr const char* kOwn = "KOLO_TEST_SETTINGS";  // those of such a process, as text
constexpr const char* kRan = "# with settings of its own\n";

std::string quotedForShell(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// What selects this case alone on the program's command line.
std::string selecting(const std::string& name) {
  std::string escaped;
  for (const char c : name) {
    if (std::string_view(",[]*\\\"~").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

bool hasSettingsOfItsOwn() { return std::getenv(kOwn) != nullptr; }

void withSettings(const std::map<std::string, std::string>& settings, const std::function<void()>& body) {
  std::string text;
  for (const auto& [name, value] : settings) text += name + "=" + quotedForShell(value) + " ";
  if (const char* own = std::getenv(kOwn); own != nullptr) {
    if (text != own) return;
    std::fputs(kRan, stderr);
    body();
    return;
  }
  std::array<char, PATH_MAX> program{};
  REQUIRE(readlink("/proc/self/exe", program.data(), program.size() - 1) > 0);
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  place(KOLO_HERE ": a process with settings of its own");
  FILE* const output = popen((text + kOwn + "=" + quotedForShell(text) + " exec " + quotedForShell(program.data()) +
                              " " + quotedForShell(selecting(name)) + " 2>&1")
                                 .c_str(),
                             "re");
  REQUIRE(output != nullptr);
  std::string said;
  std::array<char, 4096> piece{};
  for (std::size_t got = 0; (got = fread(piece.data(), 1, piece.size(), output)) > 0;) said.append(piece.data(), got);
  const int status = pclose(output);
  INFO(text << "\n" << said);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(said.find(kRan) != std::string::npos);  // Catch2 is content with no case at all
}

}  // namespace kolo::test
