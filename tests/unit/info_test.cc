#include "diagnostics/info.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/settings.h"
#include "support/settings_scope.h"
#include "transport/registry.h"

using nlohmann::json;

namespace {

json parsed(const kolo::Result<std::string>& text) {
  INFO(text.status().message());
  REQUIRE(text.ok());
  return json::parse(text.value());
}

json settingOf(const json& info, const std::string& name) {
  for (const json& row : info.at("settings")) {
    if (row.at("name") == name) return row;
  }
  FAIL("no setting " << name);
  return {};
}

}  // namespace

TEST_CASE("build info names version, instruction set and what is not built", "[info]") {
  const json info = parsed(kolo::diagnostics::buildInfo());
  CHECK(info.at("version_code") == KOLO_VERSION_CODE);
  CHECK_FALSE(info.at("isa").get<std::string>().empty());
  CHECK_FALSE(info.at("compiler").get<std::string>().empty());
  std::map<std::string, bool> built;
  for (const json& feature : info.at("features")) {
    built[feature.at("name")] = feature.at("built");
    const auto note = feature.at("note").get<std::string>();  // in one line: what there is, or why there is nothing
    CHECK_FALSE(note.empty());
    CHECK(note.find('\n') == std::string::npos);
  }
  if (KOLO_HAVE_CUDA == 0) CHECK_FALSE(built.at("CUDA kernels"));
  CHECK(built.at("verbs (InfiniBand)") == (KOLO_HAVE_VERBS != 0));
}

TEST_CASE("topology info agrees with itself", "[info]") {
  const json info = parsed(kolo::diagnostics::topologyInfo());
  CHECK(info.at("available_cores") >= 1);
  CHECK(info.at("available_cores") <= info.at("allowed_threads").size());
  CHECK(info.at("memory_bytes") > 0);
}

TEST_CASE("transports info says of each transport whether it works or why not", "[info]") {
  const json info = parsed(kolo::diagnostics::transportsInfo());
  REQUIRE_FALSE(info.at("transports").empty());
  for (const json& transport : info.at("transports")) {
    CHECK_FALSE(transport.at("name").get<std::string>().empty());
    CHECK(transport.at("works").get<bool>() == transport.at("why").get<std::string>().empty());
  }
}

TEST_CASE("settings info tells where a value comes from", "[info]") {
  CHECK(settingOf(parsed(kolo::diagnostics::settingsInfo()), "KOLO_STAGING_BYTES").at("source") == "default");
  const kolo::test::SettingsScope environment({{"KOLO_STAGING_BYTES", std::string("8M")}});
  const json row = settingOf(parsed(kolo::diagnostics::settingsInfo()), "KOLO_STAGING_BYTES");
  CHECK(row.at("source") == "environment");
  CHECK(row.at("value") == "8M");
}

TEST_CASE("settings info does not show the job's secret", "[info]") {
  const kolo::test::SettingsScope environment({{"KOLO_SECRET", std::string("sesame")}});
  const auto text = kolo::diagnostics::settingsInfo();
  REQUIRE(text.ok());
  CHECK(text.value().find("sesame") == std::string::npos);
}

TEST_CASE("settings info names a malformed variable", "[info]") {
  const kolo::test::SettingsScope environment({{"KOLO_TCP_SOCKETS", std::string("lots")}});
  const json info = parsed(kolo::diagnostics::settingsInfo());
  REQUIRE(info.at("error").is_string());
  CHECK(info.at("error").get<std::string>().find("KOLO_TCP_SOCKETS") != std::string::npos);
}

TEST_CASE("settings info leaves out what is for tests, which is read and checked all the same", "[info]") {
  const kolo::test::SettingsScope environment({{"KOLO_TEST_STREAMING_BYTES", std::string("lots")}});
  const json info = parsed(kolo::diagnostics::settingsInfo());
  CHECK(info.at("error").get<std::string>().find("KOLO_TEST_STREAMING_BYTES") != std::string::npos);
  CHECK(info.at("settings").dump().find("KOLO_TEST_") == std::string::npos);
}

TEST_CASE("transports are told what is set for tests", "[info]") {
  const koloTransportHost host = kolo::transport::thisProcess();
  for (const kolo::settings::Value& value : kolo::settings::all()) {
    INFO(value.setting.name);
    CHECK(host.setting(value.setting.name) != nullptr);
  }
}

TEST_CASE("settings info survives values that are not UTF-8", "[info]") {
  const kolo::test::SettingsScope environment({{"KOLO_JOB", std::string("\xff\xfe")}});
  CHECK_FALSE(settingOf(parsed(kolo::diagnostics::settingsInfo()), "KOLO_JOB").at("value").get<std::string>().empty());
}
