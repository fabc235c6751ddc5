#include <pthread.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/settings.h"
#include "transport/registry.h"

namespace kolo::transport {
namespace {

Identity current;

// Where a filter of system calls (seccomp) refuses getrandom, and the device is missing too: a number that no other
// process has. It need not be secret.
void makeProcessId() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::uint64_t parts[2] = {
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec),
      static_cast<std::uint64_t>(getpid())};
  static_assert(sizeof parts == sizeof current.processId);
  std::memcpy(current.processId, parts, sizeof parts);
}

// A forked child has its own address space and so must not pass for its parent.
void renewProcessId() {
  std::size_t got = 0;
  while (got < sizeof current.processId) {
    const ssize_t n = getrandom(current.processId + got, sizeof current.processId - got, 0);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n < 0 && errno != EINTR) break;
  }
  if (got == sizeof current.processId) return;
  std::FILE* const file = std::fopen("/dev/urandom", "re");
  if (file != nullptr) got = std::fread(current.processId, 1, sizeof current.processId, file);
  if (file != nullptr) std::fclose(file);
  if (got < sizeof current.processId) makeProcessId();
}

int hexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The kernel draws a new boot id at every start; all containers of one kernel see the same.
bool readBootId(unsigned char (&id)[16]) {
  char text[64] = {};
  std::FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "re");
  if (file == nullptr) return false;
  const bool got = std::fgets(text, sizeof text, file) != nullptr;
  std::fclose(file);
  int digits = 0;
  for (const char* c = text; got && *c != '\0' && digits < 32; ++c) {
    const int digit = hexDigit(*c);
    if (digit < 0) continue;  // the dashes
    id[digits / 2] = static_cast<unsigned char>(id[digits / 2] << 4 | digit);
    ++digits;
  }
  return digits == 32;
}

// FNV-1a, twice with different seeds: names need to be different, not secret.
void hash(std::string_view name, unsigned char (&id)[16]) {
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t value = 0xcbf29ce484222325u + half;
    for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    std::memcpy(id + 8 * half, &value, sizeof value);
  }
}

Identity* create() {
  if (const std::string name = settings::text("KOLO_HOST_ID"); !name.empty()) {
    hash(name, current.hostId);
  } else if (!readBootId(current.hostId)) {
    // No /proc: the host's name stands in for the boot id.
    utsname name{};
    if (uname(&name) == 0) std::memcpy(current.hostId, name.nodename, sizeof current.hostId);
  }
  renewProcessId();
  (void)pthread_atfork(nullptr, nullptr, renewProcessId);
  return &current;
}

// The settings are kept as they were when first asked for, for transports hold the pointers.
const char* settingOf(const char* name) {
  static auto* const values = [] {
    auto* const all = new std::map<std::string, std::string, std::less<>>;
    for (const settings::Value& value : settings::all()) all->emplace(value.setting.name, value.text);
    return all;
  }();
  const auto at = values->find(std::string_view(name));
  return at != values->end() ? at->second.c_str() : nullptr;
}

void logLine(int level, const char* line) {
  if (level < 0 || level > static_cast<int>(log::Level::kDebug)) level = static_cast<int>(log::Level::kDebug);
  log::message(static_cast<log::Level>(level), "{}", line);
}

}  // namespace

koloTransportHost thisProcess() {
  koloTransportHost host{};
  host.size = sizeof host;
  std::memcpy(host.processId, identity().processId, sizeof host.processId);
  std::memcpy(host.hostId, identity().hostId, sizeof host.hostId);
  host.setting = settingOf;
  host.log = logLine;
  return host;
}

const Identity& identity() {
  static const Identity* const instance = create();
  return *instance;
}

}  // namespace kolo::transport
