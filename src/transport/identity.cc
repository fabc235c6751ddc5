#include <pthread.h>
#include <sys/random.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "transport/registry.h"

namespace kolo::transport {
namespace {

Identity current;

// A forked child has its own address space and so must not pass for its parent.
void renewProcessId() {
  std::size_t got = 0;
  while (got < sizeof current.processId) {
    const ssize_t n = getrandom(current.processId + got, sizeof current.processId - got, 0);
    if (n > 0) got += static_cast<std::size_t>(n);
    if (n < 0 && errno != EINTR) {
      std::perror("kolo: getrandom");
      std::abort();
    }
  }
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

Identity* create() {
  if (!readBootId(current.hostId)) {
    // No /proc: the host's name stands in for the boot id.
    utsname name{};
    if (uname(&name) == 0) std::memcpy(current.hostId, name.nodename, sizeof current.hostId);
  }
  renewProcessId();
  (void)pthread_atfork(nullptr, nullptr, renewProcessId);
  return &current;
}

}  // namespace

const Identity& identity() {
  static const Identity* const instance = create();
  return *instance;
}

}  // namespace kolo::transport
