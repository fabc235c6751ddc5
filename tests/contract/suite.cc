#include "suite.h"

namespace kolo::contract {
namespace {

std::vector<std::string> namesOf(bool (*wanted)(const koloTransport&)) {
  const auto entries = transport::list("");
  REQUIRE(entries.status().message() == "");
  std::vector<std::string> names;
  for (const transport::Entry& entry : entries.value()) {
    INFO(entry.table->name << ": " << entry.why);
    CHECK(entry.works);
    if (entry.works && wanted(*entry.table)) names.push_back(entry.table->name);
  }
  return names;
}

}  // namespace

std::vector<std::string> working() {
  return namesOf([](const koloTransport&) { return true; });
}

std::vector<std::string> working(koloLinkKind_t kind) {
  if (kind == koloLinkMapped)
    return namesOf([](const koloTransport& table) { return table.linkKind == koloLinkMapped; });
  return namesOf([](const koloTransport& table) { return table.linkKind == koloLinkPosted; });
}

std::size_t registered(Rank& rank, std::size_t bytes, std::size_t offset, Backing backing) {
  const auto memory = rank.registerMemory(bytes, offset, backing);
  REQUIRE_OK(memory.status());
  return memory.value();
}

std::size_t linked(Rank& rank, const koloTransportBlob& address, const koloTransportBlob& descriptor) {
  const auto link = rank.openLink(address, descriptor);
  REQUIRE_OK(link.status());
  return link.value();
}

Reply accepted(Reply reply) {
  REQUIRE(std::string(reply.message) == "");
  return reply;
}

Pair::Pair(const std::string& transport, const HostOptions& options) {
  REQUIRE_OK(rank.open(transport, options));
  HostOptions others = options;
  others.rank = 1;
  accepted(peer.open(transport, others));
}

}  // namespace kolo::contract
