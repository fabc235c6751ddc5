// One queue pair: a way from a port of this rank to a port of a peer, and what is under way by it.
//
// A request goes as a record of a packet (packets.h) if it is short; else its bytes are written straight to their
// place, and a packet has the signal, if there is one. Requests that are handed over together share packets.
//
// Thread safety: one thread at a time, but for close().
// Invariants: the requests under way stand in the order in which they were posted, which is the one in which the peer
// sees them. At most depth_ work requests are under way, and the completion queue has room for a completion of each and
// of each packet that arrives, so neither overflows. One of them is kept for words. There is room for a marker when it
// is wanted: what is under way then was posted since the last request that told of its completion, which is a quarter
// of the queue at most.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "../common/ring_queue.h"
#include "packets.h"
#include "region.h"

namespace kolo::ib {

// Of one link.
struct Load {
  std::uint64_t unfinished = 0;  // requests whose bytes may still be read
  std::uint64_t queued = 0;      // of them, those that no NIC has yet, and that are not for later
};

// A put that was accepted, or a part of one.
struct Request {
  Load* load = nullptr;  // null: nobody counts it
  const unsigned char* from = nullptr;
  std::uint64_t bytes = 0;
  const Region* region = nullptr;  // in which `from` lies; null: the bytes are few, and go with the request itself
  bool ownsRegion = false;         // it was registered for this request
  bool isOnce =
      false;  // the bytes are never repeated: what they are written to may be in use again before that is known here
  bool isWritten = false;  // the bytes are written straight to their place, however few they are
  bool hasSignal = false;
  bool isWord =
      false;  // the signal is written, which needs no credit: a word of the transport's own, or in a GPU's memory
  bool mayWait = false;     // for others, to go with them
  bool isForLater = false;  // not among those queued
  std::uint8_t rail = 0;
  std::uint16_t slots = 0;     // work requests that it takes
  std::uint64_t sequence = 0;  // of its last work request on the lane
  std::uint64_t signal = 0;
  Target data{};  // where the bytes go: address and keys
  Target word{};  // where the signal goes

  // Whether the bytes go in a packet.
  bool isShort() const { return bytes <= kShortBytes && !isWritten && (region == nullptr || !region->isOfDevice); }
};

class Lane {
 public:
  Lane(Nics& nics, Port& port) : nics_(nics), port_(port), packets_(nics.verbs()) {}
  ~Lane();

  // A queue pair that accepts what the peer sends once connect() is called.
  int open(const Why& why);
  int connect(const PairAddress& peer, const PortAddress& peerPort, const Settings& settings, const Why& why);
  PairAddress address() const { return {pair_->qp_num, sequence_, 0, 0, static_cast<std::uint16_t>(packets_.room())}; }
  // The words in which both sides count the packets that were taken, of this lane alone, and what is added to the
  // counts.
  void exchangeCredit(const std::uint64_t* here, std::uint64_t nonceHere, const Target& there,
                      std::uint64_t nonceThere);
  Port& port() const { return port_; }

  // Whether the bytes fit into the request itself.
  bool fitsInline(std::uint64_t bytes) const { return bytes <= inline_; }
  // Adds the request to what send() will hand over. False: there is no room now, or no credit, and nothing is changed.
  bool add(const Request& request);
  // Hands over what was added: one doorbell. False: the NIC refused, and the lane is of no use any more.
  bool send();
  // Whether there is room for a word of the transport's own.
  bool hasRoomForWord() const { return used_ < depth_; }
  // Writes it; nobody counts it. Returns as send(). REQUIRES: hasRoomForWord().
  bool sendWord(const Target& word, std::uint64_t value);

  struct Polled {
    bool hasMoved = false;
    ibv_wc_status status = IBV_WC_SUCCESS;  // else: the lane is of no use any more
  };
  // Takes what has been completed, and calls finish(request) for each; and the packets that have come.
  template <class Finish>
  Polled poll(Finish finish);
  // Has completions told of what is under way, if none will be; to the word where peers are sent markers.
  void wantCompletion(const Target& marker);

  bool isIdle() const { return underWay_.empty() && !owesCredit(); }
  // Whether a request is under way that may not be repeated by another lane.
  bool carriesOnce() const {
    for (std::size_t i = 0; i < underWay_.size(); ++i) {
      if (underWay_[i].isOnce) return true;
    }
    return false;
  }
  // All that is under way, taken out.
  std::vector<Request> takeUnderWay();

