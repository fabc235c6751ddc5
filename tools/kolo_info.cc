// kolo-info: what this build of Kolo is, what it sees of the machine, what is set, and what it would choose and why.
// A client of kolo.h; names and sizes on the command line are read as kolo-perf reads them.
#include <fmt/format.h>
#include <kolo/kolo.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "perf/failure.h"
#include "perf/names.h"
#include "perf/sizes.h"

namespace {

using Json = nlohmann::ordered_json;
using kolo::perf::check;
using kolo::perf::Failure;

enum ExitStatus { kAllRight = 0, kFailed = 1, kMisused = 2 };  // kMisused: as kolo-perf and the shell's own commands

struct Options {
  bool json = false;
  bool version = false;
  std::vector<std::string> explain;  // collective and bytes; a barrier has none
  int ranks = 0;                     // 0: as many as there are cores for
  std::string datatype = "float32";
  std::string op = "sum";
  bool plain = false;
};

// Calls twice: for the length, then for the text.
template <class Fill>
std::string textOf(const char* what, Fill fill) {
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

std::string nicText(const Json& nic) {
  std::string text = nic.at("kind") == "rdma" ? "RDMA device" : "network interface";
  const auto add = [&](const char* key, const char* name) {
    if (!nic.at(key).is_null()) text += fmt::format(", {} {}", name, nic.at(key).get<int>());
  };
  if (!nic.at("pci_bus").is_null()) text += fmt::format(", PCI {}", nic.at("pci_bus").get<std::string>());
  add("package", "package");
  add("numa_node", "NUMA node");
  const Json& speed = nic.at("megabits");
  text += speed.is_null() ? ", speed unknown" : fmt::format(", {:g} Gbit/s", speed.get<double>() / 1000);
  return text + (nic.at("near").get<bool>() ? ", near" : "");
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
  for (const Json& nic : topology.at("nics")) printRow(nic.at("name"), nicText(nic));
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

// What --explain asks for, understood.
struct Question {
  koloCollective_t collective = koloCollectiveAllReduce;
  koloDataType_t datatype = koloFloat32;
  koloRedOp_t op = koloSum;
  std::size_t bytes = 0;
  int ranks = 0;
};

// Throws Failure when it makes no sense.
Question understand(const Options& options) {
  Question question;
  question.collective = kolo::perf::parseCollective(options.explain[0]);
  question.datatype = kolo::perf::parseDatatype(options.datatype);
  question.op = kolo::perf::parseOp(options.op);
  question.ranks = options.ranks;
  if (question.collective == koloCollectiveBarrier) return question;
  if (options.explain.size() < 2) throw Failure("--explain: a number of bytes is missing, for example 1M");
  question.bytes = kolo::perf::parseBytes(options.explain[1]);
  const std::size_t size = koloDataTypeSize(question.datatype);
  if (question.bytes % size == 0) return question;
  kolo::perf::fail("{} bytes are not a whole number of {} elements of {} bytes", question.bytes,
                   koloDataTypeName(question.datatype), size);
}

void explain(Question question, const Options& options) {
  const bool barrier = question.collective == koloCollectiveBarrier;
  if (question.ranks == 0) {
    question.ranks =
        std::clamp(infoOf(koloInfoTopology, "topology").at("available_cores").get<int>(), 2, KOLO_MAX_RANKS);
  }
  const std::size_t count = question.bytes / koloDataTypeSize(question.datatype);
  const std::string text = textOf("explain", [&](char* to, std::size_t room, std::size_t* needed) {
    return koloExplain(nullptr, question.ranks, question.collective, count, question.datatype, question.op,
                       options.plain ? 0 : 1, to, room, needed);
  });
  if (!options.json) {
    fmt::print("{}{}", text, text.empty() || text.back() != '\n' ? "\n" : "");
    return;
  }
  Json json = {{"collective", koloCollectiveName(question.collective)}, {"ranks", question.ranks}};
  if (!barrier) {
    json.update({{"bytes", question.bytes},
                 {"datatype", koloDataTypeName(question.datatype)},
                 {"op", koloRedOpName(question.op)},
                 {"registered", !options.plain}});
  }
  json["text"] = text;
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
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
        all[section.name] = {{"error", failure.what()}};
      } else {
        fmt::print("\nError: {}\n", failure.what());
      }
    }
  }
  if (options.json) fmt::print("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
  return failures == 0 ? kAllRight : kFailed;
}

void describe(CLI::App& app, Options& options) {
  app.add_flag("--version", options.version, "print the library's version and exit");
  app.add_flag("--json", options.json, "write JSON instead of text");
  auto* explain =
      app.add_option("--explain", options.explain,
                     "what the planner would do and why, e.g. --explain all_reduce 1M; BYTES is the count of "
                     "the call in bytes; a barrier has none");
  explain->expected(1, 2)->type_name("COLLECTIVE BYTES");
  app.add_option("--ranks", options.ranks, "with --explain: ranks on this machine (default: one for each core)")
      ->check(CLI::Range(1, KOLO_MAX_RANKS))
      ->needs(explain);
  app.add_option("--datatype", options.datatype, "with --explain: float32, half, bfloat16, int8, ...")
      ->capture_default_str()
      ->needs(explain);
  app.add_option("--op", options.op, "with --explain: sum, max, ...")->capture_default_str()->needs(explain);
  app.add_flag("--plain", options.plain, "with --explain: buffers that lie in no registered window")->needs(explain);
}

int misused(const char* why) {
  fmt::print(stderr, "kolo-info: {}\n", why);
  return kMisused;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Shows what Kolo is built with, what it sees of this machine, what is set, and what it would choose and why.\n"
      "Exit status: 0; 1 if something could not be told; 2 if the command line makes no sense.",
      "kolo-info");
  Options options;
  describe(app, options);
  Question question;
  try {
    app.parse(argc, argv);
    if (!options.explain.empty()) question = understand(options);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return misused(error.what());
  } catch (const Failure& failure) {
    return misused(failure.what());
  }
  if (options.version) {
    fmt::print("kolo {}\n", versionText());
    return kAllRight;
  }
  if (options.explain.empty()) return showAll(options);
  explain(question, options);
  return kAllRight;
}

}  // namespace

int main(int argc, char** argv) {
  int status = kFailed;
  try {
    status = run(argc, argv);
  } catch (const std::system_error& error) {
    // fmt could not write: said below.
    if (std::ferror(stdout) == 0) fmt::print(stderr, "kolo-info: {}\n", error.what());
    errno = error.code().value();
  } catch (const std::exception& error) {
    fmt::print(stderr, "kolo-info: {}\n", error.what());
  }
  // What is still buffered may find the disk full.
  if (std::ferror(stdout) == 0 && std::fflush(stdout) == 0) return status;
  fmt::print(stderr, "kolo-info: cannot write to standard output: {}\n", std::strerror(errno));
  return kFailed;
}
