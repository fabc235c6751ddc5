#include "transport/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <string_view>

#include "base/log.h"
#include "base/settings.h"
#include "base/words.h"
#include "transport/builtin.h"
#include "transport/why.h"

namespace kolo::transport {
namespace {

const char* missingFunction(const koloTransport& table) {
  if (table.probe == nullptr) return "probe";
  if (table.deviceOpen == nullptr) return "deviceOpen";
  if (table.deviceClose == nullptr) return "deviceClose";
  if (table.memoryRegister == nullptr) return "memoryRegister";
  if (table.memoryDeregister == nullptr) return "memoryDeregister";
  if (table.linkOpen == nullptr) return "linkOpen";
  if (table.linkClose == nullptr) return "linkClose";
  if (table.linkKind != koloLinkPosted) return nullptr;
  if (table.memoryKey == nullptr) return "memoryKey";
  if (table.linkRails == nullptr) return "linkRails";
  if (table.linkPut == nullptr) return "linkPut";
  if (table.linkUnfinished == nullptr) return "linkUnfinished";
  if (table.linkQueued == nullptr) return "linkQueued";
  if (table.linkState == nullptr) return "linkState";
  if (table.deviceProgress == nullptr) return "deviceProgress";
  return nullptr;
}

// abi and size come first in every version of the table, so they may be read before anything else is trusted.
Status checkTable(const koloTransport* table, const std::string& origin) {
  if (table == nullptr) {
    return error(koloInvalidEnvironment, "transport {}: {} returned no table", origin, KOLO_TRANSPORT_ENTRY);
  }
  if (table->abi != KOLO_TRANSPORT_ABI) {
    return error(koloInvalidEnvironment,
                 "transport {} was built for version {} of the transport interface, expected {}", origin, table->abi,
                 KOLO_TRANSPORT_ABI);
  }
  constexpr std::size_t kOfMapped = offsetof(koloTransport, linkRead);
  constexpr std::size_t kOfPosted = offsetof(koloTransport, registersCheaply) + sizeof table->registersCheaply;
  const std::size_t mandatory = table->size >= kOfMapped && table->linkKind == koloLinkPosted ? kOfPosted : kOfMapped;
  if (table->size < mandatory) {
    return error(koloInvalidEnvironment, "transport {}: its table has {} bytes, expected at least {}", origin,
                 table->size, mandatory);
  }
  if (table->name == nullptr || table->name[0] == '\0') {
    return error(koloInvalidEnvironment, "transport {}: its table has no name", origin);
  }
  if (table->linkKind != koloLinkMapped && table->linkKind != koloLinkPosted) {
    return error(koloInvalidEnvironment, "transport {}: its links are of kind {}, expected {} (mapped) or {} (posted)",
                 origin, table->linkKind, static_cast<int>(koloLinkMapped), static_cast<int>(koloLinkPosted));
  }
  if (const char* missing = missingFunction(*table); missing != nullptr) {
    return error(koloInvalidEnvironment, "transport {}: its table lacks {}", origin, missing);
  }
  return {};
}

Result<const koloTransport*> load(const std::string& path) {
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* const reason = dlerror();
    return error(koloInvalidEnvironment, "KOLO_TRANSPORT_PLUGINS: {} cannot be loaded: {}", path,
                 reason != nullptr ? reason : "no reason given");
  }
  const auto entry = reinterpret_cast<koloTransportEntry_t>(dlsym(object, KOLO_TRANSPORT_ENTRY));
  if (entry == nullptr) {
    dlclose(object);
    return error(koloInvalidEnvironment, "KOLO_TRANSPORT_PLUGINS: {} exports no function {}", path,
                 KOLO_TRANSPORT_ENTRY);
  }
  const koloTransport* const table = entry();
  if (Status status = checkTable(table, path); !status.ok()) {
    dlclose(object);
    return error(koloInvalidEnvironment, "KOLO_TRANSPORT_PLUGINS: {}", status.message());
  }
  return table;
}

// Each shared object is loaded once and stays: its threads and tables must outlive everything that uses them.
Result<const koloTransport*> plugin(const std::string& path) {
  struct Loaded {
    std::mutex mutex;
    std::map<std::string, const koloTransport*> byPath;
  };
  static auto* const loaded = new Loaded;
  const std::lock_guard lock(loaded->mutex);
  if (const auto at = loaded->byPath.find(path); at != loaded->byPath.end()) return at->second;
  KOLO_ASSIGN(const koloTransport* table, load(path));
  loaded->byPath.emplace(path, table);
  return table;
}

bool encrypts(const koloTransport& table) {
  return table.size >= offsetof(koloTransport, encrypts) + sizeof table.encrypts && table.encrypts != 0;
}

void append(std::vector<Entry>& entries, const koloTransport* table, const std::string& origin) {
  for (const Entry& other : entries) {
    if (std::string_view(other.table->name) == table->name) {
      log::info("transport {} ({}) is hidden by the one of that name from {}", table->name, origin, other.origin);
      return;
    }
  }
  if (table->linkKind == koloLinkPosted && !encrypts(*table) && settings::integer("KOLO_ENCRYPT") != 0) {
    entries.push_back({table, origin, false, "KOLO_ENCRYPT=1, and it cannot encrypt what it sends"});
    return;
  }
  Why why;
  const bool works = table->probe(why.text, sizeof why.text) == KOLO_TRANSPORT_OK;
  entries.push_back({table, origin, works, works ? "" : why.c_str()});
}

Result<std::vector<Entry>> all() {
  std::vector<Entry> entries;
  for (const std::string& path : wordsOf(settings::text("KOLO_TRANSPORT_PLUGINS"), ':')) {
    KOLO_ASSIGN(const koloTransport* table, plugin(path));
    append(entries, table, path);
  }
  for (const koloTransportEntry_t* entry = builtinTransports; *entry != nullptr; ++entry) {
    const koloTransport* const table = (*entry)();
    KOLO_TRY(checkTable(table, "built in"));
    append(entries, table, "built in");
  }
  return entries;
}

std::string knownNames(const std::vector<Entry>& entries) {
  std::string names;
  for (const Entry& entry : entries) names += (names.empty() ? "" : ", ") + std::string(entry.table->name);
  return names.empty() ? "none" : names;
}

}  // namespace

