#include "base/identity.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/forever.h"
#include "base/fork.h"

namespace kolo {
namespace {

struct OfProcess {
  OfProcess();
  Identity identity{};
};

// Where a filter of system calls (seccomp) refuses getrandom, and the device is missing too: a number that no other
// process has. It need not be secret.
OfProcess::OfProcess() {
  std::size_t got = 0;
  while (got < identity.size()) {
    const ssize_t n = getrandom(identity.data() + got, identity.size() - got, 0);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n < 0 && errno != EINTR) break;
  }
  if (got == identity.size()) return;
  std::FILE* const file = std::fopen("/dev/urandom", "re");
  if (file != nullptr) got = std::fread(identity.data(), 1, identity.size(), file);
  if (file != nullptr) std::fclose(file);
  if (got == identity.size()) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::uint64_t parts[2] = {
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec),
      static_cast<std::uint64_t>(getpid())};
  static_assert(sizeof parts == sizeof identity);
  std::memcpy(identity.data(), parts, sizeof parts);
}

// Read when the library is loaded: later the process may have no descriptor for it, and pass for one of another host.
struct BootId {
  char text[64] = {};
  BootId() {
    std::FILE* const file = std::fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == nullptr) return;
    if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
};
Forever<BootId> loaded;

}  // namespace

const Identity& processIdentity() { return ofThisProcess<OfProcess>().identity; }

std::string_view bootId() { return loaded.object.text; }

}  // namespace kolo
