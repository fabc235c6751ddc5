#include "base/identity.h"

#include <sys/utsname.h>

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

// FNV-1a, twice with different seeds: names need to be different, not secret.
void hash(std::string_view name, HostId& id) {
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t value = 0xcbf29ce484222325u + half;
    for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    std::memcpy(id.data() + 8 * half, &value, sizeof value);
  }
}

HostId makeHostId() {
  std::string name = settings::text("KOLO_HOST_ID");
  if (name.empty()) name = bootId();
  if (name.empty()) {  // no /proc: the host's name stands in for the boot id
    utsname own{};
    if (uname(&own) == 0) name = own.nodename;
  }
  HostId id;
  hash(name, id);
  return id;
}

// The settings are kept as they were when first asked for, for transports hold the pointers.
const char* settingOf(const char* name) {
  static auto* const values = [] {
    auto* const all = new std::map<std::string, std::string, std::less<>>;
    for (const settings::Value& value : settings::all()) {
      const bool isBool = value.setting.kind == settings::Kind::kBool;  // "yes" is 1 for transports, too
      all->emplace(value.setting.name, isBool ? std::to_string(settings::parseBool(value.text).value()) : value.text);
    }
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
  std::memcpy(host.processId, processIdentity().data(), sizeof host.processId);
  std::memcpy(host.hostId, hostId().data(), sizeof host.hostId);
  host.setting = settingOf;
  host.log = logLine;
  return host;
}

const HostId& hostId() {
  static const HostId id = makeHostId();
  return id;
}

}  // namespace kolo::transport
