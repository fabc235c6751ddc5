// One queue pair: a way from a port of this rank to a port of a peer, and what is under way by it.
//
// Thread safety: one thread at a time, but for close().
// Invariants: the requests under way stand in the order in which they were posted, which is the one in which the peer sees them. At most
// depth() work requests are under way, and the completion queue has room for a completion of each, so neither overflows.
#pragma once

#include <atomic>
#include <deque>
#include <memory>

#include "region.h"

namespace kolo::ib {

// Of one link.
struct Load {
  std::uint64_t unfinished = 0;  // requests whose bytes may still be read
  std::uint64_t queued = 0;      // of them, those that no NIC has yet
};

// A put that was accepted, or a part of one.
struct Request {
  Load* load = nullptr;             // null: nobody counts it
  const unsigned char* from = nullptr;
  std::uint64_t bytes = 0;
  const Region* region = nullptr;   // in which `from` lies; null: the bytes are few, and go with the request itself
  bool ownsRegion = false;          // it was registered for this request
  bool hasSignal = false;
  std::uint8_t rail = 0;
  std::uint16_t slots = 0;          // work requests that it takes
  std::uint64_t sequence = 0;       // of its last work request on the lane
  std::uint64_t signal = 0;
  Target data{};                    // where the bytes go: address and keys
  Target word{};                    // where the signal goes
};

class Lane {
 public:
  Lane(Nics& nics, Port& port) : nics_(nics), port_(port) {}
  ~Lane();

  // A queue pair that accepts what the peer sends once connect() is called.
  int open(const Why& why);
  int connect(const PairAddress& peer, const PortAddress& peerPort, const Settings& settings, const Why& why);
  PairAddress address() const { return {pair_->qp_num, sequence_, 0, 0, {}}; }
  Port& port() const { return port_; }
  std::uint8_t theirNic() const { return theirNic_; }

  // Whether the bytes fit into the request itself.
  bool fitsInline(std::uint64_t bytes) const { return bytes <= inline_; }
  // Whether there is room for the request now. A lane always has some for a marker.
  bool hasRoom(const Request& request) const { return used_ + slotsOf(request) < depth_; }
  // Hands it to the NIC: one doorbell. False: the NIC refused, and the lane is of no use any more. REQUIRES: hasRoom().
  bool post(Request request);

  struct Polled {
    bool hasMoved = false;
    ibv_wc_status status = IBV_WC_SUCCESS;  // else: the lane is of no use any more
  };
  // Takes what has been completed, and calls finish(request) for each.
  template <class Finish>
  Polled poll(Finish finish);
  // Has completions told of what is under way, if none will be; to the word where peers are sent markers.
  void wantCompletion(const Target& marker);

  bool isIdle() const { return underWay_.empty(); }
  // All that is under way, taken out.
  std::deque<Request> takeUnderWay();

  // Nothing is sent or accepted any more, from the return on. From any thread.
  void close();

  bool isOpen = true;     // requests may be posted; the device's thread
  bool isMoved = false;   // its rails go by others
  std::atomic<bool> isClosedThere{false};   // the peer has said so [closed]
  std::atomic<bool> isClosingSaid{false};   // and has been told

 private:
  std::uint32_t slotsOf(const Request& request) const;
  ibv_send_wr* add(std::uint64_t to, std::uint32_t key, const void* from, std::uint64_t bytes, std::uint32_t localKey, bool isInline);

  Nics& nics_;
  Port& port_;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint32_t sequence_ = 0;    // of the first packet
  std::uint32_t inline_ = 0, depth_ = 0, used_ = 0;
  std::uint8_t theirNic_ = 0;
  std::uint64_t posted_ = 0;
  std::uint32_t signaled_ = 0;    // work requests under way whose completion will be told
  std::uint32_t silent_ = 0;      // work requests since the last of those
  std::uint32_t quietPolls_ = 0;  // since something was posted
  std::deque<Request> underWay_;
  std::vector<ibv_send_wr> chain_;
  std::vector<ibv_sge> parts_;
};

template <class Finish>
Lane::Polled Lane::poll(Finish finish) {
  constexpr int kMost = 16;
  ibv_wc completions[kMost];
  Polled result;
  const int count = nics_.verbs().pollCq(queue_, kMost, completions);
  if (count < 0) return {false, IBV_WC_GENERAL_ERR};
  for (int i = 0; i < count; ++i) {
    result.hasMoved = true;
    result.status = completions[i].status;
    if (result.status != IBV_WC_SUCCESS) break;
    --signaled_;
    while (!underWay_.empty() && underWay_.front().sequence <= completions[i].wr_id) {
      used_ -= underWay_.front().slots;
      finish(underWay_.front());
      underWay_.pop_front();
    }
  }
  return result;
}

}  // namespace kolo::ib
