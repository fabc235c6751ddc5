// The giving side: which memories this process has registered, and one background thread that hands their files to
// processes which prove that they belong to the memory's communicator.
//
// Thread safety: all functions, from any thread.
// Invariants: a file in the table is open, because its owner removes the memory before closing it, and files are sent
// only with the table's lock held.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "network/server.h"
#include "wire.h"

namespace kolo::handover {

using IdKey = std::array<unsigned char, sizeof(Id)>;

struct Exported {
  void* address;
  std::uint64_t bytes;
  int fd;  // borrowed; -1: ordinary memory
  Key key;
};

class Exporter : private network::Server {
 public:
  static Exporter& instance() { return ofThisProcess<Exporter>(); }

  // The new memory's id.
  IdKey add(const Exported& memory);
  void remove(const IdKey& id);
  std::optional<Exported> find(const IdKey& id);

  // Of the thread; between them there is a socket.
  using Server::acquire;
  using Server::release;
  void copySocketName(char (&name)[kSocketNameBytes]);

 private:
  friend Exporter& kolo::ofThisProcess<Exporter>();
  class Client;

  Exporter();
  int listen(network::Socket& listener) override;
  std::unique_ptr<network::Stranger> welcome(network::Socket socket) override;
  std::string refusal(int errnum) override;
  void hasRefused(int) override {}

  // Under state_.
  std::map<IdKey, Exported> memories_;
  char socketName_[kSocketNameBytes] = {};
};

}  // namespace kolo::handover
