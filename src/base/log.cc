#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
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

void write(Level level, std::string_view text) {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  std::FILE* const file = destination().file;
  const std::string line = fmt::format("kolo[{}] {}: {}\n", getpid(), kNames[static_cast<int>(level)], text);
  std::fwrite(line.data(), 1, line.size(), file);  // one call, so that lines of several ranks do not mix
  std::fflush(file);
}

}  // namespace kolo::log
