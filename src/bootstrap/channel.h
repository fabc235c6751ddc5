// An authenticated, encrypted connection in the reactor: whole frames in and out.
//
// Frames wait in plain form and are sealed only when the socket takes them, so a frame that goes to many members exists
// once. The queue is bounded: a member that does not read while more than kMaxQueuedBytes pile up for it is given up.
//
// Thread safety: reactor thread only.
// Invariants: after onClosed, or close(), neither callback runs again.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "bootstrap/reactor.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

using SharedFrame = std::shared_ptr<const std::string>;
inline SharedFrame shared(Encoder& frame) { return std::make_shared<const std::string>(frame.take()); }
inline SharedFrame shared(Encoder&& frame) { return shared(frame); }
// A frame that is not known yet (null), and has its turn among others already.
using LaterFrame = std::shared_ptr<SharedFrame>;

constexpr std::size_t kMaxQueuedBytes = std::size_t{1} << 30;

class Channel final : public Source, public std::enable_shared_from_this<Channel> {
 public:
  struct Callbacks {
    // False: the frame is malformed, the connection is to be given up.
    std::function<bool(std::string_view frame)> onFrame;
    // The connection is gone for good; why, in words. Not after close(). It is called again if it finds no memory.
    std::function<void(std::string_view why)> onClosed;
  };

  Channel(Reactor& reactor, Socket socket, const Session& session)
      : reactor_(reactor), socket_(std::move(socket)), session_(session) {}

  Status start(Callbacks callbacks);
  void send(SharedFrame frame);
  void send(std::string frame) { send(std::make_shared<const std::string>(std::move(frame))); }
  // What is sent after it waits until the frame is known, which resume() says.
  void sendLater(LaterFrame frame);
  // Before frames that are not known yet, and what waits behind them.
  void sendAhead(SharedFrame frame);
  void resume(const LaterFrame& frame);
  // Gives the kernel now what it takes of what is queued; neither callback runs. What it has taken arrives even if this
  // process ends at once, and the other end reads it before it finds the end; but of TCP, what is not in the other
  // end's kernel yet is lost where either end has sent what the other has not read.
  void push();
  // All that was sent is in the other end's kernel, or the connection is closed. Within the host, where there is one
  // kernel, also false until the other end has read it.
  bool hasArrived() const;
  // Bytes that the kernel has taken.
  std::uint64_t taken() const { return taken_; }
  // The connection has ended because the other host did not answer.
  bool isSilent() const { return isSilent_; }
  // Closes now; what is queued is dropped.
  void close();
  // Closes when all that is queued is with the kernel. Input is ignored from now on.
  void closeWhenSent();

  // Bytes that the channels of this process have sent so far, by kind of frame.
  static std::array<std::uint64_t, kFrameKinds>& sent();

  void onReadable() override;
  void onWritable() override;
  bool hasOutput() const override { return !queue_.empty() || sealedSent_ < sealed_.size(); }
  void giveUp() override { fail("this process has no memory for what is sent over it"); }

 private:
  // One of the two.
  struct Queued {
    SharedFrame frame;
    LaterFrame later;
    const SharedFrame& known() const { return later != nullptr ? *later : frame; }
  };

  void parse();
  void flush();
  void hasGrown(std::size_t bytes);
  void fail(std::string_view why);

  Reactor& reactor_;
  Socket socket_;
  Session session_;
  Callbacks callbacks_;
  std::string input_;  // at most one frame and one read
  std::deque<Queued> queue_;
  std::size_t queuedBytes_ = 0;
  std::string sealed_;  // ciphertext on its way to the kernel
  std::size_t sealedSent_ = 0;
  std::uint64_t taken_ = 0;
  bool wantsWritable_ = false;
  bool closing_ = false, isSilent_ = false;
};

}  // namespace kolo::bootstrap
