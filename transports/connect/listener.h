// Where the devices of this process are dialled: one listening socket for IPv4 and IPv6, and one background thread,
// from the first device to the last. Devices that are to be reached at one address alone, as those of communicators
// within one host are, have a listener at that address.
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
  Cipher cipher;
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
  explicit Listener(const std::optional<network::Address>& only);
  // That of the address, or of all of them (nothing).
  static Listener& at(const std::optional<network::Address>& only);

  // Lets others dial the device. 0, or an errno; each success is paired with one remove(). ports: to listen at, if this
  // is the first device.
  int add(const Id& device, const Entry& entry, const settings::Ports& ports, Callee* callee);
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
  void drop(const Hello& hello) override;

  const std::optional<network::Address> only_;
  // Under state_.
  settings::Ports ports_;
  std::map<IdKey, Member> members_;
  std::map<IdKey, Set> sets_;
  std::uint16_t port_ = 0;
  int refusedFor_ = 0;
};

}  // namespace kolo::connect
