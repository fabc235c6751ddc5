#include "base/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "base/log.h"
#include "base/words.h"

namespace kolo::settings {
namespace {

using enum Kind;
constexpr Setting kTable[] = {
    {"KOLO_DEBUG", kText, "warn", "how much is written to standard error", 0, INT64_MAX, "error|warn|info|debug"},
    {"KOLO_DEBUG_FILE", kText, "", "file that messages are appended to instead of standard error"},
    {"KOLO_RANK", kText, "", "this process's rank, for koloCommInitFromEnv (before any launcher's own variable)"},
    {"KOLO_SIZE", kText, "", "number of ranks, with KOLO_RANK"},
    {"KOLO_ROOT", kText, "",
     "host:port where rank 0 listens; needed when ranks are on several hosts or run as several users"},
    {"KOLO_SECRET", kText, "",
     "shared secret of the job, the same for all ranks; needed when ranks are on several hosts"},
    {"KOLO_INSECURE", kBool, "0",
     "starts jobs on several hosts without KOLO_SECRET: strangers who reach their ports may join"},
    {"KOLO_ENCRYPT", kBool, "0",
     "encrypts the data between hosts: tcp is then used, and no transport that cannot encrypt"},
    {"KOLO_JOB", kText, "", "name that tells jobs on one machine apart when the launcher gives none"},
    {"KOLO_INTERFACE", kText, "",
     "network interface or address that the rendezvous listens on; any: all of them, in a job of one host too"},
    {"KOLO_PORT_RANGE", kPorts, "",
     "TCP ports at which ranks listen, for the rendezvous and for data, where a firewall lets only some through: "
     "17000-17999; a process takes two; empty: any"},
    {"KOLO_TCP_INTERFACES", kText, "",
     "network interfaces or addresses for data, in order of preference, separated by commas; ^ before the first: all "
     "but these; empty: by speed and reach"},
    {"KOLO_HOST_ID", kText, "",
     "name of the host that this process counts as: processes with different ones share no memory; empty: by the "
     "kernel"},
    {"KOLO_TCP_SOCKETS", kInteger, "0", "TCP connections to each peer, 1, 2 or 4; 0: by the network's speed", 0, 4},
    {"KOLO_TCP_CHECKSUM", kBool, "0", "checks data sent by TCP with a CRC-32C of its own besides the headers"},
    {"KOLO_IB_DEVICES", kText, "",
     "InfiniBand and RoCE devices to use, separated by commas; ^ before the first: all but these; empty: the fastest"},
    {"KOLO_IB_GID_INDEX", kInteger, "-1",
     "which of a port's addresses is used; -1: of RoCE v2 and an IP address, if there is one", -1, 255},
    {"KOLO_IB_RAILS", kInteger, "0",
     "queue pairs to each peer that share its data, 1, 2 or 4; 0: one for each pair of ports", 0, 4},
    {"KOLO_IB_TIMEOUT", kInteger, "16",
     "how long a NIC waits for an acknowledgement before it sends again: 4.096 us times 2 to this power", 1, 31},
    {"KOLO_IB_TRAFFIC_CLASS", kInteger, "0", "traffic class (DSCP and ECN) of RoCE packets", 0, 255},
    {"KOLO_IB_SERVICE_LEVEL", kInteger, "0", "service level of InfiniBand packets, priority of RoCE's", 0, 15},
    {"KOLO_NET_GBITS", kInteger, "8",
     "speed of NICs whose speed the system does not tell, in Gbit/s, for choosing algorithms", 1, 10000},
    {"KOLO_INIT_TIMEOUT_MS", kInteger, "60000", "how long joining a communicator may take, in milliseconds", 1,
     86400000},
    {"KOLO_TIMEOUT_MS", kInteger, "600000", "how long an operation may wait for a peer, in milliseconds; 0: for ever",
     0, 2147483647},
    {"KOLO_SILENCE_MS", kInteger, "10000",
     "how long the host of a rank may be silent before the rank counts as lost, in milliseconds; to ride out a link "
     "that is down for a while take more than twice that while, for TCP sends again ever more seldom",
     1000, 86400000},
    {"KOLO_REPRODUCIBLE", kBool, "0",
     "fold every element in rank order, so that results are the same bits for any algorithm and layout"},
    {"KOLO_DEVICE", kDevice, "cpu",
     "where a rank's buffers lie: cpu, or gpu0, cuda0 or 0 for a CUDA device; xpu0: that device if this machine has "
     "one, else cpu"},
    {"KOLO_GPU_CHANNELS", kInteger, "0",
     "most blocks of a device that a rank's kernels use, of those that are free, in equal shares for the ranks that "
     "share it; 0: up to 32, or 64 where ranks share the device, and some are left for communicators to come",
     0, 256},
    {"KOLO_RESIDENT", kInteger, "0",
     "1: small operations on an idle stream of a GPU go to a kernel that stays for a while instead of being launched; "
     "2: also those that follow others in one stream, before which nothing in it may need all multiprocessors at once",
     0, 2},
    {"KOLO_GPUDIRECT", kText, "off",
     "whether NICs read and write a GPU's memory themselves: auto: by dmabuf, else by peermem, else through pinned "
     "memory of the host; off: always through that; dmabuf or peermem: that way, or posted links on GPUs are an error",
     0, INT64_MAX, "auto|off|dmabuf|peermem"},
    {"KOLO_ALGORITHM", kText, "",
     "algorithms to force or forbid: all_reduce:biring,broadcast:^tree,all_gather:ring@1M-; and conditions on bytes, "
     "elements, ranks, op and registered: all_reduce:ring/ranks=3-/elements=256001-/op=sum"},
    {"KOLO_TRANSPORTS", kText, "",
     "transports to use, in order of preference, separated by commas; empty: all that work"},
    {"KOLO_TRANSPORT_PLUGINS", kText, "",
     "shared objects with further transports, separated by colons; preferred to those built in"},
    {"KOLO_STAGING_BYTES", kBytes, "32M", "most staging memory of a rank for one communicator; touched only as used",
     1 << 16, INT64_C(1) << 36},
    {"KOLO_SINGLE_COPY_BYTES", kInteger, "-1",
     "blocks and messages in ordinary buffers are read out of the other process, or written into it, from this many "
     "bytes on, instead of being staged; 0: always; -1: by the processor, and by whether ranks share cores",
     -1, INT64_MAX},
    // Of tests and measurements: nobody else is told of them.
    {"KOLO_TEST_TCP_ZEROCOPY_BYTES", kInteger, "-1",
     "data of at least this many bytes is sent by TCP without a copy in the kernel; -1: where it pays", -1, INT64_MAX},
    {"KOLO_TEST_IB_RETRIES", kInteger, "7", "how often a NIC sends again before the way counts as failed", 0, 7},
    {"KOLO_TEST_RESIDENT_IDLE_US", kInteger, "200",
     "after how many microseconds without work a resident kernel retires", 1, 1000000},
    {"KOLO_TEST_CONNECT_ALL_RANKS", kInteger, "8",
     "ranks up to which a communicator makes all its connections at once; with more, each when it is first needed", 0,
     1 << 20},
    {"KOLO_TEST_STREAMING_BYTES", kBytes, "4M",
     "buffers at least this large are written past the caches (non-temporal stores)", 0, INT64_C(1) << 50},
};

struct Store {
  std::mutex mutex;
  bool loaded = false;
  std::unordered_map<std::string, Value> values;
  Status malformed;
};

Store& store() {
  static auto* const instance = new Store;  // never destroyed: threads may log during exit
  return *instance;
}

std::string describe(const Setting& setting) {
  switch (setting.kind) {
    case Kind::kInteger: return fmt::format("a whole number from {} to {}", setting.low, setting.high);
    case Kind::kBytes: return fmt::format("bytes such as 65536, 64K or 1.5M, from {} to {}", setting.low, setting.high);
    case Kind::kBool: return "1 or 0";
    case Kind::kPorts: return "a range of ports such as 17000-17999, from 1 to 65535";
    case Kind::kDevice:
      return "cpu, or a CUDA device such as gpu0, cuda0, xpu0 or 0, without a stream's number, which no operation "
             "takes";
    case Kind::kText: break;
  }
  return setting.words != nullptr ? fmt::format("one of {}", setting.words) : "text";
}

Result<std::int64_t> parse(const Setting& setting, std::string_view text) {
  switch (setting.kind) {
    case Kind::kInteger: return parseInteger(text);
    case Kind::kBytes: return parseBytes(text);
    case Kind::kBool: return parseBool(text);
    case Kind::kPorts: {
      KOLO_ASSIGN(const Ports range, parsePorts(text));
      return std::int64_t{range.first};
    }
    case Kind::kDevice: {
      KOLO_ASSIGN(const DeviceString device, parseDevice(text));
      return std::int64_t{device.number};
    }
    case Kind::kText: break;
  }
  if (setting.words != nullptr && !isWordOf(text, setting.words, '|'))
    return error(koloInvalidEnvironment, "not a word");
  return std::int64_t{0};
}

bool isLegal(const Setting& setting, std::string_view text) {
  const Result<std::int64_t> number = parse(setting, text);
  if (!number.ok()) return false;
  if (setting.kind != Kind::kInteger && setting.kind != Kind::kBytes) return true;
  return number.value() >= setting.low && number.value() <= setting.high;
}

// REQUIRES: mutex held
void load(Store& to) {
  to.values.clear();
  to.malformed = Status();
  for (const Setting& setting : kTable) {
    Value value{setting, setting.fallback, "default"};
    if (const char* given = ::secure_getenv(setting.name); given != nullptr && *given != 0) {
      if (isLegal(setting, given)) {
        value.text = given;
        value.source = "environment";
      } else if (to.malformed.ok()) {
        to.malformed = error(koloInvalidEnvironment, "environment variable {} is \"{}\", expected {}", setting.name,
                             given, describe(setting));
      }
    }
    to.values.emplace(setting.name, std::move(value));
  }
  to.loaded = true;
}

Value find(std::string_view name) {
  Store& from = store();
  const std::lock_guard lock(from.mutex);
  if (!from.loaded) load(from);
  return from.values.at(std::string(name));
}

}  // namespace

std::vector<Value> all() {
  Store& from = store();
  const std::lock_guard lock(from.mutex);
  if (!from.loaded) load(from);
  std::vector<Value> result;
  for (const Setting& setting : kTable) {
    result.push_back(from.values.at(setting.name));
  }
  return result;
}

bool isIgnored(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != 0 && ::secure_getenv(variable) == nullptr;
}

std::string whyIgnored(const std::string& variables) {
  return variables +
         ": set, but not used, because this program has more rights than its caller (setuid, setgid or file "
         "capabilities), and so takes no settings from the environment";
}

Status validate() {
  static std::once_flag isTold;
  std::call_once(isTold, [] {
    std::string ignored;
    for (const Setting& setting : kTable) {
      if (isIgnored(setting.name)) ignored += (ignored.empty() ? "" : ", ") + std::string(setting.name);
    }
    if (!ignored.empty()) log::warn("{}", whyIgnored(ignored));
  });
  if (isIgnored("KOLO_SECRET")) {
    return error(koloInvalidEnvironment, "{}; expected no such rights where KOLO_SECRET is to count",
                 whyIgnored("environment variable KOLO_SECRET"));
  }
  Store& from = store();
  const std::lock_guard lock(from.mutex);
  if (!from.loaded) load(from);
  return from.malformed;
}

std::string text(std::string_view name) { return find(name).text; }

std::int64_t integer(std::string_view name) {
  const Value value = find(name);
  return parse(value.setting, value.text).value();
}

Ports ports(std::string_view name) { return parsePorts(find(name).text).value(); }

DeviceString device(std::string_view name) { return parseDevice(find(name).text).value(); }

void reload() {
  Store& from = store();
  const std::lock_guard lock(from.mutex);
  load(from);
}

Result<std::int64_t> parseInteger(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) {
    return error(koloInvalidArgument, "\"{}\" is not a whole number", text);
  }
  return value;
}

