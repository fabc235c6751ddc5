// Which transports there are: compiled in, loaded, ordered, refused.
#include "transport/registry.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "base/identity.h"
#include "base/settings.h"

namespace kolo::contract {
namespace {

// A variable of the environment for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name); old != nullptr) old_ = old;
    setenv(name, value.c_str(), 1);
    settings::reload();
  }
  ~Variable() {
    if (old_) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
    settings::reload();
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::string pluginPath(const std::string& name) {
  const char* const folder = std::getenv("KOLO_TEST_PLUGINS");
  REQUIRE(folder != nullptr);
  return std::string(folder) + "/kolo-transport-" + name + ".so";
}

void checkRefused(const std::string& path, const std::string& reason) {
  const Variable plugins("KOLO_TRANSPORT_PLUGINS", path);
  const auto entries = transport::list("");
  CHECK(entries.status().code() == koloInvalidEnvironment);
  INFO(entries.status().message());
  CHECK(entries.status().message().find("KOLO_TRANSPORT_PLUGINS") != std::string::npos);
  CHECK(entries.status().message().find(path) != std::string::npos);
  CHECK(entries.status().message().find(reason) != std::string::npos);
}

}  // namespace

TEST_CASE("where data is to be encrypted, posted transports that cannot do so are not used, and say why",
          "[registry]") {
  for (const char* const wish : {"0", "1"}) {
    const Variable variable("KOLO_ENCRYPT", wish);
    const auto entries = transport::list("");
    REQUIRE(entries.ok());
    for (const transport::Entry& entry : entries.value()) {
      const std::string name = entry.table->name;
      INFO(name << ": " << entry.why);
      const bool isBarred = entry.why.find("KOLO_ENCRYPT=1") != std::string::npos;
      CHECK(isBarred == (*wish == '1' && name == "ib"));
      if (isBarred) CHECK_FALSE(entry.works);
      if (name == "tcp") CHECK(entry.works);
    }
  }
}

TEST_CASE("a plugin with a fault is refused by path and reason", "[registry]") {
  checkRefused(pluginPath("broken-abi"), "version 3 of the transport interface, expected 2");
  checkRefused(pluginPath("broken-size"), "its table has 16 bytes");
  checkRefused(pluginPath("broken-entry"), "exports no function koloTransportEntry");
  checkRefused(pluginPath("broken-function"), "lacks deviceOpen");
}

TEST_CASE("a plugin that is not there or no shared object is refused", "[registry]") {
  checkRefused("/nonexistent/transport.so", "No such file");
  checkRefused("/proc/self/cmdline", "cannot be loaded");
}

TEST_CASE("a good plugin among bad ones does not hide them", "[registry]") {
  const Variable plugins("KOLO_TRANSPORT_PLUGINS", pluginPath("tmpfile") + ":" + pluginPath("broken-abi"));
  CHECK(transport::list("").status().code() == koloInvalidEnvironment);
}

TEST_CASE("plugins come before what is built in, and stay loaded", "[registry]") {
  const Variable plugins("KOLO_TRANSPORT_PLUGINS", pluginPath("tmpfile"));
  const auto entries = transport::list("");
  REQUIRE(entries.status().message() == "");
  CHECK(std::string(entries.value().front().table->name) == "tmpfile");
  CHECK(entries.value().front().origin == pluginPath("tmpfile"));
  CHECK(entries.value().front().works);
  CHECK(transport::list("tmpfile").value().front().table == entries.value().front().table);
}

TEST_CASE("KOLO_TRANSPORTS restricts and orders, and an argument goes before it", "[registry]") {
  const Variable plugins("KOLO_TRANSPORT_PLUGINS", pluginPath("tmpfile"));
  const Variable transports("KOLO_TRANSPORTS", " shm , tmpfile,shm");
  const auto both = transport::list("");
  REQUIRE(both.status().message() == "");
  REQUIRE(both.value().size() == 2);
  CHECK(std::string(both.value()[0].table->name) == "shm");
  CHECK(both.value()[0].origin == "built in");
  CHECK(std::string(both.value()[1].table->name) == "tmpfile");
  CHECK(transport::list("tmpfile").value().size() == 1);
}

TEST_CASE("an unknown transport is refused with the names there are", "[registry]") {
  const auto entries = transport::list("shm,carrier-pigeon");
  CHECK(entries.status().code() == koloInvalidArgument);
  {
    const Variable transports("KOLO_TRANSPORTS", "carrier-pigeon");
    CHECK(transport::list("").status().code() == koloInvalidEnvironment);
  }
  CHECK(entries.status().message().find("carrier-pigeon") != std::string::npos);
  CHECK(entries.status().message().find("there are: ") != std::string::npos);
  CHECK(transport::list(" , ").status().code() == koloInvalidArgument);
}

TEST_CASE("a forked child is another process on the same host", "[registry]") {
  const Identity parent = processIdentity();
  const transport::HostId host = transport::hostId();
  const pid_t child = fork();
  if (child == 0) {
    _exit(processIdentity() != parent && transport::hostId() == host ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(processIdentity() == parent);
}

}  // namespace kolo::contract
