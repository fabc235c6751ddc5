#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <string>

#include "base/descriptor.h"
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

namespace {

struct File {
  std::FILE* file = stderr;
  Status status;
  File() {
    const std::string path = settings::text("KOLO_DEBUG_FILE");
    if (path.empty()) return;
    const int fd = clearOfStandard(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
    std::FILE* const opened = fd >= 0 ? ::fdopen(fd, "a") : nullptr;
    if (opened != nullptr) {
      file = opened;
    } else {
      const Status why = systemError(errno, fmt::format("KOLO_DEBUG_FILE={} cannot be written", path));
      status = Status(koloInvalidEnvironment, why.message());
    }
  }
};

const File& destination() {
  static const auto* const instance = new File;  // never closed: threads may log during exit
  return *instance;
}

}  // namespace

Status openFile() { return destination().status; }

void write(Level level, fmt::string_view format, fmt::format_args args) noexcept {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  fmt::memory_buffer line;  // on the stack, up to a few hundred characters
  try {
    fmt::format_to(std::back_inserter(line), "kolo[{}] {}: ", getpid(), kNames[static_cast<int>(level)]);
    fmt::vformat_to(std::back_inserter(line), format, args);
    line.push_back('\n');
    std::FILE* const file = destination().file;
    std::fwrite(line.data(), 1, line.size(), file);  // one call, so that lines of several ranks do not mix
    std::fflush(file);
  } catch (const std::exception&) {
    std::fprintf(stderr, "kolo[%d] %s: no memory for: %.*s\n", getpid(), kNames[static_cast<int>(level)],
                 static_cast<int>(format.size()), format.data());
  }
}

}  // namespace kolo::log
