// The thread that carries out what a GPU's blocks ask of posted links: it empties their rings (device/post_ring.h),
// hands the requests to the transports, and lets these move data in both directions.
//
// It is awake while a launch is under way on some channel, while requests are left, and always once a graph may launch
// at any time; it looks, then yields, then sleeps in the transport for moments. Otherwise it sleeps until it is told of
// a launch. It calls nothing of the driver, whose locks others may hold while they wait for kernels, and these for the
// proxy.
//
// A link that is lost counts as lost after a moment, in which the control plane may say that its peer has died, or the
// peer's goodbye may arrive. Then the kernels that wait for the peer are told (device::kLinkLost); and if there was a
// request for it, that is a fault of its operation, found by fault() like those of kernels.
//
// Thread safety: expect(), finish() and end() from one thread at a time; stop(), fault() and lossOf() from any. The
// Peers are the proxy's alone from its making to its end, but for what never changes: mapped arenas, names.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "device/post_ring.h"
#include "device/work.h"
#include "gpu/departures.h"
#include "links/peers.h"

namespace kolo::gpu {

class Proxy {
 public:
  struct Setup {
    links::Peers* peers = nullptr;        // outlives the proxy
    std::span<device::PostRing> rings;    // by channel; outlive the proxy
    Departures* departures = nullptr;     // outlives the proxy
    std::function<bool()> kernelsGaveUp;  // cheap, and calls nothing of the driver
    std::function<void()>
        onFault;  // called by the proxy's thread, again and again, when kernels gave up or there is a fault()
  };

  explicit Proxy(Setup setup);
  ~Proxy();  // ends it
  Proxy(const Proxy&) = delete;

  // Before a launch of so many channels; again: it may be repeated at any time.
  void expect(unsigned channels, bool again);
  // When all launches have ended: returns when all requests have been carried out, as far as that needs help, and the
  // peers have been told that this rank goes; or after timeoutMs. The proxy has ended then.
  void finish(int timeoutMs);
  // Ends soon, whatever is left.
  void stop();
  // Has ended. Not from its own thread.
  void end();

  // The request that could not be carried out, as a fault of its operation.
  std::optional<device::Fault> fault() const;
  // Why the link to a peer was lost.
  Status lossOf(int peer) const;

 private:
  struct Loss {
    Status why;
    std::int64_t sinceNs = 0;
    std::optional<device::Fault> request;  // the first that was for the peer
    bool isSettled = false;                // it counts, or the peer had gone
  };

  void work();
  bool takeRequests();
  bool takeFrom(std::size_t channel);
  bool handOn(const device::PostRequest& request);
  void lose(int peer, Status why);
  void refuse(const device::PostRequest& request);
  bool isPosted(int peer) const { return (*setup_.peers)[peer].isPosted(); }
  void settleLosses();
  void lookForGoodbye(int peer);
  void look();
  bool isExpected() const;
  bool isEmpty();
  bool sayGoodbye();
  void rest();

  const Setup setup_;
  std::vector<std::uint64_t> taken_;     // by channel; the thread's own, as what follows
  std::vector<std::uint32_t> goodbyes_;  // said, by peer
  std::vector<std::int64_t> goneNs_;     // by peer: when its goodbye was read; 0: not yet
  std::uint64_t idleRounds_ = 0;
  std::int64_t lookedNs_ = 0;

  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::uint64_t> given_;  // launches, by channel
  std::uint64_t news_ = 0;            // counts what may wake the proxy
  bool again_ = false, leaving_ = false, ended_ = false;
  std::map<int, Loss> losses_;
  std::optional<device::Fault> fault_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kolo::gpu
