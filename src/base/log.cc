#include "base/log.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string>

#include "base/settings.h"

namespace kolo::log {

std::atomic<int> threshold{-1};

bool enabledSlow(Level level) {
  const std::string word = settings::text("KOLO_DEBUG");
  int value = static_cast<int>(Level::kWarn);
  if (word == "error") value = static_cast<int>(Level::kError);
  if (word == "info") value = static_cast<int>(Level::kInfo);
  if (word == "debug") value = static_cast<int>(Level::kDebug);
  threshold.store(value, std::memory_order_relaxed);
  return static_cast<int>(level) <= value;
}

void write(Level level, std::string_view text) {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  static std::FILE* const file = [] {
    const std::string path = settings::text("KOLO_DEBUG_FILE");
    std::FILE* opened = path.empty() ? nullptr : std::fopen(path.c_str(), "ae");
    return opened != nullptr ? opened : stderr;
  }();
  const std::string line = fmt::format("kolo[{}] {}: {}\n", getpid(), kNames[static_cast<int>(level)], text);
  std::fwrite(line.data(), 1, line.size(), file);  // one call, so that lines of several ranks do not mix
  std::fflush(file);
}

}  // namespace kolo::log
