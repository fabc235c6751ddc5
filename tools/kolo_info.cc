// kolo-info: what this build of Kolo is, what it sees of the machine, what is set, and what it would choose and why.
// A client of kolo.h and of nothing else.
#include <fmt/format.h>
#include <kolo/kolo.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  bool json = false;
  bool version = false;
  std::vector<std::string> explain;  // collective and bytes
  int ranks = 0;                     // 0: as many as there are cores for
  std::string datatype = "float32";
  std::string op = "sum";
  bool plain = false;
};

// Ends the program with a message; main() prints it.
struct Failure {
  std::string message;
};

void check(koloResult_t result, const std::string& what) {
  if (result == koloSuccess) return;
  throw Failure{fmt::format("{}: {}: {}", what, koloGetErrorString(result), koloGetLastError(nullptr))};
}

// Calls twice: for the length, then for the text.
template <class Fill>
std::string textOf(const std::string& what, Fill fill) {
  std::size_t needed = 0;
  check(fill(nullptr, std::size_t{0}, &needed), what);
  std::string text(needed + 1, '\0');
  check(fill(text.data(), text.size(), &needed), what);
  text.resize(std::char_traits<char>::length(text.c_str()));
  return text;
}

Json infoOf(koloInfoTopic_t topic, const char* what) {
  return Json::parse(textOf(
      what, [&](char* text, std::size_t size, std::size_t* needed) { return koloGetInfo(topic, text, size, needed); }));
}

std::string bytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, bytes == std::floor(bytes) ? 0 : 1, kUnits[unit]);
}

// 0,1,2,5 as "0-2,5".
std::string rangesText(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (!text.empty()) text += ',';
    text += begin == end ? fmt::format("{}", numbers[begin]) : fmt::format("{}-{}", numbers[begin], numbers[end]);
    begin = end + 1;
  }
  return text;
}

void printHeading(const char* heading) { fmt::print("{}\n", heading); }

void printRow(const std::string& name, const std::string& value) { fmt::print("  {:<18} {}\n", name, value); }

void printBuild(const Json& build) {
  printHeading("Build");
  printRow("version", build.at("version"));
  const std::string sanitizer = build.at("sanitizer");
  printRow("compiler",
           fmt::format("{}, {}{}", build.at("compiler").get<std::string>(), build.at("build_type").get<std::string>(),
                       sanitizer == "none" ? "" : ", sanitizer " + sanitizer));
  printRow("reductions use", build.at("isa"));
  for (const Json& feature : build.at("features")) {
    printRow(feature.at("name"), fmt::format("{}: {}", feature.at("built").get<bool>() ? "built" : "not built",
                                             feature.at("note").get<std::string>()));
  }
}

void printTopology(const Json& topology) {
  const auto allowed = topology.at("allowed_threads").get<std::vector<int>>();
  const Json& quota = topology.at("cpu_quota");
  printHeading("\nTopology");
  printRow("processor", topology.at("cpu_model"));
  printRow("packages", fmt::format("{}, NUMA nodes {}, cores {}, hardware threads {}",
                                   topology.at("packages").get<int>(), topology.at("numa_nodes").get<int>(),
                                   topology.at("cores").get<int>(), topology.at("threads").get<int>()));
  for (const Json& cache : topology.at("caches")) {
    const std::string kind = cache.at("kind");
    printRow(fmt::format("L{}{} cache", cache.at("level").get<int>(), kind == "unified" ? "" : " " + kind),
             fmt::format("{} x {}, each shared by {} hardware thread(s), lines of {} B", cache.at("count").get<int>(),
                         bytesText(cache.at("bytes").get<double>()), cache.at("shared_by").get<int>(),
                         cache.at("line_bytes").get<int>()));
  }
  printRow("memory", bytesText(topology.at("memory_bytes").get<double>()));
  printRow("this process", fmt::format("may use hardware threads {} (quota: {}), counts on {}", rangesText(allowed),
                                       quota.is_null() ? "none" : fmt::format("{:.2f} cores", quota.get<double>()),
                                       topology.at("available_cores").get<int>()));
  printRow("source", topology.at("source"));
}

void printTransports(const Json& transports) {
  printHeading("\nTransports");
  for (const Json& transport : transports.at("transports")) {
    const std::string why = transport.at("why");
    printRow(transport.at("name"),
             fmt::format("{} ({})", transport.at("works").get<bool>() ? "works" : "does not work: " + why,
                         transport.at("origin").get<std::string>()));
  }
  if (transports.at("transports").empty()) printRow("none", "only communicators of one rank can be made");
}

void printSettings(const Json& settings) {
  std::size_t nameWidth = 0;
  std::size_t valueWidth = 0;
  for (const Json& row : settings.at("settings")) {
    nameWidth = std::max(nameWidth, row.at("name").get<std::string>().size());
    valueWidth = std::max(valueWidth, row.at("value").get<std::string>().size());
  }
  valueWidth = std::clamp<std::size_t>(valueWidth, 6, 24);  // one long path must not push all meanings away
  printHeading("\nSettings (environment variables; * marks what the environment sets)");
  for (const Json& row : settings.at("settings")) {
    const std::string value = row.at("value");
    fmt::print("{} {:<{}}  {:<{}}  {}\n", row.at("source") == "default" ? " " : "*", row.at("name").get<std::string>(),
               nameWidth, value.empty() ? "(none)" : value, valueWidth, row.at("meaning").get<std::string>());
  }
  if (!settings.at("error").is_null()) fmt::print("\nError: {}\n", settings.at("error").get<std::string>());
}

