// Every setting of the library: one table with name, default, kind and meaning. Values come from the environment, read
// once per process. kolo-info prints the table, but for rows named KOLO_TEST_..., which are for tests and measurements.
// A malformed value is an error that names the variable, returned by the first koloCommInit* (validate()); until then
// the default stands in.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_string.h"
#include "base/status.h"

namespace kolo::settings {

enum class Kind { kText, kInteger, kBytes, kBool, kPorts, kDevice };

struct Setting {
  const char* name;
  Kind kind;
  const char* fallback;
  const char* meaning;
  std::int64_t low = 0;  // of integers and bytes
  std::int64_t high = INT64_MAX;
  const char* words = nullptr;  // of text: the legal ones, separated by '|'; null: any
};

struct Value {
  Setting setting;
  std::string text;    // as given, or the default
  std::string source;  // "default" or "environment"
};

// A range of ports, of one at least; first 0: any port.
struct Ports {
  int first = 0;
  int last = 0;
  bool isAny() const { return first == 0; }
  bool contains(int port) const { return port >= first && port <= last; }
  int count() const { return last - first + 1; }
};

// All settings, with the values in force. Those of tests and measurements begin with KOLO_TEST_.
std::vector<Value> all();
// koloInvalidEnvironment with the first malformed variable: its name, its value, what was expected; or if KOLO_SECRET
// is ignored. A warning names what else is ignored, once.
Status validate();
// It is set, and this process may not use it: the program has more rights than its caller (setuid, setgid, file
// capabilities), who could make it do anything by settings.
bool isIgnored(const char* variable);
// What to say of it.
std::string whyIgnored(const std::string& variables);

// The value of a setting in the table; an unknown name is a bug and aborts.
std::string text(std::string_view name);
std::int64_t integer(std::string_view name);  // integers, bytes and bools (0, 1)
Ports ports(std::string_view name);
DeviceString device(std::string_view name);

// "64K", "1.5M", "2G", "123": bytes in powers of 1024.
Result<std::int64_t> parseBytes(std::string_view text);
// A whole decimal number.
Result<std::int64_t> parseInteger(std::string_view text);
// "1", "0", "true", "false", "yes", "no", "on", "off".
Result<std::int64_t> parseBool(std::string_view text);

// A device string without a stream's number. The number of a CUDA device alone is one, and -1, the host's memory.
Result<DeviceString> parseDevice(std::string_view text);

// "17000-17999", "17000"; "": any.
Result<Ports> parsePorts(std::string_view text);

// Reads the environment anew (tests).
void reload();

}  // namespace kolo::settings
