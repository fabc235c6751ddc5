// Every step of making a communicator may fail, on one rank: all ranks get an error that names it, what is left can be
// destroyed, and the ranks can make another.
#include "support/making.h"

using namespace kolo;
using namespace kolo::test;

namespace {

comm::Options optionsFor(const std::string& transports) {
  Result<comm::Options> options = comm::Options::make(nullptr, nullptr);
  REQUIRE(options.ok());
  options.value().transports = transports;
  return options.take();
}

}  // namespace

TEST_CASE("a rank that fails or dies at any exchange of making a communicator is named by the others") {
  const char* const transports = GENERATE("shm", "tcp");
  INFO(transports);
  for (const Way& way : {bySplit(), byShrink()}) failAtEachExchange(way, optionsFor(transports), 3, 1);
}

TEST_CASE("a configuration that one rank's split refuses is told to all, and the next split works") {
  Makers makers(3, optionsFor("shm"));
  koloConfig_t config = KOLO_CONFIG_INITIALIZER;
  config.timeoutMs = -5;
  const auto refused = [&](const auto& make) {
    const std::vector<Status> statuses =
        makers.make([&](comm::Communicator& whole) { return make(whole, whole.rank() == 2 ? &config : nullptr); });
    expectAllNamed(statuses, 2);
    for (const Status& status : statuses) CHECK(status.message().find("timeoutMs is -5") != std::string::npos);
  };
  refused([](comm::Communicator& whole, const koloConfig_t* config) { return comm::split(whole, 0, 0, config); });
  expectAllMade(makers.make(Makers::split));
  refused([](comm::Communicator& whole, const koloConfig_t* config) { return comm::shrink(whole, {}, config); });
  expectAllMade(makers.make(Makers::shrink));
}
