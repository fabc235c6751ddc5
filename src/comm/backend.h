// Where the buffers of a communicator lie, and who carries out its operations: a host thread that waits, or kernels on
// a GPU. A communicator is made with one backend, and nothing else tests which of the two it is.
//
// Thread safety: under the communicator's turn, but for stop(), check(), and the functions that examine arguments,
// which any thread may call.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/operation.h"
#include "comm/parts.h"
#include "comm/sent_arrays.h"

namespace kolo::comm {

class Backend {
 public:
  virtual ~Backend() = default;

  // Whether a call waits until its operation is complete, and this is a WaitingBackend; else a call enqueues its
  // operation in a stream of the device.
  virtual bool waits() const = 0;

  // ---- operations

  // One collective. koloInProgress: it might have to wait, which the calling thread may not (base/caller.h), and
  // nothing was done. stream: of the device, where calls do not wait.
  virtual Status run(const Operation& operation, void* stream) = 0;
  // What a group has for the communicator: messages, which progress beside the collectives, and these in their order.
  virtual Status runGroup(std::span<const Message> messages, std::span<const Operation> operations, void* stream) = 0;
  // Waits for the headers that other ranks still owe, the last check of operations in which this rank only gave; or for
  // what was enqueued.
  virtual Status settle() = 0;
  // Whether settle() would not have to wait for other ranks now.
  virtual bool settlesAtOnce() = 0;

  // ---- arguments

  // Whether it is in doubt where buffers lie.
  virtual bool checksPlaces() const = 0;
  virtual Status checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const = 0;
  virtual Status checkStream(void* stream) const = 0;
  virtual Status checkMessage(const Message& message) const = 0;

  // ---- windows

  // Collective.
  virtual Result<Window*> addWindow(void* buffer, std::size_t bytes) = 0;
  virtual Result<Window*> addMappedWindow(void* const* parts, const std::size_t* bytes) = 0;
  // Until nothing that was enqueued uses a window any more.
  virtual void drain() = 0;
  // Takes a window over that the communicator has no more.
  virtual void release(std::shared_ptr<const void> used) = 0;

  // ---- failure and end

  // Any thread: the communicator has failed; what runs must end.
  virtual void stop() = 0;
  // Any thread: looks whether the device has given up on an operation; the communicator fails if so.
  virtual void check() = 0;
  // Tells the peers that this rank will enqueue nothing more.
  virtual void leave() = 0;
  // Ends threads of the backend's own. failed: what was sent need not arrive.
  virtual void close(bool failed) = 0;

  // The transports in use: "shm", "p2p+tcp", or "self" with one rank.
  virtual std::string transportNames() const = 0;
  // The device's rank, for GpuRank::Visit; null on the host.
  virtual const GpuRank* device() const { return nullptr; }
  // The descriptions of arrays, where messages do not carry them; null on the host. Any thread.
  virtual SentArrays* sentArrays() { return nullptr; }
  // Whether communicators that are split from this one may use its links and its arena.
  virtual bool sharesLinks() const = 0;
};

// One whose calls wait: it can run a repeated operation without preparing it.
class WaitingBackend : public Backend {
 public:
  // REQUIRES: waits().
  static WaitingBackend& of(Backend& backend) { return static_cast<WaitingBackend&>(backend); }

  bool waits() const final { return true; }
  // The operation that the communicator recalled last. REQUIRES: nothing ran since.
  virtual Status runAgain() = 0;
};

}  // namespace kolo::comm
