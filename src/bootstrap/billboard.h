// What a hub tells many ranks of its host at once: it lies in memory that they all read, and is not sent to each.
//
// The memory is a file without a name (memfd). A rank opens it by the hub's process (/proc/PID/fd). The hub writes a
// frame there, and tells over the connections where it is. A rank says when it has read it; when all have, or are gone,
// the room is used again. A frame goes over the connections alone where there is no room, because some rank is slow,
// and to a rank that may not open the file, or has no descriptor for it.
//
// Who may open the file may also read and write it. So each frame is sealed by a key of its own, which goes over the
// connections with its place.
//
// Order: the hub writes, and then sends where; a rank reads behind that. A rank reads, and then says so; the hub writes
// there again behind that. Both go through the kernel, by the connection [billboard].
//
// Thread safety: reactor thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/channel.h"

namespace kolo::bootstrap {

class Billboard {
 public:
  // Of a rank: the number of the last frame that it was told of, and of the last one that it has read.
  struct Reader {
    std::uint64_t told = 0, read = 0;
  };
  using ReaderPtr = std::shared_ptr<Reader>;
  static constexpr std::size_t kNonceBytes = 32, kKeyBytes = 32;

  // For a hub of so many ranks. Null: there are too few, or the system gives no such file.
  static std::unique_ptr<Billboard> make(std::size_t ranks);
  // By which a rank opens it.
  SharedFrame invitation() const;
  // Reads as long as the pointer lives.
  ReaderPtr addReader();
  // What the readers are told in place of the frame; those that are null are none. Null: it has to be sent.
  SharedFrame put(const SharedFrame& frame, const std::vector<ReaderPtr>& readers);
  std::uint64_t written() const { return written_; }

 private:
  struct Entry {
    std::uint64_t number, begin;
  };
  Billboard(Socket file, std::uint64_t room) : file_(std::move(file)), room_(room) {}
  void dropRead();

  Socket file_;
  std::string nonce_;         // at the file's begin
  const std::uint64_t room_;  // bytes behind that
  // Positions count on and on; the remainder by the room is the place.
  std::uint64_t end_ = 0, last_ = 0, written_ = 0;
  std::deque<Entry> entries_;  // that are not read by all, oldest first
  std::vector<std::weak_ptr<Reader>> readers_;
};

// A rank's view of a billboard.
class BillboardView {
 public:
  // What an invitation says. False: this process cannot read it.
  bool open(Decoder& invitation);
  // The frame of which the hub has told. False: it is not there.
  bool read(Decoder& place, std::uint64_t& number, std::string& frame) const;

 private:
  Socket file_;
};

}  // namespace kolo::bootstrap
