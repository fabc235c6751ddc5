// The sending half of a rail: a bounded queue of requests, and as much of it as the kernel takes in one call.
//
// Thread safety: one thread at a time.
// Invariants: what stands in the queue has not been taken by the kernel whole. Frames are numbered when they are first offered to
// the kernel, so that those which never were can be taken back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "frame.h"

namespace kolo::tcp {

// Of one link.
struct Load {
  std::uint64_t unfinished = 0;  // requests whose bytes may still be read
  std::uint64_t queued = 0;      // of them, those that the kernel has not taken whole
};

class Sender {
 public:
  static constexpr std::size_t kMostQueued = 256;

  enum class Outcome { kAccepted, kFull, kBroken };
  // frame: all but its number and checksum. The payload, frame.bytes long, is read until load->unfinished has been lowered again.
  Outcome put(int fd, const Frame& frame, const void* payload, Load* load);
  // True if something was taken.
  bool flush(int fd);
  bool isEmpty() const { return queue_.empty(); }
  // An errno; 0: it works.
  int broken() const { return broken_; }

  // Of a link that is closed: what is queued is copied, and sent nevertheless, up to kMostKept bytes; from there on it is forgotten, but for
  // what the kernel has begun.
  static constexpr std::uint64_t kMostKept = std::uint64_t{1} << 20;
  void release(Load* load);
  // Everything is over.
  void abandon();

 private:
  struct Request {
    Frame frame;
    const unsigned char* payload;
    Load* load;            // null: nobody counts
    std::uint64_t sent;    // bytes of header and payload
    bool isNumbered;
    std::unique_ptr<unsigned char[]> copy;
  };

  void number(Request& request);
  void consume(std::uint64_t bytes);

  std::deque<Request> queue_;
  std::uint32_t next_ = 0;  // number of the next frame
  int broken_ = 0;
};

}  // namespace kolo::tcp
