// RDMA devices without hardware: queue pairs of this process, and of others that were started by it, write into each
// other's memory; a thread stands for all devices. What is forbidden on real devices is refused here, or noted. What
// those cannot be told to do on demand (each kind of completion error, short queues, late completions, a port that goes
// down) can be told to these.
//
// Thread safety: all functions; install() and remove() while nothing uses the devices.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace kolo::test {

struct MockVerbs {
  // Entries of each port's table of addresses. IPv4 ones are mapped into IPv6.
  enum class Gid : std::uint8_t { kNone, kLinkLocalV1, kLinkLocalV2, kIpv4V1, kIpv4V2, kGlobalV2, kInfiniBand };

  int nics = 2;               // each with one port; named mock0, mock1, ...
  bool isInfiniBand = false;  // else Ethernet
  Gid gids[6] = {Gid::kLinkLocalV1, Gid::kLinkLocalV2, Gid::kIpv4V1, Gid::kIpv4V2, Gid::kNone, Gid::kNone};
  unsigned maxInline = 220;        // bytes of a request
  unsigned mostRequests = 4096;    // of a queue
  std::uint64_t lockedBytes = 0;   // that may be registered in a process; 0: any number
  bool dmaBuf = true;              // memory of (mocked) GPUs can be registered by a dma-buf,
  bool peerMemory = true;          // and by its address,
  bool losesDeviceWrites = false;  // but what is written there gets lost, in silence
  int lateBy = 0;                  // polls that see nothing before a completion appears
  unsigned shuffle = 0;            // not 0: the order among queue pairs is random, from this seed
  ibv_mtu mtu = IBV_MTU_4096;

  // Puts the mock in the place of libibverbs. A process that this one starts gets the same devices by its own join().
  void install() const;
  // Joins the world of the process that started this one. False: there is none.
  static bool join();
  // Checks that everything was given back and nothing forbidden was done: "" or what was not.
  static std::string remove();

  // ---- while installed; of all processes that have joined

  static void setPortDown(int nic, bool isDown);      // its state, an event, and nothing passes any more
  static void setPathBroken(int nic, bool isBroken);  // nothing passes, and nobody is told
  static void setStalled(int nic, bool isStalled);    // requests of this process stay where they are

  // ---- of this process

  // The request after `after` others, by any nic or that one, ends so. isDelivered: its bytes arrive all the same.
  static void failWrite(ibv_wc_status status, bool isDelivered = false, int after = 0, int nic = -1);
  static bool hasFailed();  // that one
  static void failCall(const std::string& function, int errnum,
                       int after = 0);                       // of drivers::Verbs, each time after others; "": none
  static std::uint64_t carried(int nic);                     // requests that it has carried out
  static std::uint64_t messages();                           // of them, those that arrived as messages
  static int pairs();                                        // queue pairs that exist
  static int pairsWith(int serviceLevel, int trafficClass);  // of them, those that have been connected with these
  static int registrations();
  static int deviceRegistrations(bool byDmaBuf);  // of them, of memory of (mocked) GPUs
};

}  // namespace kolo::test
