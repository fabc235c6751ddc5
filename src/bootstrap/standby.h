// What the ranks of a place do when the process of the job's hub has ended. A place is a host, as far as its processes
// see one network stack and one set of pids.
//
// Each process with ranks of a job has a standby, a listening socket with a name of the kernel's (an abstract socket),
// from before it joins until its last rank has left. The hub tells the names to the ranks of the place. When a rank has
// lost the hub, it knocks at the standbys in the order of the ranks, and the first that is open has the next hub. This
// needs no election and no epochs: a standby that is closed never opens again, so all who look find the same one, or
// one that will soon be closed, after which they look again. The kernel closes it with its process, so a closed one is
// certain, also where a process is stopped, or busy: nothing follows from silence.
//
// Thread safety: reactor thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/reactor.h"
#include "bootstrap/wire.h"
#include "network/talk.h"

namespace kolo::bootstrap {

// A rank of this place.
struct Neighbour {
  int rank = -1;
  std::uint32_t pid = 0;
  std::string standby;  // its name; empty: the process had no descriptor for one
};

// What the next hub of a place begins with.
struct Succession {
  int ranks = 0;  // of the job
  // All ranks of the job are in this place. Otherwise the hub hands on news alone: of two hosts that have lost the hub
  // each would go on without the other.
  bool isWhole = false;
  std::vector<Neighbour> neighbours;
};

// Of what proves that one belongs to the job, where a rank's standby is knocked at.
Secret standbySecret(const Secret& jobKey);
// Listens by a name that nobody can guess. Empty: errno says why.
Socket listenByName(std::string& name);
// A connection to who listens by the name. Empty: errnum is ECONNREFUSED if nobody does, and nobody will.
Socket knock(const std::string& name, int& errnum);
// Whether the rank's process has ended, or all its ranks have left.
bool isGone(const Neighbour& rank);

// A rank's side of the handshake with a standby.
class Knock final : public Source, public std::enable_shared_from_this<Knock> {
 public:
  // Called once: with a connection, or without one.
  using Over = std::function<void(std::optional<Session>, Socket)>;

  Knock(Reactor& reactor, const Secret& secret, Socket socket, Over over)
      : reactor_(reactor), secret_(secret), exchange_(secret), talk_(std::move(socket)), over_(std::move(over)) {}
  Status start();
  // Nothing is called after this.
  void drop();

  void onReadable() override;
  void onWritable() override { onReadable(); }
  bool hasOutput() const override { return false; }
  void giveUp() override { end(false); }

 private:
  bool goesOn();
  void end(bool isProven);

  Reactor& reactor_;
  const Secret secret_;
  const KeyExchange exchange_;
  network::Talk talk_;
  Over over_;
  std::string hello_;
  std::optional<Session> session_;  // from the hub's hello on
};

}  // namespace kolo::bootstrap
