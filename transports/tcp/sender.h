// The sending half of a rail: a bounded queue of requests, and as much of it as the kernel takes in one call. What is
// to be encrypted passes a buffer, some requests at a time.
//
// Thread safety: one thread at a time.
// Invariants: what stands in the queue has not been taken by the kernel whole; what stands in `lent` has, but may still
// be read by it, for it was sent without a copy. Frames are numbered when they are first offered to the kernel, so that
// those which never were can be taken back.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "seal.h"

namespace kolo::tcp {

// Of one link.
struct Load {
  std::uint64_t unfinished = 0;  // requests whose bytes may still be read
  std::uint64_t queued = 0;      // of them, those that the kernel has not taken whole, and that are not for later
};

class Sender {
 public:
  static constexpr std::size_t kMostQueued = 256;
  static constexpr std::uint64_t kNever = UINT64_MAX;

  explicit Sender(const Direction& direction);

  // Payloads of at least so many bytes are lent to the kernel instead of copied (MSG_ZEROCOPY), until it says that it
  // copied them nevertheless. REQUIRES: SO_ZEROCOPY is set on the socket.
  void lendFrom(std::uint64_t bytes) { lendFrom_ = bytes; }

  enum class Outcome { kAccepted, kFull, kBroken };
  // frame: all but its tag. The payload, frame.bytes long, is read until load->unfinished has been
  // lowered again. Nothing is offered to the kernel before flush().
  Outcome put(const Frame& frame, const void* payload, Load* load, bool isForLater = false);
  // True if something was taken.
  bool flush(int fd);
  bool isEmpty() const { return queue_.empty(); }
  std::size_t size() const { return queue_.size(); }
  // An errno; 0: it works.
  int broken() const { return broken_; }

  // What the kernel has given back. True if something.
  bool reclaim(int fd);
  bool hasLent() const { return lentCalls_ > 0; }
  bool lends() const { return lendFrom_ != kNever; }

  // Of a link that is closed: what is queued is copied, and sent nevertheless, up to kMostKept bytes; from there on it
  // is forgotten, but for what the kernel has begun.
  static constexpr std::uint64_t kMostKept = std::uint64_t{1} << 20;
  void release(Load* load);
  // Everything is over.
  void abandon();

 private:
  // Calls by which a payload was lent: the kernel counts them, from 0 on.
  struct Lending {
    std::uint32_t first = 0, calls = 0;
    std::uint32_t open = 0;  // of them, those whose bytes are not given back yet
  };
  struct Request {
    Frame frame;
    const unsigned char* payload;
    Load* load;          // null: nobody counts
    bool isForLater;     // not among those queued
    std::uint64_t sent;  // bytes of header and payload; encrypted: in the buffer
    bool isNumbered;
    std::unique_ptr<unsigned char[]> copy;
    Lending lending;
    std::uint64_t left() const { return sizeof frame + frame.bytes - sent; }
  };
  struct Lent {
    Load* load;
    std::unique_ptr<unsigned char[]> copy;
    Lending lending;
  };
  static constexpr std::size_t kMostParts = 64;
  struct Offer {
    iovec parts[kMostParts];
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    int flags = 0;
    void add(const void* from, std::uint64_t some);
  };

  bool isLendable(const Request& request) const { return request.frame.bytes >= lendFrom_ && request.frame.bytes > 0; }
  // Of the queue, what is encrypted and not taken by the kernel yet. Its requests stay in the queue until it is.
  struct Sealed {
    std::unique_ptr<unsigned char[]> bytes;
    std::size_t begin = 0, end = 0;
  };

  void number(Request& request);
  void gather(Offer& offer);
  void gatherSealed(Offer& offer);
  bool sealPiece(Request& request);
  std::int64_t offerTo(int fd, Offer& offer);
  void consume(std::uint64_t bytes);
  void consumeSealed(std::uint64_t bytes);
  void finish(Request& request);
  void giveBack(std::uint32_t call);

  std::deque<Request> queue_;
  std::deque<Lent> lent_;
  std::uint64_t lendFrom_ = kNever;
  std::uint32_t lendings_ = 0;   // calls so far
  std::uint32_t lentCalls_ = 0;  // of them, those not given back
  std::uint64_t next_ = 0;       // number of the next frame
  Seal seal_;
  Sealed sealed_;
  int broken_ = 0;
};

}  // namespace kolo::tcp