  // Packets that have come, to be carried out in order.
  Packets& packets() { return packets_; }
  // Makes buffers of packets ready again, and tells the peer, where it is time for that. Returns as send().
  bool giveBack();

  // Nothing is sent or accepted any more, from the return on. number: which of the way's lanes this is to be closed,
  // from 1 on; counts the first time. From any thread.
  void close(std::uint32_t number);
  // That number; 0: it has not been called [closing].
  std::uint32_t closing() const { return closing_.load(std::memory_order_acquire); }
  bool isClosing() const { return closing() != 0; }

  bool isOpen = true;                      // requests may be posted; the device's thread
  bool isMoved = false;                    // its rails go by others
  std::atomic<bool> isClosedThere{false};  // the peer has said so [closed]
  std::atomic<bool> isClosingSaid{false};  // and has been told

 private:
  // A work request that was added, and is not yet handed over.
  struct Posting {
    ibv_send_wr request;
    ibv_sge part;
    std::uint64_t word;  // what is written, if `part` has no address: that of the word is known when no more are added
  };
  Posting& addPosting(ibv_wr_opcode opcode);
  // region: in which `from` lies; null: the bytes go inline.
  void addWrite(const Target& to, std::uint64_t offset, const void* from, std::uint64_t bytes, const Region* region);
  void addWord(const Target& to, std::uint64_t value);
  void addRecord(const Request& request);
  bool joinsPacket(std::uint32_t recordBytes) const {
    return packet_ != nullptr && packetBytes_ + recordBytes <= kPacketBytes;
  }
  void closePacket() { packet_ = nullptr; }
  bool owesCredit() const { return toldThere_ != packets_.ready() && creditThere_.address != 0 && !isClosing(); }

  Nics& nics_;
  Port& port_;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  std::uint32_t sequence_ = 0;  // of the first packet
  std::uint32_t inline_ = 0, depth_ = 0, used_ = 0;
  std::uint32_t theirRoom_ = 0;  // packets
  std::uint8_t theirNic_ = 0;
  std::uint64_t posted_ = 0;
  std::uint32_t signaled_ = 0;    // work requests under way whose completion will be told
  std::uint32_t silent_ = 0;      // work requests since the last of those
  std::uint32_t quietPolls_ = 0;  // since something was posted
  RingQueue<Request> underWay_;
  std::vector<Posting> chain_;
  unsigned char* packet_ = nullptr;  // the last of those, if it is a packet
  std::uint32_t packetBytes_ = 0;
  Packets packets_;
  Target creditThere_{};
  std::uint64_t nonceThere_ = 0, toldThere_ = 0;
  std::atomic<std::uint32_t> closing_{0};
};

template <class Finish>
Lane::Polled Lane::poll(Finish finish) {
  constexpr int kMost = 16;
  ibv_wc completions[kMost];
  Polled result;
  for (int count = kMost; count == kMost;) {
    count = nics_.verbs().pollCq(queue_, kMost, completions);
    if (count < 0) return {false, IBV_WC_GENERAL_ERR};
    for (int i = 0; i < count; ++i) {
      result.hasMoved = true;
      const ibv_wc& completion = completions[i];
      const bool isGood = completion.status == IBV_WC_SUCCESS;
      if ((completion.wr_id & Packets::kReceive) != 0) {
        // What else takes a buffer (a write with immediate data) comes from no peer that speaks this protocol.
        if (isGood)
          packets_.arrive(static_cast<std::uint32_t>(completion.wr_id),
                          completion.opcode == IBV_WC_RECV ? completion.byte_len : kNoPacket);
        else packets_.comeBackEmpty();
        // What was under way ends with an error of its own, which says more.
        if (!isGood && underWay_.empty() && result.status == IBV_WC_SUCCESS) result.status = completion.status;
        continue;
      }
      // After the first error the others are only flushed.
      if (result.status == IBV_WC_SUCCESS) result.status = completion.status;
      if (!isGood) continue;
      --signaled_;
      while (!underWay_.empty() && underWay_.front().sequence <= completion.wr_id) {
        used_ -= underWay_.front().slots;
        finish(underWay_.front());
        underWay_.popFront();
      }
    }
  }
  return result;
}

}  // namespace kolo::ib
