#include "bootstrap/process_info.h"

#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "base/status.h"
#include "network/place.h"

namespace kolo::bootstrap {
namespace {

std::string readFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Fields of /proc/PID/stat after the command, which may itself hold blanks and parentheses; field 3 is the first.
bool readStat(int pid, std::string& command, std::vector<std::string>& fields) {
  const std::string text = readFile(fmt::format("/proc/{}/stat", pid));
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  command = text.substr(open + 1, close - open - 1);
  std::istringstream rest(text.substr(close + 1));
  fields.assign(std::istream_iterator<std::string>(rest), std::istream_iterator<std::string>());
  return fields.size() >= 20;
}

std::uint64_t hashOf(const std::string& name) {
  unsigned char hash[crypto_generichash_BYTES_MIN];
  crypto_generichash(hash, sizeof hash, reinterpret_cast<const unsigned char*>(name.data()), name.size(), nullptr, 0);
  std::uint64_t identity = 0;
  std::memcpy(&identity, hash, sizeof identity);
  return identity;
}

std::uint64_t inodeOf(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::uint64_t stackIdentity() { return hashOf(network::stackName(hostName())); }

std::uint64_t placeIdentity() {
  const std::uint64_t processes = processSpace();
  const std::uint64_t users = inodeOf("/proc/self/ns/user");
  return processes != 0 ? hashOf(fmt::format("{} {} {}", network::stackName(hostName()), processes, users)) : 0;
}

const std::string& hostName() {
  static const auto* const name = [] {  // never destroyed: global objects may call until the end
    char text[256] = {};
    return new std::string(::gethostname(text, sizeof text - 1) == 0 && text[0] != '\0' ? text : "unknown host");
  }();
  return *name;
}

std::uint64_t startTime(int pid) {
  std::string command;
  std::vector<std::string> fields;
  if (!readStat(pid, command, fields)) return 0;
  // A zombie is dead: it answers nobody.
  if (fields[0] == "Z" || fields[0] == "X") return 0;
  return std::strtoull(fields[19].c_str(), nullptr, 10);
}

bool parentOf(int pid, int& parent, std::string& command) {
  std::vector<std::string> fields;
  if (!readStat(pid, command, fields)) return false;
  parent = std::atoi(fields[1].c_str());
  return true;
}

int inheritedBy(const std::string& variable, const std::string& value) {
  constexpr int kMostAncestors = 64;
  const std::string wanted = '\0' + variable + '=' + value + '\0';
  int pid = ::getpid();
  std::string ignored;
  for (int count = 0; count < kMostAncestors; ++count) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
    std::ostringstream text;
    text << '\0' << file.rdbuf();
    if (text.str().find(wanted) == std::string::npos) return count;
    if (!parentOf(pid, pid, ignored) || pid <= 0) return count + 1;
  }
  return kMostAncestors;
}

std::uint64_t processSpace() {
  return inodeOf("/proc/self/ns/pid") << 32 | inodeOf("/proc/self/ns/time");  // inodes of namespaces have 32 bits
}

ucred processAt(int fd) {
  ucred process{0, UINT32_MAX, UINT32_MAX};
  socklen_t bytes = sizeof process;
  (void)::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &process, &bytes);
  return process;
}

}  // namespace kolo::bootstrap
