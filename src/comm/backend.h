// Where the buffers of a communicator lie, and who carries out its operations: a host thread that waits, or kernels on
// a GPU. A communicator is made with one backend, and nothing else tests which of the two it is (D17).
//
// Thread safety: a caller has the communicator's turn. Functions that say so are called without the turn, and take it
// themselves. Any thread may call stop(), check() and the functions that examine arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/handle_table.h"
#include "base/status.h"
#include "comm/array_description.h"
#include "comm/operation.h"
#include "comm/parts.h"
#include "comm/target.h"
#include "planner/network.h"

namespace kolo::comm {

class Communicator;

class Backend {
 public:
  virtual ~Backend() = default;

  // While it lives, all that its thread calls of backends on this device shares one switch to the device's context and
  // back. On the host it does nothing.
  class Visit {
   public:
    explicit Visit(const Backend& backend) : backend_(backend), before_(backend.enter()) {}
    ~Visit() { backend_.exit(before_); }
    Visit(const Visit&) = delete;

   private:
    const Backend& backend_;
    const void* const before_;
  };

  // Whether an operation waits for other ranks in the thread that runs it; else the thread only enqueues it in a stream
  // of the device, and may go on.
  virtual bool waits() const = 0;

  // ---- operations

  // One collective. koloInProgress: it might have to wait, which the calling thread may not (base/caller.h), and
  // nothing was done. stream: of the device, where calls do not wait.
  virtual Status run(const Operation& operation, void* stream) = 0;
  // The operation that Planning::recall() has found last. REQUIRES: nothing ran since.
  virtual Status runAgain() = 0;
  // What a group has for the communicator: messages, which progress beside the collectives, and these in their order.
  virtual Status runGroup(std::span<const Message> messages, std::span<const Operation> operations, void* stream) = 0;
  // Messages alone, without the turn; the calling thread may have it by its bias. On the host, messages need no turn:
  // no message waits for what other threads do. REQUIRES: the communicator is this backend's.
  virtual Status runMessages(Held<Communicator>& communicator, std::span<const Message> messages, void* stream) = 0;
  // One message of a call, which may be koloInProgress as run() may.
  virtual Status runMessage(Held<Communicator>& communicator, const Message& message, void* stream) {
    return runMessages(communicator, {&message, 1}, stream);
  }
  // Messages without the turn, at a place in it that Requests::takeStreamPlace() gave, which ends here.
  virtual Status runMessagesAt(std::uint64_t place, std::span<const Message> messages, void* stream) = 0;
  // Waits for the headers that other ranks still owe, the last check of operations in which this rank only gave; or for
  // what was enqueued.
  virtual Status settle() = 0;
  // Whether settle() would not have to wait for other ranks now.
  virtual bool settlesAtOnce() = 0;

  // ---- arrays whose shape travels with them, without the turn

  virtual Status sendArray(Held<Communicator>& communicator, const Target& target, const void* data,
                           const ArrayDescription& description, int peer) = 0;
  virtual Status receiveArray(Held<Communicator>& communicator, const Target& target, const Allocation& allocation,
                              int peer, koloRecvStatus_t* status) = 0;
  // Another rank's question about an array that this rank has sent. nullopt: it asks for something else. Any thread.
  virtual std::optional<std::string> answer(int, std::string_view) { return {}; }

  // ---- what ranks tell each other: values in host memory, wherever the buffers lie. Collective; the calls wait for
  // the other ranks. REQUIRES: the calling thread may wait.

  // The root's, on all ranks.
  virtual Status tell(int root, void* value, std::size_t bytes) = 0;
  // op: koloMax or koloBitOr.
  virtual Status reduceWords(std::span<std::uint64_t> words, koloRedOp_t op) = 0;

  // ---- arguments

  // Whether operations can be requests, as they can where calls wait.
  virtual Status checkRequest() const = 0;
  // Whether it is in doubt where buffers lie.
  virtual bool checksPlaces() const = 0;
  virtual Status checkPlace(const char* name, const void* buffer, std::uint64_t bytes) const = 0;
  // isOwn: the stream came from koloStreamCreate. The error koloInvalidHandle has no words, and the caller finds them,
  // where a stream of koloStreamCreate was expected and this is none.
  virtual Status checkStream(void* stream, bool isOwn) const = 0;
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

 protected:
  virtual const void* enter() const { return nullptr; }
  virtual void exit(const void*) const {}
};

// Of a communicator whose buffers lie in a GPU's memory. Collective. nics: as nearNics() says (links/hosts.h).
Result<std::unique_ptr<Backend>> makeGpuBackend(Communicator& owner, const std::vector<planner::Uplink>& uplinks,
                                                const std::string& nics);

}  // namespace kolo::comm
