// What the ranks of a place do when the process of the job's hub has ended. A place is a host, as far as its processes
// see one network stack and one set of pids.
//
// Each rank has a standby, a listening socket with a name of the kernel's (an abstract socket), from before it joins
// until it has left, and so has the hub while it lives. The hub tells the names to the ranks of the place: its own
// first, then the others in the order of the ranks. A rank that has lost its connection to the hub knocks at them in
// this order, and the first that is open has the next hub; if that is the lost hub's own, that hub lives, and has given
// up the rank. This needs no election and no epochs, and there are never two hubs: a standby that is closed never opens
// again (another process that takes the name is not it), and a rank makes a hub only when it has found all standbys
// before its own closed. The kernel closes a standby with its process, so a closed one is certain, also where a process
// is stopped, or busy: nothing follows from silence.
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

// A rank of this place, or the hub.
struct Neighbour {
  int rank = -1;
  std::uint32_t pid = 0;
  std::string standby;  // its name
};
constexpr std::size_t kMaxNameBytes = 100;  // of a standby's name
// In place of a rank: the process of the hub that tells of the neighbours, which may have none.
constexpr std::int32_t kHubItself = -1;
class Standby;  // listener.h

// Results of exchanges have one numbering over all hubs: those of the hub with this rank's standby come after this
// number. Hubs come in the order of the list, that of ranks, so a later hub's numbers are larger; none makes so many.
constexpr std::uint64_t resultsBefore(int rank) { return static_cast<std::uint64_t>(rank - kHubItself) << 40; }
// In place of a result's number: no hub was asked before.
constexpr std::uint64_t kNeverAsked = UINT64_MAX;

// What the next hub of a place begins with.
struct Succession {
  int ranks = 0;  // of the job
  // All ranks of the job are in this place. Otherwise the hub hands on news alone: of two hosts that have lost the hub
  // each would go on without the other.
  bool isWhole = false;
  std::vector<Neighbour> neighbours;
  int rank = 0;  // whose standby has the hub
};

// Of what proves that one belongs to the job, where a rank's standby is knocked at.
Secret standbySecret(const Secret& jobKey);
// Listens by a new name, which says who does. Empty: errno says why.
Socket listenByName(std::string& name);
// A connection to the process that has made the name and listens. Empty: errnum is ECONNREFUSED if it does not, and
// never will; another process may.
Socket knock(const std::string& name, int& errnum);
// Whether the rank's process has ended, or the rank has left.
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
  // The process there lives: it has said something.
  bool isAnswered() const { return isAnswered_; }

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
  bool isAnswered_ = false;
  std::optional<Session> session_;  // from the hub's hello on
};

}  // namespace kolo::bootstrap
