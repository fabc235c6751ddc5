// What a hub tells many ranks of one host at once: it lies in memory that they all read, and is not sent to each.
//
// The memory is a file without a name (memfd), in the process of the hub for the ranks of its host, and in that of one
// rank, the keeper, for those of another host. A rank opens it by that process (/proc/PID/fd). The hub has the frame
// written there, and tells over the connections where it is. A rank says when it has read it; when all have, or are
// gone, the room is used again. A frame goes over the connections alone where there is no room, because some rank is
// slow, where the keeper does not answer soon, and to a rank that may not open the file, or has no descriptor for it.
//
// Who may open the file may also read and write it. So each frame is sealed by a key of its own, which goes over the
// connections with its place. A keeper is given the sealed frame, and its key when the others get it.
//
// Order: the hub writes, and then sends where; a rank reads behind that. A keeper writes, and then says so; the hub
// sends behind that where. What the hub sends a rank meanwhile waits behind it. A rank reads, and then says so; the hub
// writes there again behind that, and a keeper writes in the order in which it was asked. All goes through kernels, by
// the connections [billboard].
//
// Thread safety: reactor thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/channel.h"

namespace kolo::bootstrap {

// The memory, in the process that has it.
class BillboardFile {
 public:
  static constexpr std::size_t kNonceBytes = 32;

  // Null: the room is more than any billboard's, or the system gives no such file.
  static std::unique_ptr<BillboardFile> make(std::uint64_t room);
  // By which a rank opens it: this process's pid, the file's number here, what it begins with.
  std::string invitation() const;
  // At a place behind that begin. False: it is not there.
  bool write(std::string_view bytes, std::uint64_t at) const;
  // In the next place. The number counts.
  bool add(std::string_view bytes, std::uint64_t& number);

 private:
  BillboardFile(Socket file, std::uint64_t room) : file_(std::move(file)), room_(room) {}

  Socket file_;
  std::string nonce_;
  std::uint64_t room_;  // bytes behind that
  std::uint64_t end_ = 0, last_ = 0;
};

// A frame as it lies on billboards: sealed once, when the first one takes it.
struct Sheet {
  explicit Sheet(SharedFrame given) : frame(std::move(given)) {}
  void seal();
  SharedFrame frame, post;  // the latter is what all keepers are sent
  std::string key, sealed;
};

// What a hub knows of a billboard.
class Billboard : public std::enable_shared_from_this<Billboard> {
 public:
  // Of a rank: the number of the last frame that it was told of, and of the last one that it has read.
  struct Reader {
    std::shared_ptr<Channel> channel;
    std::uint64_t told = 0, read = 0;
  };
  using ReaderPtr = std::shared_ptr<Reader>;
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kWorthSharing = 1024;  // bytes of a frame

  // In this process, for a hub of so many ranks. Null: there are too few, or the system gives no such file.
  static std::shared_ptr<Billboard> make(std::size_t ranks);
  // Asks a rank to keep one. Null: there are too few ranks.
  static std::shared_ptr<Billboard> askFor(Reactor& reactor, std::size_t ranks, std::shared_ptr<Channel> keeper);
  Billboard(Reactor* reactor, std::uint64_t room, std::shared_ptr<Channel> keeper)
      : reactor_(reactor), keeper_(std::move(keeper)), room_(room) {}
  // What the keeper says of it. False: it cannot be.
  bool onKept(Decoder& decoder);
  // By which a rank opens it. Null: the keeper has not said.
  SharedFrame invitation() const;
  // What its file begins with.
  const std::string& nonce() const { return nonce_; }
  // Reads as long as the pointer lives.
  ReaderPtr addReader(std::shared_ptr<Channel> channel);
  // What the readers are told in place of the frame, at once or when the keeper has written it; those that are null are
  // none. Null: it has to be sent.
  LaterFrame put(Sheet& sheet, const std::vector<ReaderPtr>& readers);
  // The keeper has written the next frame, or cannot. False: it was not asked to.
  bool onPosted(Decoder& decoder);
  // What waits for the keeper goes over the connections.
  void hurry();
  // The keeper is gone.
  void close();
  std::uint64_t written() const { return written_; }

 private:
  struct Entry {
    std::uint64_t number, begin;
    bool isOnItsWay;  // to the keeper
  };
  // What the keeper was asked to write.
  struct Post {
    std::uint64_t number = 0;
    SharedFrame frame, place;
    LaterFrame told;  // null: the readers were sent the frame meanwhile
    std::vector<ReaderPtr> readers;
  };
  bool isOpen() const;
  void dropRead();
  void tell(Post& post, const SharedFrame& frame);
  std::uint64_t progress() const { return keeper_ == nullptr ? 0 : keeper_->taken() + last_ - posts_.size(); }
  void watchTime();

  Reactor* const reactor_;
  std::unique_ptr<BillboardFile> file_;  // in this process
  std::shared_ptr<Channel> keeper_;      // or else of the rank that has it; null: it is gone
  std::string invitation_, nonce_;
  const std::uint64_t room_;
  bool isBroken_ = false;  // the keeper could not write
  std::uint64_t end_ = 0, last_ = 0, written_ = 0;
  std::list<Entry> entries_;  // that are not read by all, oldest first
  std::list<Post> posts_;     // that the keeper has not answered, oldest first
  Reactor::TimerId timer_ = 0;
  std::uint64_t progress_ = 0;  // of the keeper, when that was set
  std::vector<std::weak_ptr<Reader>> readers_;
};

// A rank's view of a billboard.
class BillboardView {
 public:
  // What an invitation says. False: this process cannot read it.
  bool open(Decoder& invitation);
  const std::string& nonce() const { return nonce_; }
  // The frame of which the hub has told. False: it is not there.
  bool read(Decoder& place, std::uint64_t& number, std::string& frame) const;

 private:
  Socket file_;
  std::string nonce_;
};

}  // namespace kolo::bootstrap
