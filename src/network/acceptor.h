// Who has come to a listening socket and has proved nothing yet.
//
// Strangers cost little and disturb nobody: nothing here blocks, each has a limited time, and their number is bounded.
// A peer speaks at once, and proves itself with its second message. So each stranger keeps its place for 20 ms, and one
// that has named something that is here for 200 ms. (What a stranger names is no proof, for who has heard it can repeat
// it.) When all places are taken, the source (sourceOf) that has most of them makes room for a newcomer: the oldest
// that names nothing, else the oldest, whose time is over. So strangers of one source displace each other, and no peer
// of another source, however slow that is. Where the time of none is over, it depends on how large that crowd is:
//  - It has an eighth of the places at most: the peers of many hosts come at once, or strangers of very many addresses.
//    Nobody is displaced or accepted; the callers wait in the kernel's backlog, in the order in which they have come.
//  - It has more: a newcomer of the same source is turned away, and a peer tries again. For a newcomer of another
//    source the oldest of the crowd goes.
// Each call of serve() answers few strangers, because the thread has other work. Connections that this process has made
// itself (add) take no places. Where a caller comes and the process has no descriptors left, the oldest stranger that
// names nothing gives up its own; where there is none, callers are told so by a descriptor that is kept for this.
//
// Thread safety: one thread at a time.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "network/socket.h"

namespace kolo::network {

// Where a connection comes from, as far as places are counted: the address of a host (of IPv6 the network of 64 bits,
// in which a host has as many addresses as it likes); of a connection within this host that is no TCP, the user.
using Source = std::pair<int, std::uint64_t>;
Source sourceOf(int fd);

// A connection whose other end has proved nothing yet.
class Stranger {
 public:
  enum class Outcome { kGoesOn, kOver, kProven };
  virtual ~Stranger() = default;
  virtual int fd() const = 0;
  virtual short awaits() const { return POLLIN; }
  // As far as it goes without waiting.
  virtual Outcome advance() = 0;
  // Has named something that is here.
  virtual bool isExpected() const { return false; }
  // It is proven, and has no place among the strangers any more. May close the acceptor.
  virtual void enter() {}
};

class Acceptor {
 public:
  class Owner {
   public:
    virtual std::unique_ptr<Stranger> welcome(Socket socket) = 0;
    // All that one is told for whom there is no descriptor: an errno says which limit was reached.
    virtual std::string refusal(int errnum) = 0;
    // Somebody is refused. Once, until all who have come can be accepted again.
    virtual void hasRefused(int errnum) = 0;
    // For an event loop: it is to wait for the stranger's socket, and does so no longer. False: it cannot.
    virtual bool watch(int /*fd*/) { return true; }
    virtual void forget(int /*fd*/) {}

   protected:
    ~Owner() = default;
  };

  // time: of a stranger, from connecting to its proof.
  Acceptor(Owner& owner, std::chrono::milliseconds time) : owner_(owner), time_(time) {}

  // 0, or an errno: there is no descriptor to refuse others by.
  int open(Socket listener);
  // Closes the listening socket, and drops the strangers.
  void close();
  int fd() const { return listener_.fd(); }
  bool isOpen() const { return listener_.valid(); }
  // Accepts nobody until next(): polling the listening socket would spin.
  bool isPaused() const { return pausedUntil_ != Clock::time_point(); }

  // Adds what to poll for.
  void addTo(std::vector<pollfd>& polls) const;
  // Does what can be done without waiting.
  void serve();
  // When to serve though nothing has come.
  Clock::time_point next() const;

  // The other end is of this process.
  void add(Socket socket);
  // Gives up the connection of the oldest stranger that names nothing, telling it of the limit. False: there is none.
  bool dropUnexpected(int errnum);

 private:
  struct Place {
    std::unique_ptr<Stranger> who;
    Clock::time_point until;
    Source source;
  };
  using Places = std::list<Place>;  // oldest first
  struct Crowd {
    Source source;
    std::size_t places = 0;
  };

  bool advanceAll();
  Stranger::Outcome outcomeOf(Stranger& who);
  Places::iterator advance(Places::iterator place);
  bool hasCaller() const;
  bool accept();
  std::optional<Crowd> crowdIfFull() const;
  Places::iterator whoseTimeIsOver(const Crowd& crowd);
  bool mustWait(const std::optional<Crowd>& crowd);
  bool makeRoom(const std::optional<Crowd>& crowd, const Source& newcomer);
  void admit(Socket socket, const Source& source);
  Places::iterator drop(Places::iterator place);
  Places::iterator oldestUnexpected();
  void tell(int fd, int errnum);
  void refuse(int errnum);

  Owner& owner_;
  const std::chrono::milliseconds time_;
  Socket listener_;
  Socket spare_;  // given up for a moment to tell callers that there are no descriptors
  Places places_;
  std::vector<std::unique_ptr<Stranger>> proven_;
  Clock::time_point pausedUntil_{};
  int answered_ = 0;  // by this call of serve()
  bool isRefusing_ = false;
};

}  // namespace kolo::network