// "1M", "64KiB", "1.5G" or a plain number.
std::size_t parseBytes(const std::string& text) {
  std::size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;  // reported below with everything else that is no number
  }
  std::string unit = text.substr(used);
  int shift = 0;
  if (!unit.empty()) {
    const std::size_t at = std::string("kKmMgGtT").find(unit[0]);
    if (at != std::string::npos) {
      shift = 10 * (1 + static_cast<int>(at) / 2);
      unit.erase(0, 1);
    }
    if (unit == "B" || unit == "iB") unit.clear();
  }
  const double bytes = std::ldexp(number, shift);
  if (used == 0 || !unit.empty() || !(bytes >= 0) || bytes > 9e18) {
    throw Failure{fmt::format("\"{}\" is not a number of bytes such as 65536, 64K or 1.5M", text)};
  }
  return static_cast<std::size_t>(bytes);
}

// The value below `end` whose name is `text`; the message lists the legal names.
template <class Enum>
Enum parseName(const std::string& text, const char* what, int end, const char* (*nameOf)(Enum)) {
  std::string legal;
  for (int value = 0; value < end; ++value) {
    const char* name = nameOf(static_cast<Enum>(value));
    if (name == nullptr) continue;
    if (text == name) return static_cast<Enum>(value);
    legal += fmt::format("{}{}", legal.empty() ? "" : ", ", name);
  }
  throw Failure{fmt::format("unknown {} \"{}\"; known are {}", what, text, legal)};
}

int explain(const Options& options) {
  const auto collective = parseName(options.explain[0], "collective", koloNumCollectives, koloCollectiveName);
  const auto datatype = parseName(options.datatype, "datatype", koloNumDatatypes, koloDataTypeName);
  const auto op = parseName(options.op, "reduction", koloNumOps, koloRedOpName);
  const std::size_t bytes = parseBytes(options.explain[1]);
  const std::size_t size = koloDataTypeSize(datatype);
  if (bytes % size != 0) {
    throw Failure{
        fmt::format("{} bytes are not a whole number of {} elements of {} bytes", bytes, options.datatype, size)};
  }
  int ranks = options.ranks;
  if (ranks == 0) ranks = std::max(2, infoOf(koloInfoTopology, "topology").at("available_cores").get<int>());

  const std::string text = textOf("explain", [&](char* to, std::size_t room, std::size_t* needed) {
    return koloExplain(nullptr, ranks, collective, bytes / size, datatype, op, options.plain ? 0 : 1, to, room, needed);
  });
  if (options.json) {
    const Json json = {{"collective", options.explain[0]},
                       {"bytes", bytes},
                       {"ranks", ranks},
                       {"datatype", options.datatype},
                       {"op", options.op},
                       {"registered", !options.plain},
                       {"text", text}};
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("{}{}", text, text.empty() || text.back() != '\n' ? "\n" : "");
  }
  return 0;
}

std::string versionText() {
  int code = 0;
  check(koloGetVersion(&code), "version");
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

// Each section stands alone: a broken plugin must not hide the settings that name it.
int showAll(const Options& options) {
  struct Section {
    const char* name;
    koloInfoTopic_t topic;
    void (*print)(const Json&);
  };
  constexpr Section kSections[] = {{"build", koloInfoBuild, printBuild},
                                   {"topology", koloInfoTopology, printTopology},
                                   {"transports", koloInfoTransports, printTransports},
                                   {"settings", koloInfoSettings, printSettings}};
  int failures = 0;
  Json all = Json::object();
  for (const Section& section : kSections) {
    try {
      const Json info = infoOf(section.topic, section.name);
      if (options.json) {
        all[section.name] = info;
      } else {
        section.print(info);
      }
    } catch (const Failure& failure) {
      ++failures;
      if (options.json) {
        all[section.name] = {{"error", failure.message}};
      } else {
        fmt::print("\nError: {}\n", failure.message);
      }
    }
  }
  if (options.json) fmt::print("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
  return failures == 0 ? 0 : 1;
}

void describe(CLI::App& app, Options& options) {
  app.add_flag("--version", options.version, "print the library's version and exit");
  app.add_flag("--json", options.json, "write JSON instead of text");
  auto* explain =
      app.add_option("--explain", options.explain,
                     "what the planner would do and why, e.g. --explain all_reduce 1M; BYTES is the count of "
                     "the call in bytes");
  explain->expected(2)->type_name("COLLECTIVE BYTES");
  app.add_option("--ranks", options.ranks, "with --explain: ranks on this machine (default: one for each core)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(explain);
  app.add_option("--datatype", options.datatype, "with --explain: float32, bfloat16, int8, ...")
      ->capture_default_str()
      ->needs(explain);
  app.add_option("--op", options.op, "with --explain: sum, max, ...")->capture_default_str()->needs(explain);
  app.add_flag("--plain", options.plain, "with --explain: buffers that lie in no registered window")->needs(explain);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Shows what Kolo is built with, what it sees of this machine, what is set, and what it would choose and why.",
      "kolo-info");
  Options options;
  describe(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    if (options.version) {
      fmt::print("kolo {}\n", versionText());
      return 0;
    }
    return options.explain.empty() ? showAll(options) : explain(options);
  } catch (const Failure& failure) {
    fmt::print(stderr, "kolo-info: {}\n", failure.message);
  } catch (const std::exception& unexpected) {
    fmt::print(stderr, "kolo-info: {}\n", unexpected.what());
  }
  return 1;
}
