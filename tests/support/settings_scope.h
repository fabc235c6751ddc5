// Settings for a part of a test, for programs that are linked with the library's own parts. Programs that are linked
// with the library as users are take settings.h.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"

namespace kolo::test {

// Settings that are in force while it lives, for the communicators that are made then.
class SettingsScope {
 public:
  explicit SettingsScope(const std::vector<std::pair<const char*, std::string>>& values) {
    for (const auto& [name, value] : values) {
      const char* const before = std::getenv(name);
      before_.emplace_back(name, before != nullptr ? before : "");
      ::setenv(name, value.c_str(), 1);
    }
    settings::reload();
  }
  ~SettingsScope() {
    for (const auto& [name, before] : before_) {
      if (before.empty()) ::unsetenv(name.c_str());
      else ::setenv(name.c_str(), before.c_str(), 1);
    }
    settings::reload();
  }
  SettingsScope(const SettingsScope&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> before_;  // empty: it was not set
};

}  // namespace kolo::test
