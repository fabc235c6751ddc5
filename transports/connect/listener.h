// Where the devices of this process are dialled: one listening socket for IPv4 and IPv6, and one background thread,
// from the first device to the last.
//
// Thread safety: all functions, from any thread.
// Invariants: the thread never blocks but in poll. A stranger, garbage or a client that says nothing costs at most one
// of kMostClients places, for kClientTime, or until as many others have come; a client that has named a device has its
// place for kPressedTime then. Callees are called with the lock held, so that none is called after its remove(). A
// forked child starts with no thread, sockets or members of its parent.
#pragma once

#include <pthread.h>

#include <array>
#include <list>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "answer.h"

namespace kolo::connect {

using IdKey = std::array<unsigned char, sizeof(Id)>;
IdKey keyOf(const Id& id);

// The rank that has dialled, proven.
struct Caller {
  IdKey device;
  std::uint32_t rank;
};

// A device that can be dialled. Called by the listener's thread; must not call the listener, nor block.
class Callee {
 public:
  // Whether the caller's connections shall be taken. After kTaken follows arrive() or giveUp().
  virtual Decision decide(const Caller& caller) = 0;
  virtual void arrive(const Caller& caller, std::vector<Socket> rails) = 0;
  virtual void giveUp(const Caller& caller) = 0;
  virtual void log(int level, const char* line) = 0;

 protected:
  ~Callee() = default;
};

// At which ports a listener may be; first 0: any.
struct Ports {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
  bool isAny() const { return first == 0; }
  int count() const { return last - first + 1; }
};
// As KOLO_PORT_RANGE, whose form the library has checked.
Ports parsePorts(std::string_view text);

class Listener : private Directory {
 public:
  // One for each process, never destroyed: the thread may run while the process exits.
  static Listener& instance();

  // Starts the thread if it does not run, and lets others dial the device. 0, or an errno; each success is paired with
  // one remove(), the last of which ends the thread. ports: where to listen, if this is the first device.
  int add(const Id& device, const Key& key, std::uint32_t rank, const Ports& ports, Callee* callee);
  void remove(const Id& device);
  // Valid while a device is there.
  std::uint16_t port();
  // The errno of the limit of open files for which connections were refused; 0: none was.
  int refusedFor();
  // A socket for dialling; where there can be none, an empty one, and errno is set. It never takes the descriptor that
  // the listener frees for a moment to refuse a client: without that one later clients would get no answer.
  Socket socketForDial(int family);

 private:
  struct Member {
    Entry entry;
    Callee* callee;
  };
  // Connections that have been taken, of a dialler that will make more.
  struct Set {
    IdKey to;
    Caller from;
    std::vector<Socket> rails;
    Clock::time_point since;
  };

  Listener();
  int start(const Ports& ports);
  int openSockets(const Ports& ports);
  void closeSockets();
  void serve();
  int pollTimeout(Clock::time_point now) const;
  void dropOld(Clock::time_point now);
  bool dropStranger(int errnum);
  bool acceptClients(Clock::time_point now);
  void refuseForFiles(int errnum);
  void noteRefusal(int errnum);
  void warn(const char* line);
  void take(Answer& client);
  const Entry* find(const Id& device) const override;
  Decision decide(const Hello& hello) override;

  // All are held over fork, in this order.
  std::mutex lifecycle_;  // starting and ending the thread
  std::mutex state_;      // everything below but spareUse_
  std::mutex spareUse_;   // held while spare_ is given up, for some calls that do not block

  pthread_t thread_{};
  std::map<IdKey, Member> members_;
  std::list<Answer> clients_;  // oldest first
  std::map<IdKey, Set> sets_;
  Clock::time_point pausedUntil_{};
  Socket listener_, wake_;  // wake_: an eventfd, written once, to end the thread
  Socket spare_;            // given up for a moment to tell callers that there are no files
  std::uint16_t port_ = 0;
  int refusedFor_ = 0;
};

}  // namespace kolo::connect
