// The NICs of a device: those that may be used, opened, and their ports.
//
// Thread safety: one thread at a time, but for Port::isDown.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "drivers/verbs/verbs.h"
#include "wire.h"

namespace kolo::ib {

using drivers::Verbs;

struct Settings {
  std::string devices;            // as KOLO_IB_DEVICES
  std::vector<std::string> near;  // koloTransportHost.nearNics; empty if the user has named devices
  int gidIndex = -1;
  int timeout = 16;  // of an acknowledgement: 4.096 us * 2^timeout
  int retries = 7;
  int rails = 0;
  int trafficClass = 0;
  int serviceLevel = 0;
  int silenceMs = 0;  // how long a peer's host may be silent
};
Settings readSettings(const koloTransportHost& host);

struct Port {
  std::size_t nic;
  std::uint8_t number;
  int gidIndex;
  std::uint32_t megabits;  // a second, one way
  PortAddress address;
  std::string name;  // "mlx5_0 port 1"
  std::atomic<bool> isDown{false};
};

struct Nic {
  ibv_context* context;
  ibv_pd* domain;
  std::string name;
  int mostRequests;  // that a queue pair may have under way
};

class Nics {
 public:
  // Opens those that have a usable port, at most kMostNics: of those that are about as fast as the fastest, the nearest
  // first.
  int open(const Settings& settings, const Why& why);
  // All that was made of them has been given back.
  ~Nics();
  // Leaves everything as it is: in a forked child it is the parent's.
  void forget();

  const Verbs& verbs() const { return *verbs_; }
  std::vector<Nic>& all() { return nics_; }
  std::vector<std::unique_ptr<Port>>& ports() { return ports_; }
  Nic& of(const Port& port) { return nics_[port.nic]; }

 private:
  int openOne(ibv_device* device, const Settings& settings, std::string* story);
  std::unique_ptr<Port> usablePort(const Nic& nic, std::uint8_t number, const Settings& settings,
                                   std::string* story) const;
  bool chooseGid(const Nic& nic, const ibv_port_attr& attributes, int wished, Port* port) const;
  void keepBest(const std::vector<std::string>& near);

  const Verbs* verbs_ = nullptr;
  std::vector<Nic> nics_;
  std::vector<std::unique_ptr<Port>> ports_;
};

}  // namespace kolo::ib