Result<std::int64_t> parseBytes(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  int shift = 0;
  if (!unit.empty()) {
    const size_t at = std::string_view("kKmMgGtT").find(unit.front());
    if (at != std::string_view::npos) {
      shift = 10 * (1 + static_cast<int>(at) / 2);
      unit.remove_prefix(1);
    }
    if (unit == "B" || unit == "iB") unit = {};
  }
  const double bytes = std::ldexp(value, shift);
  if (code != std::errc() || !unit.empty() || !(bytes >= 0) || bytes > 9e18) {
    return error(koloInvalidArgument, "\"{}\" is not a number of bytes such as 65536, 64K or 1.5M", text);
  }
  return static_cast<std::int64_t>(bytes);
}

Result<Ports> parsePorts(std::string_view text) {
  if (text.empty()) return Ports();
  const std::size_t dash = text.find('-');
  const Result<std::int64_t> first = parseInteger(text.substr(0, dash));
  const Result<std::int64_t> last = dash == std::string_view::npos ? first : parseInteger(text.substr(dash + 1));
  if (!first.ok() || !last.ok() || first.value() < 1 || last.value() < first.value() || last.value() > 65535) {
    return error(koloInvalidArgument, "\"{}\" is not a range of ports such as 17000-17999", text);
  }
  return Ports{static_cast<int>(first.value()), static_cast<int>(last.value())};
}

Result<DeviceString> parseDevice(std::string_view text) {
  constexpr int kMost = 4095;
  if (text == "-1") return DeviceString();
  const bool isNumber = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  KOLO_ASSIGN(const DeviceString device, parseDeviceString(isNumber ? fmt::format("gpu{}", text) : std::string(text)));
  if (device.number > kMost || device.stream != 0)
    return error(koloInvalidArgument, "\"{}\" is not a device from 0 to {} without a stream's number", text, kMost);
  return device;
}

Result<std::int64_t> parseBool(std::string_view text) {
  if (isWordOf(text, "1,true,yes,on")) return std::int64_t{1};
  if (isWordOf(text, "0,false,no,off")) return std::int64_t{0};
  return error(koloInvalidArgument, "\"{}\" is not 1 or 0", text);
}

}  // namespace kolo::settings
