#include "base/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "base/log.h"

namespace kolo::settings {
namespace {

constexpr Setting kTable[] = {
    {.name = "KOLO_DEBUG",
     .kind = Kind::kText,
     .fallback = "warn",
     .meaning = "how much is written to standard error",
     .words = "error|warn|info|debug"},
    {.name = "KOLO_DEBUG_FILE",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "file that messages are appended to instead of standard error"},
    {.name = "KOLO_RANK",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "this process's rank, for koloCommInitFromEnv (before any launcher's own variable)"},
    {.name = "KOLO_SIZE", .kind = Kind::kText, .fallback = "", .meaning = "number of ranks, with KOLO_RANK"},
    {.name = "KOLO_ROOT",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "host:port where rank 0 listens; needed when ranks are on several hosts or run as several users"},
    {.name = "KOLO_SECRET",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "shared secret of the job, the same for all ranks; needed when ranks are on several hosts"},
    {.name = "KOLO_INSECURE",
     .kind = Kind::kBool,
     .fallback = "0",
     .meaning = "starts jobs on several hosts without KOLO_SECRET: strangers who reach their ports may join"},
    {.name = "KOLO_ENCRYPT",
     .kind = Kind::kBool,
     .fallback = "0",
     .meaning = "encrypts the data between hosts: tcp is then used, and no transport that cannot encrypt"},
    {.name = "KOLO_JOB",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "name that tells jobs on one machine apart when the launcher gives none"},
    {.name = "KOLO_INTERFACE",
     .kind = Kind::kText,
     .fallback = "",
     .meaning =
         "network interface or address that the rendezvous listens on; any: all of them, in a job of one host too"},
    {.name = "KOLO_PORT_RANGE",
     .kind = Kind::kPorts,
     .fallback = "",
     .meaning = "TCP ports at which ranks listen, for the rendezvous and for data, where a firewall lets only some "
                "through: 17000-17999; a process takes one, that of rank 0 two; empty: any"},
    {.name = "KOLO_TCP_INTERFACES",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "network interfaces or addresses for data, in order of preference, separated by commas; ^ before the "
                "first: all but "
                "these; empty: by speed and reach"},
    {.name = "KOLO_HOST_ID",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "name of the host that this process counts as: processes with different ones share no memory; empty: "
                "by the kernel"},
    {.name = "KOLO_TCP_SOCKETS",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "TCP connections to each peer, 1, 2 or 4; 0: by the network's speed",
     .low = 0,
     .high = 4},
    {.name = "KOLO_TCP_CHECKSUM",
     .kind = Kind::kBool,
     .fallback = "0",
     .meaning = "checks data sent by TCP with a CRC-32C of its own besides the headers"},
    {.name = "KOLO_IB_DEVICES",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "InfiniBand and RoCE devices to use, separated by commas; ^ before the first: all but these; empty: "
                "the fastest"},
    {.name = "KOLO_IB_GID_INDEX",
     .kind = Kind::kInteger,
     .fallback = "-1",
     .meaning = "which of a port's addresses is used; -1: of RoCE v2 and an IP address, if there is one",
     .low = -1,
     .high = 255},
    {.name = "KOLO_IB_RAILS",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "queue pairs to each peer that share its data, 1, 2 or 4; 0: one for each pair of ports",
     .low = 0,
     .high = 4},
    {.name = "KOLO_IB_TIMEOUT",
     .kind = Kind::kInteger,
     .fallback = "16",
     .meaning = "how long a NIC waits for an acknowledgement before it sends again: 4.096 us times 2 to this power",
     .low = 1,
     .high = 31},
    {.name = "KOLO_IB_TRAFFIC_CLASS",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "traffic class (DSCP and ECN) of RoCE packets",
     .low = 0,
     .high = 255},
    {.name = "KOLO_IB_SERVICE_LEVEL",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "service level of InfiniBand packets, priority of RoCE's",
     .low = 0,
     .high = 15},
    {.name = "KOLO_NET_GBITS",
     .kind = Kind::kInteger,
     .fallback = "8",
     .meaning = "speed of NICs whose speed the system does not tell, in Gbit/s, for choosing algorithms",
     .low = 1,
     .high = 10000},
    {.name = "KOLO_INIT_TIMEOUT_MS",
     .kind = Kind::kInteger,
     .fallback = "60000",
     .meaning = "how long joining a communicator may take, in milliseconds",
     .low = 1,
     .high = 86400000},
    {.name = "KOLO_TIMEOUT_MS",
     .kind = Kind::kInteger,
     .fallback = "600000",
     .meaning = "how long an operation may wait for a peer, in milliseconds; 0: for ever",
     .low = 0,
     .high = 2147483647},
    {.name = "KOLO_SILENCE_MS",
     .kind = Kind::kInteger,
     .fallback = "10000",
     .meaning =
         "how long the host of a rank may be silent before the rank counts as lost, in milliseconds; to ride out "
         "a link that is down for a while take more than twice that while, for TCP sends again ever more seldom",
     .low = 1000,
     .high = 86400000},
    {.name = "KOLO_REPRODUCIBLE",
     .kind = Kind::kBool,
     .fallback = "0",
     .meaning = "fold every element in rank order, so that results are the same bits for any algorithm and layout"},
    {.name = "KOLO_DEVICE",
     .kind = Kind::kDevice,
     .fallback = "cpu",
     .meaning = "where a rank's buffers lie: cpu, or gpu0, cuda0 or 0 for a CUDA device; xpu0: that device if this "
                "machine has one, else cpu"},
    {.name = "KOLO_GPU_CHANNELS",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "most blocks of a device that a rank's kernels use, of those that are free, in equal shares for the "
                "ranks that share it; 0: up to 32, or 64 "
                "where ranks share the device, and some are left for communicators to come",
     .low = 0,
     .high = 256},
    {.name = "KOLO_RESIDENT",
     .kind = Kind::kInteger,
     .fallback = "0",
     .meaning = "1: small operations on an idle stream of a GPU go to a kernel that stays for a while instead of being "
                "launched; 2: also those that follow "
                "others in one stream, before which nothing in it may need all multiprocessors at once",
     .low = 0,
     .high = 2},
    {.name = "KOLO_GPUDIRECT",
     .kind = Kind::kText,
     .fallback = "off",
     .meaning = "whether NICs read and write a GPU's memory themselves: auto: by dmabuf, else by peermem, else through "
                "pinned memory of the host; "
                "off: always through that; dmabuf or peermem: that way, or posted links on GPUs are an error",
     .words = "auto|off|dmabuf|peermem"},
    {.name = "KOLO_ALGORITHM",
     .kind = Kind::kText,
     .fallback = "",
     .meaning =
         "algorithms to force or forbid: all_reduce:biring,broadcast:^tree,all_gather:ring@1M-; and conditions on "
         "bytes, elements, ranks, op and registered: all_reduce:ring/ranks=3-/elements=256001-/op=sum"},
    {.name = "KOLO_TRANSPORTS",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "transports to use, in order of preference, separated by commas; empty: all that work"},
    {.name = "KOLO_TRANSPORT_PLUGINS",
     .kind = Kind::kText,
     .fallback = "",
     .meaning = "shared objects with further transports, separated by colons; preferred to those built in"},
    {.name = "KOLO_STAGING_BYTES",
     .kind = Kind::kBytes,
     .fallback = "32M",
     .meaning = "most staging memory of a rank for one communicator; touched only as used",
     .low = 1 << 16,
     .high = INT64_C(1) << 36},
    {.name = "KOLO_SINGLE_COPY_BYTES",
     .kind = Kind::kInteger,
     .fallback = "-1",
     .meaning = "blocks and messages in ordinary buffers are read out of the other process, or written into it, from "
                "this many bytes "
                "on, instead of being staged; 0: always; -1: by the processor, and by whether ranks share cores",
     .low = -1,
     .high = INT64_MAX},
    // Of tests and measurements: nobody else is told of them.
    {.name = "KOLO_TEST_TCP_ZEROCOPY_BYTES",
     .kind = Kind::kInteger,
     .fallback = "-1",
     .meaning = "data of at least this many bytes is sent by TCP without a copy in the kernel; -1: where it pays",
     .low = -1,
     .high = INT64_MAX},
    {.name = "KOLO_TEST_IB_RETRIES",
     .kind = Kind::kInteger,
     .fallback = "7",
     .meaning = "how often a NIC sends again before the way counts as failed",
     .low = 0,
     .high = 7},
    {.name = "KOLO_TEST_RESIDENT_IDLE_US",
     .kind = Kind::kInteger,
     .fallback = "200",
     .meaning = "after how many microseconds without work a resident kernel retires",
     .low = 1,
     .high = 1000000},
    {.name = "KOLO_TEST_CONNECT_ALL_RANKS",
     .kind = Kind::kInteger,
     .fallback = "8",
     .meaning =
         "ranks up to which a communicator makes all its connections at once; with more, each when it is first needed",
     .low = 0,
     .high = 1 << 20},
    {.name = "KOLO_TEST_STREAMING_BYTES",
     .kind = Kind::kBytes,
     .fallback = "4M",
     .meaning = "buffers at least this large are written past the caches (non-temporal stores)",
     .low = 0,
     .high = INT64_C(1) << 50},
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

bool isOneOf(std::string_view word, std::string_view words) {
  while (!words.empty()) {
    const size_t end = std::min(words.find('|'), words.size());
    if (words.substr(0, end) == word) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
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
  if (setting.words != nullptr && !isOneOf(text, setting.words)) return error(koloInvalidEnvironment, "not a word");
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
  if (isOneOf(text, "1|true|yes|on")) return std::int64_t{1};
  if (isOneOf(text, "0|false|no|off")) return std::int64_t{0};
  return error(koloInvalidArgument, "\"{}\" is not 1 or 0", text);
}

}  // namespace kolo::settings
