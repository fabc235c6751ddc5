// Messages to standard error (or KOLO_DEBUG_FILE), by level; KOLO_DEBUG=error|warn|info|debug, warn by default.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kolo::log {

enum class Level : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// -1 until the first message reads the setting.
extern std::atomic<int> threshold;
bool enabledSlow(Level level);
// Throws nothing: of a message for which there is no memory, the format is written.
void write(Level level, fmt::string_view format, fmt::format_args args) noexcept;
// Opens KOLO_DEBUG_FILE; koloInvalidEnvironment and why if that cannot be written, and then messages go to standard
// error.
Status openFile();

inline bool enabled(Level level) {
  const int now = threshold.load(std::memory_order_relaxed);
  return now < 0 ? enabledSlow(level) : static_cast<int>(level) <= now;
}

template <class... Args>
void message(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, format, fmt::make_format_args(args...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kWarn, format, std::forward<Args>(args)...);
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kInfo, format, std::forward<Args>(args)...);
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::kDebug, format, std::forward<Args>(args)...);
}

}  // namespace kolo::log
