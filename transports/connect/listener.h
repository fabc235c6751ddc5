// Where the devices of this process are dialled: one listening socket for IPv4 and IPv6, and one background thread,
// from the first device to the last. Devices of communicators within one host have a listener of their own, which only
// this host reaches.
//
// Thread safety: all functions, from any thread.
// Invariants: callees are called with the lock held, so that none is called after its remove().
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "answer.h"
#include "network/server.h"

namespace kolo::connect {

using IdKey = std::array<unsigned char, sizeof(Id)>;
IdKey keyOf(const Id& id);

// The rank at the other end of a way's connections, proven.
struct Caller {
  IdKey device;
  std::uint32_t rank;
  Key key;  // of the first connection
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

class Listener : private network::Server, private Directory {
 public:
  Listener();
  static Listener& instance(bool isLocal);

  // Where a listener is made: the address, or all of them (nothing), and the ports.
  struct Where {
    std::optional<network::Address> only;
    settings::Ports ports;
  };
  // Lets others dial the device. 0, or an errno; each success is paired with one remove(). where: to listen, if this is
  // the first device.
  int add(const Id& device, const Key& key, std::uint32_t rank, const Where& where, Callee* callee);
  void remove(const Id& device);
  // Valid while a device is there.
  std::uint16_t port();
  // The errno of the limit of open files for which connections were refused; 0: none was.
  int refusedFor();

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

  int listen(Socket& listener) override;
  Clock::time_point attend(Clock::time_point now) override;
  void end() override;
  std::unique_ptr<network::Stranger> welcome(Socket socket) override;
  std::string refusal(int errnum) override;
  void hasRefused(int errnum) override;
  const Entry* find(const Id& device) const override;
  Decision decide(const Hello& hello, const Key& key) override;
  void take(Answer& client) override;

  // Under state_.
  Where where_;
  std::map<IdKey, Member> members_;
  std::map<IdKey, Set> sets_;
  std::uint16_t port_ = 0;
  int refusedFor_ = 0;
};

}  // namespace kolo::connect