koloMemoryKind_t memoryKindOf(const koloTransport& table) {
  const bool says = table.size >= offsetof(koloTransport, memoryKind) + sizeof table.memoryKind;
  return says ? static_cast<koloMemoryKind_t>(table.memoryKind) : koloMemoryHost;
}

Result<std::vector<Entry>> list(const std::string& names) {
  KOLO_ASSIGN(std::vector<Entry> entries, all());
  const std::string setting = settings::text("KOLO_TRANSPORTS");
  const bool fromEnvironment = names.empty() || names == setting;
  const std::string wanted = fromEnvironment ? setting : names;
  const koloResult_t refusal = fromEnvironment ? koloInvalidEnvironment : koloInvalidArgument;
  if (wanted.empty()) return entries;
  std::vector<Entry> chosen;
  for (const std::string& name : wordsOf(wanted)) {
    const auto at = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.table->name == name; });
    if (at == entries.end()) {
      return error(refusal, "{}\"{}\" names a transport \"{}\" that does not exist; there are: {}",
                   fromEnvironment ? "KOLO_TRANSPORTS=" : "the list of transports ", wanted, name, knownNames(entries));
    }
    chosen.push_back(*at);
  }
  if (chosen.empty()) {
    return error(refusal, "{}\"{}\" names no transport; there are: {}",
                 fromEnvironment ? "KOLO_TRANSPORTS=" : "the list of transports ", wanted, knownNames(entries));
  }
  return chosen;
}

}  // namespace kolo::transport
