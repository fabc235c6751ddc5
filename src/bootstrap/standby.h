// What the ranks of a job do when the process of its hub has ended.
//
// Each rank has a standby, from before it joins until it has left, and so has the hub while it lives. Ranks of its
// place reach it by a name of the kernel's (an abstract socket), those of other places by the process's port for them.
// (A place is a host, as far as its processes see one network stack and one set of pids.) The hub tells of all standbys
// in one list: its own first, then the others in the order of the ranks. A rank that has lost its connection to the hub
// knocks at them in this order, and the first that is open has the next hub; if that is the lost hub's own, that hub
// lives. The first hub ends then, for a rank of another host: all ranks go on to the next one. Any other hub has given
// up the rank. This needs no election, and there are never two hubs: a standby that is closed
// never opens again (another process that takes the name or the port is not it), and a rank makes a hub only when it
// has found all standbys before its own closed. The kernel closes a standby with its process and says so, so a closed
// one is certain, also where a process is stopped, or busy.
//
// Only a whole host may be silent: it is down, or no way leads there. Then it is not known whether its processes live,
// and what they do. Ranks pass by its standbys. But a hub that was made behind such a standby says nothing before more
// than half of the ranks that count are with it, and no hub at all takes a silent rank for dead before as many have
// said that they do, for any hub (hub_silence.cc).
//
// Thread safety: reactor thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/process_info.h"
#include "bootstrap/reactor.h"
#include "bootstrap/wire.h"
#include "network/talk.h"

namespace kolo::bootstrap {

// A rank of the job, or the hub.
struct Neighbour {
  int rank = -1;
  std::uint32_t pid = 0;
  std::string standby;    // its name
  bool isHere = true;     // in this process's place; else it is reached by address and port
  std::string address{};  // empty: that of the hub
  std::uint16_t port = 0;
  std::string host = hostName();
  std::uint64_t place = 0;  // placeIdentity() there; 0: unknown
};
constexpr std::size_t kMaxNameBytes = 100;        // of a standby's name, or its address
constexpr std::size_t kMaxNeighbourBytes = 1024;  // of what ranks are told of one
constexpr const char* kThisHost = "127.0.0.1";
// In place of a rank: the process of the hub that tells of the neighbours, which may have none.
constexpr std::int32_t kHubItself = -1;
class Standby;  // listener.h

// Results of exchanges have one numbering over all hubs: those of the hub with this rank's standby come after this
// number. Hubs come in the order of the list, that of ranks, so a later hub's numbers are larger; none makes so many.
constexpr std::uint64_t resultsBefore(int rank) { return static_cast<std::uint64_t>(rank - kHubItself) << 40; }
// In place of a result's number: no hub was asked before.
constexpr std::uint64_t kNeverAsked = UINT64_MAX;

// What the next hub begins with.
struct Succession {
  int ranks = 0;  // of the job
  std::vector<Neighbour> neighbours;
  int rank = 0;  // whose standby has the hub
  // A standby before that was silent, and not found closed.
  bool isPastSilence = false;
  bool isWide = false;  // ranks are in several places
};

// What a standby is called where it is knocked at, and what proves there that one belongs to the job.
Tag tagOfStandby(const std::string& name);
Secret standbySecret(const Secret& jobKey, const std::string& name);
// Listens by a new name, which says who does. Empty: errno says why.
Socket listenByName(std::string& name);
// A connection to the process that has made the name and listens. Empty: errnum is ECONNREFUSED if it does not, and
// never will; another process may.
Socket knock(const std::string& name, int& errnum);
// A connection to a standby, maybe still on its way. Empty: as knock(); of another host also EHOSTUNREACH and the like.
Socket reach(const Neighbour& rank, int& errnum);
// Whether the process of a rank of this place has ended, or the rank has left.
bool isGone(const Neighbour& rank);

// The first packets of a connection may be lost, and are sent again after one second and after three.
constexpr std::chrono::seconds kLongestKnock{4};
// As long as a host may be silent, and a process that lives say nothing: KOLO_SILENCE_MS, or as long as a knock.
std::chrono::milliseconds silence();
// At a standby that is open; between hosts silence() more.
constexpr std::chrono::seconds kLongestSearch{15};

// One end of a handshake with a standby.
class Knock final : public Source, public std::enable_shared_from_this<Knock> {
 public:
  // What is known of the standby.
  enum class Word : std::uint8_t {
    kNone,       // its host has said nothing
    kConnected,  // somebody listens there
    kOpen,       // it is open, and has no hub for this job
    kHub,        // it has one
    kClosed,     // nobody listens there, or another who does not know it
    kSilent,     // there is no way to its host, at the moment
  };
  // Called once: with a connection, or without one.
  using Over = std::function<void(std::optional<Session>, Socket)>;

  // isLook: that it is open is all that is to be known.
  Knock(Reactor& reactor, const Secret& secret, bool isLook, Socket socket, Over over)
      : reactor_(reactor), secret_(secret), exchange_(secret), isLook_(isLook), talk_(std::move(socket)),
        over_(std::move(over)) {}
  Status start();
  // Nothing is called after this.
  void drop();
  Word word() const { return word_; }
  bool isOver() const { return over_ == nullptr; }

  void onReadable() override;
  void onWritable() override;
  bool hasOutput() const override { return false; }
  void giveUp() override { end(false); }

 private:
  bool goesOn();
  bool hear(const std::string& bytes);
  void end(bool isProven);

  Reactor& reactor_;
  const Secret secret_;
  const KeyExchange exchange_;
  const bool isLook_;
  network::Talk talk_;
  Over over_;
  std::string hello_;
  Word word_ = Word::kNone;
  std::optional<Session> session_;  // from the hub's hello on
};

}  // namespace kolo::bootstrap
