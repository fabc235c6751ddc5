// What an executor gets besides the description of the work: how to wait, and what reduces on this machine.
#pragma once

#include <kolo/kolo.h>

#include <atomic>
#include <cstdint>

#include "device/link.h"
#include "device/path.h"
#include "device/segments.h"
#include "device/work.h"
#include "executor/host/polling.h"

namespace kolo::executor {

// Folds by the vector instructions of this machine: executor/host/reduce.h.
using ReduceKernel = void (*)(const device::ReduceArgs& args);

// One wait, from its first poll on.
struct WaitState {
  std::int64_t startedNs = 0;  // 0: the owner has not been asked yet
  std::int64_t idleNs = 0;     // since when nothing has moved; 0: it has just now
  std::int64_t checkedNs = 0;  // the peer's board was looked at
  std::int64_t saidNs = 0;     // this rank said that it waits
  std::uint64_t rounds = 0;
  bool naps = false;             // between two looks it sleeps: one poll is enough for a look
  bool isKnownToBeGone = false;  // nobody comes any more, but for what has been sent
};

// The owner of the links (a communicator), as an executor sees it.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  // Called again and again by a team's leader that has polled in vain, between two rounds of polling.
  // May yield the core. A fault other than kNone makes the team give up.
  virtual device::Fault keepWaiting(const device::Work& work, int peer, WaitState& state) = 0;
  // Opens the link to a peer, which this rank needs for the first time.
  virtual device::Fault open(device::Link& link) = 0;
  // Hands a request to the transport of a posted link: `bytes` bytes from `data` on, which lies in the link's mirror,
  // then the counter. Waits while the transport has no room. A fault other than kNone: the peer cannot be told.
  virtual device::Fault post(const device::Work& work, const device::Link& link, const device::Post& post) = 0;
  // Lets the transports of posted links move data, that of this peer first. True if something has moved.
  virtual bool progress(int peer) = 0;
  // How often in a row progress() is called in vain before keepWaiting() is.
  virtual int looks() const = 0;
  // Copies from ordinary memory of the peer, by its address there. False: it could not be read; the owner knows why.
  // REQUIRES: work.sharing.readsPeers
  virtual bool read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) = 0;
  // Copies into ordinary memory of the peer; false as for read(). REQUIRES: the peer has given the address for that, in
  // this operation
  virtual bool write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) = 0;
  // Copies out of and into a peer's list, from the logical address `place` on; otherwise as read() and write().
  virtual bool readList(const device::PeerSegments& list, void* to, const unsigned char* place,
                        std::uint64_t bytes) = 0;
  virtual bool writeList(const device::PeerSegments& list, const unsigned char* place, const void* from,
                         std::uint64_t bytes) = 0;
  // The peer's list, if all of its segments lie in windows: with the addresses at which this process sees them. It
  // stays where it is for the operation. nullptr: they do not, or the list could not be read.
  virtual const device::Segments* loadableList(const device::PeerSegments& list) = 0;
};

// A user's reduction.
struct UserReduction {
  koloRedFunction_t function = nullptr;
  void* context = nullptr;
  koloDataType_t datatype = koloInt8;
};

struct Context {
  LinkOwner* owner = nullptr;
  Polling polling;
  bool posts = false;  // some links are posted: what is waited for arrives while the owner makes progress
  koloDataType_t datatype = koloInt8;
  const UserReduction* user = nullptr;  // with ReduceOp::kUser
  ReduceKernel kernel = nullptr;        // with any other, what the host thread reduces with
  device::Course* course = nullptr;     // where the host thread says how the data went; null: it does not
};

// Runs one operation to its end on the calling thread's behalf; work.channel.fault tells how it went. Two of them
// exist: hostExecutor here, and the emulated block in the tests.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void run(const device::Work& work, const Context& context) = 0;
};

// The calling thread is the team.
Executor& hostExecutor();

}  // namespace kolo::executor
