// Short requests go as packets: messages that the peer's NIC puts into the next buffer of a ring there, from which the
// peer's calls carry them out. A packet arrives whole, and behind all that was written by its queue pair before
// (InfiniBand Architecture, ordering rules: what is written is in place when a later message completes at its
// receiver); of the bytes of one write nobody promises any order. So what carries a signal is a packet, and a short
// request is one packet instead of two writes.
//
// A packet is records, one behind the other: where bytes go, the bytes, and the signal behind them.
//
// Credit. A packet that finds no buffer is an error, so no more are sent than the peer has buffers. It counts those
// that it has taken and made ready again, and writes that count, half a ring at a time, into a word of the sender's
// memory: a write needs no buffer, so it never waits for credit itself.
//
// Thread safety: one thread at a time.
// Invariants: sent - credited <= room of the peer. Of the ring's buffers, `ready` are the NIC's; the others have
// arrived and wait to be carried out, or have been and wait to be made ready.
#pragma once

#include <cstdint>
#include <vector>

#include "../common/ring_queue.h"
#include "nic.h"

namespace kolo::ib {

// The most that a request may have to go as a record.
inline constexpr std::uint64_t kShortBytes = 256;
inline constexpr std::uint32_t kPacketBytes = 512;
// Of a ring. A peer may send this many while the receiver is in no call: 32 headers, as far as it may run ahead; 32
// boards' entries; 16 message lines; and some chunks and credits. A smaller ring would make the sender wait.
inline constexpr std::uint32_t kMostPackets = 128;
inline constexpr std::uint32_t kNoPacket = UINT32_MAX;  // bytes of what has arrived and is none

struct Record {
  std::uint64_t to;    // where the bytes go, by the receiver's addresses
  std::uint64_t word;  // where the signal goes; 0: there is none
  std::uint64_t value;
  std::uint32_t key, wordKey;  // of the registrations in which they lie
  std::uint32_t bytes;         // behind this, up to a multiple of 8
  std::uint32_t unused;

  static constexpr std::uint32_t room(std::uint64_t bytes) {
    return static_cast<std::uint32_t>(sizeof(Record) + (bytes + 7) / 8 * 8);
  }
};
static_assert(sizeof(Record) == 40 && Record::room(kShortBytes) <= kPacketBytes);

class Packets {
 public:
  explicit Packets(const Verbs& verbs) : verbs_(verbs) {}
  ~Packets();
  Packets(const Packets&) = delete;
  Packets& operator=(const Packets&) = delete;

  // Memory for a ring of `room` buffers, at most kMostPackets, and for what is sent. 0, or an errno.
  int open(ibv_pd* domain, std::uint32_t room);
  std::uint32_t room() const { return room_; }
  std::uint32_t key() const { return region_->lkey; }

  // ---- sending

  // Where the peer writes how many it has taken, plus the nonce. From then on it may be sent what it has room for.
  void expectCredit(const std::uint64_t* word, std::uint64_t nonce, std::uint32_t room);
  bool hasCredit();
  // Room for one more; it stays as it is until the peer has taken it. REQUIRES: hasCredit().
  unsigned char* begin() { return outgoing(sent_++); }

  // ---- receiving

  // Gives the NIC the buffers that are free. 0, or an errno.
  int makeReady(ibv_qp* pair);
  bool isMakingReadyDue() const { return taken_ - ready_ >= (room_ + 1) / 2; }
  // A buffer has come back, with a packet or, if the queue pair has ended, without one.
  void arrive(std::uint32_t index, std::uint32_t bytes) { arrived_.pushBack({index, bytes}); }
  void comeBackEmpty() { ++empty_; }
  // All buffers have come back; of a queue pair that has ended: nothing more will arrive.
  bool isDrained() const { return given_ == taken_ + arrived_.size() + empty_; }

  struct Packet {
    const unsigned char* data;
    std::uint32_t bytes;
  };
  bool hasArrived() const { return !arrived_.empty(); }
  // The oldest that has not been taken. REQUIRES: hasArrived().
  Packet front() const { return {incoming(arrived_.front().index), arrived_.front().bytes}; }
  void pop();
  // How many were taken, of those whose buffers are ready again.
  std::uint64_t ready() const { return ready_; }

  // Names buffer `index` in completions.
  static constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;

 private:
  struct Arrival {
    std::uint32_t index, bytes;
  };
  unsigned char* incoming(std::uint64_t index) const { return memory_ + index * kPacketBytes; }
  unsigned char* outgoing(std::uint64_t number) const {
    return memory_ + (room_ + number % kMostPackets) * kPacketBytes;
  }

  const Verbs& verbs_;
  unsigned char* memory_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::uint32_t room_ = 0, theirRoom_ = 0;
  const std::uint64_t* credit_ = nullptr;
  std::uint64_t nonce_ = 0;
  std::uint64_t sent_ = 0, credited_ = 0;
  std::uint64_t given_ = 0;  // buffers that the NIC was given
  std::uint64_t taken_ = 0, ready_ = 0, empty_ = 0;
  RingQueue<Arrival> arrived_;
  std::vector<std::uint32_t> free_;  // buffers
};

}  // namespace kolo::ib
