// The insides of the mock. What processes must know of each other stands in memory that they share: which queue pairs
// and registrations there are.
#pragma once

#include <pthread.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "drivers/verbs/verbs.h"
#include "mock_verbs/mock_verbs.h"

namespace kolo::test::mock_verbs {

inline constexpr int kMostNics = 8;
inline constexpr std::size_t kMostPairs = 2048, kMostRegions = 8192;

struct SharedPair {
  std::uint32_t number;  // 0: free
  std::int32_t pid;
  std::uint64_t domain;
  std::uint32_t state;        // ibv_qp_state
  std::uint32_t destination;  // number of the other one
  std::int32_t nic;
  ibv_gid gid, gidOfDestination;
  std::uint16_t lid, lidOfDestination;
  std::uint8_t serviceLevel, trafficClass;
};

// What a queue pair is to receive into, and what has come: written by whoever sends, of whatever process.
struct SharedInbox {
  static constexpr std::uint32_t kMost = 256;
  struct Buffer {
    std::uint64_t id, address;
    std::uint32_t bytes;
  };
  struct Arrival {
    std::uint64_t id;
    std::uint32_t bytes;
  };
  std::uint32_t posted, filled;  // buffers, counted; buffer k stands at k % kMost
  std::uint32_t told;            // arrivals that are completions
  Buffer buffers[kMost];
  Arrival arrivals[kMost];  // likewise, at `filled`
};

struct SharedRegion {
  std::uint32_t key;  // 0: free
  std::int32_t pid;
  std::uint64_t domain, address, bytes;
  std::uint32_t access;
  bool isOfDevice;
  std::uint64_t memory;  // where the bytes at `address` are for this process, which of a dma-buf is another place
};

struct Shared {
  pthread_mutex_t mutex;  // robust: a process may be killed inside
  MockVerbs properties;
  std::uint32_t next;  // number of the next object
  bool isDown[kMostNics], isBroken[kMostNics];
  SharedPair pairs[kMostPairs];
  SharedInbox inboxes[kMostPairs];  // of those
  SharedRegion regions[kMostRegions];
};

class SharedLock {
 public:
  explicit SharedLock(Shared& shared);
  ~SharedLock();

 private:
  Shared& shared_;
};

struct Nic : ibv_device {
  int index;
};

struct Context : ibv_context {
  Nic* nic;
  std::deque<ibv_event_type> events;
};

struct Domain : ibv_pd {
  std::uint64_t id;
  int users = 0;
};

struct Region : ibv_mr {
  SharedRegion* shared;
  void* mapping = nullptr;  // of a dma-buf
  bool isOfDevice = false;
};

struct Pair;

struct Queue : ibv_cq {
  struct Entry {
    ibv_wc completion;
    int late;             // polls until it is seen
    std::uint64_t index;  // of the request, counted for each pair
  };
  std::deque<Entry> entries;
  std::vector<Pair*> pairs;
};

struct Request {
  std::uint64_t id;
  std::uint64_t index;
  std::vector<ibv_sge> parts;
  std::vector<unsigned char> inlined;
  std::uint64_t to;
  std::uint32_t key;
  bool isSignaled, isInline, isMessage;  // isMessage: into the peer's next buffer
};

struct Pair : ibv_qp {
  SharedPair* shared;
  SharedInbox* inbox;
  Queue* queue;
  ibv_qp_cap cap;
  bool signalsAll;
  std::deque<Request> requests;
  std::uint64_t posted = 0, retired = 0;  // requests; retired: their room may be used again
};

struct Failure {
  ibv_wc_status status = IBV_WC_SUCCESS;
  bool isDelivered = false;
  int after = 0;
  int nic = -1;
};

struct World {
  Shared* shared = nullptr;
  int file = -1;
  std::mutex mutex;  // before the shared one; everything below
  std::condition_variable changed;
  std::thread engine;
  bool isEnding = false;
  std::array<Nic, kMostNics> nics{};
  std::list<Context> contexts;
  std::list<Domain> domains;
  std::list<Region> regions;
  std::list<Queue> queues;
  std::list<Pair> pairs;
  std::uint64_t locked = 0;
  Failure failure;
  bool hasFailed = false;
  std::string failingCall;
  int failingErrno = 0, failingAfter = 0;
  bool isStalled[kMostNics] = {};
  std::uint64_t carried[kMostNics] = {}, messages = 0;
  std::minstd_rand random;
  std::string complaint;  // the first thing done that is forbidden

  void complain(const std::string& what) {
    if (complaint.empty()) complaint = what;
  }
};

extern World* world;  // null: not installed

// The thread that stands for the devices.
void runEngine();
// Puts a completion into the pair's queue. REQUIRES: world's mutex.
void complete(Pair& pair, const Request& request, ibv_wc_status status);
// The same of what has come. REQUIRES: the shared one, too.
bool tellArrivals(Pair& pair);
// REQUIRES: world's mutex and the shared one.
void flush(Pair& pair);

const drivers::Verbs& table();

}  // namespace kolo::test::mock_verbs
