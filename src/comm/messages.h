// Point to point: matching, and the protocol of device/message.h.
//
// Short messages travel in a line, middling ones in one slot, both without an answer; long ones ask first, and are then
// either copied by the receiver straight out of the sender's window or streamed through slots.
//
// Thread safety: under the communicator's turn. start(), progress(), goOn(), endOverdue() and beginAgain() need the
// links held (Traffic::hold()); beginAgain() is also called by the link monitor, without the turn. Functions
// that say nothing of links hold them themselves.
// Invariants
//  - Lines of a pair are read in order, so messages of a pair with one tag match in order.
//  - Eager messages and streams have slots of their own. An eager slot is emptied when its line is read, so an
//    unexpected message never blocks those behind it; streams flow only after the receiver has cleared them, in that
//    order.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/operation.h"
#include "comm/parts.h"
#include "comm/request.h"
#include "device/message.h"
#include "executor/context.h"

namespace kolo::comm {

class Aside;
class Requests;

// Messages up to this long go in one slot; longer ones in chunks, so that sender and receiver copy at the same time.
inline constexpr std::uint64_t kEagerBytes = 16384;
inline constexpr std::uint64_t kStreamChunkBytes = 32768;

class Messages final : public traffic::MessageEngine {
 public:
  // All of them outlive the messages.
  struct Setup {
    int rank = 0;
    const std::string& name;  // of the communicator
    int timeoutMs = 0;        // the communicator's
    // From how many bytes on a copy passes the caches by, and a message is read where it is.
    std::uint64_t streamingBytes = 0, singleCopyBytes = 0;
    const ArenaLayout& layout;
    Peers& peers;
    Windows& windows;
    const Boards& boards;
    Waiter& waiter;
    Traffic& traffic;
    Requests& requests;
    FailureState& failure;
    Conclusions& conclusions;
    Reasons& reasons;
  };
  explicit Messages(const Setup& setup);

  // Starts one send or receive, a part of the request, which it ends when it is done. isAlone: there is nothing else to
  // go together with.
  void start(const Message& message, Request& request, bool isAlone);
  // Moves whatever can be moved; never waits. True if anything did. Lines that nobody here waits for are read too only
  // if asked for: where they stand they cost nothing, but a peer whose lines are full waits.
  bool progress(bool readsAll);
  bool goOn() override;
  // Whether anything has still to be done: for a request, for a peer's, or for what a transport has not sent yet.
  bool needsCare() const;
  // The link to a peer has been replaced: says once more what opened the lane, if anything did, and clears anew what
  // had not arrived.
  device::Fault beginAgain(int peer) override;
  // Makes progress until the request is over. Returns before if untilNs has come, or if others want the turn that
  // `aside` stands for. An error: that of the communicator, which is then all requests' too.
  Status attend(Request& request, const Aside* aside, std::int64_t untilNs);
  // One look, without waiting, by a thread that none of the requests is for. True if anything moved. `state` is from
  // look to look.
  bool look(executor::WaitState& state);
  // Fails if the time of something is over that was started. Costs little if that was asked just before.
  void endOverdue();
  // Until all is done but receives for which no message has come, which end with koloAborted.
  Status settle();
  bool isIdle() const { return unfinished_ == 0 && unanswered_ == 0; }
  // Of a communicator that has failed, or is no longer used: ends everything that was started.
  void endAll(const Status& why);
  // After start() has thrown: ends the message's part of the request unless that is among what endAll() will end.
  void endLost(Request& request, const Status& why);

 private:
  // What a receiver offers for a message that it does not read where it is: memory to put it straight into, by a posted
  // link.
  struct Clearance {
    koloTransportKey key{};
    std::uint64_t number = 0;    // 0: there is none
    std::uint64_t reroutes = 0;  // of the link when it was given: good for that one alone
    bool endsByAnswer =
        false;  // the send ends with the receiver's word that all has arrived, not when it has been read
    bool isPut() const {
      const auto output = number != 0 ? device::Offer::kAddress : device::Offer::kNothing;
      return device::pathOf(false, device::Offer::kNothing, output) == device::Path::kPeerWrites;
    }
  };
  struct Send {
    const unsigned char* data;
    std::uint64_t bytes;
    int peer, tag;
    std::uint8_t datatype;
    Request* request;
    std::uint32_t id = 0;                // by which the receiver answers, and what has become of it:
    bool isOffered = false;              // it says where the receiver may take the data from
    std::optional<Clearance> clearedTo;  // the last answer that has come
    bool hasBeenPut = false;             // there
    std::uint64_t sent = 0;
  };
  struct Receive {
    unsigned char* data;
    std::uint64_t capacity;
    int peer, tag;  // as asked for; may be ANY
    std::uint8_t datatype;
    bool strict;
    koloRecvStatus_t* status;
    Request* request;
  };
  // A message whose line has been read before its receive was posted.
  struct Unexpected {
    int peer, tag;
    std::uint8_t datatype;
    std::uint64_t bytes;
    std::vector<unsigned char> data;  // inline and eager
    bool isRequest = false;
    std::uint32_t id = 0;
    device::WindowRef source;  // of a request: as its line says
  };
  // A long message that arrives in chunks, in the order in which it was cleared; or in its own memory, which is
  // registered meanwhile.
  struct Stream {
    unsigned char* data;
    std::uint64_t capacity, bytes;
    std::uint32_t id;  // of the sender's request
    Request* request;
    Status status;  // that the receive ends with: it may be too short
    std::uint64_t arrived = 0;
    Clearance clearance;
    std::unique_ptr<transport::Memory> registration;
  };
  // A request that has been cleared.
  struct Cleared {
    std::uint32_t id;
    std::uint64_t bytes;
    Clearance to;
    std::uint32_t rail = 0;  // the next to be used
  };
  struct Answer {
    device::MessageKind kind;
    std::uint32_t id;
    std::uint64_t bytes = 0;
    Clearance clearance;
  };
  // Slots of one kind: written to the peer, read from it.
  struct Flow {
    std::uint64_t written = 0, read = 0;
  };
  // What a pair of ranks has for its messages: the kind of its link, and memory at both ends.
  struct Ends {
    int peer = -1;
    bool isPosted = false;
    std::uint32_t rails = 1;
    std::uint64_t chunkBytes = 0;       // of a stream; both ends take it from the kind of link
    device::MessageLane* in = nullptr;  // in my memory
    const unsigned char* inEager = nullptr;
    const unsigned char* inStream = nullptr;
    device::MessageLane* out = nullptr;  // in the peer's
    device::Counter* asleep = nullptr;   // as device::Link has it
    unsigned char* outEager = nullptr;
    unsigned char* outStream = nullptr;
  };
  // And what is under way there.
  struct Pair : Ends {
    std::uint64_t linesWritten = 0, linesRead = 0;
    std::uint64_t linesCredited = 0;  // linesTaken, when it was last read: reading it costs a miss
    Flow eager, stream;
    std::uint32_t requests = 0, requestsRead = 0;
    // Lists, which take no memory while they are empty: there is a pair for each rank, and few of them exchange
    // messages.
    std::list<Send> sends;       // not yet on their way, in order
    std::vector<Send> asked;     // requests that wait for an answer
    std::list<Cleared> cleared;  // requests whose data goes next, in order
    std::list<Stream> arriving;
    std::list<Answer> answers;      // to be written
    std::uint64_t straight = 0;     // clearances given, with a key
    std::vector<Request*> leaving;  // of sends that have been put, whose data the transport may still read
  };

  bool progressPair(int peer, bool readsAll);
  bool writeAnswers(int peer);
  bool writeSends(int peer);
  bool writeChunks(int peer);
  bool readLines(int peer, bool readsAll);
  bool readChunks(int peer);
  bool putStraight(Pair& pair, Send& send);
  bool putSome(Pair& pair, const Send& send, Cleared& to);
  bool readLanded(Pair& pair);
  void endArriving(Pair& pair);
  Answer clear(Pair& pair, const Receive& receive, const Unexpected& message, Status status);
  Clearance clearStraight(Pair& pair, Stream& stream, std::uint64_t bytes, bool isKnownThere);
  bool isCurrent(const Ends& ends, const Clearance& clearance) const {
    return clearance.reroutes == peers_[ends.peer].reroutes;
  }
  // Whether that is so of what is put straight by the pair's link: one that may be replaced says nothing of what it had
  // under way.
  bool endsByAnswer(const Ends& ends) const { return !peers_[ends.peer].device->registersCheaply(); }
  void release(Pair& pair);
  void signal(const Ends& ends, device::Counter& counter, std::uint64_t value, device::Post request);
  void credit(const Ends& ends, device::Counter device::MessageLane::*counter, std::uint64_t value);
  void aim(Ends& ends);
  bool open(Pair& pair);
  device::Fault call(int peer);
  void activate(int peer);
  void listen();
  void post(const Ends& ends, const device::Post& post);
  bool startSend(Pair& pair, Send& send, device::More more = device::More::kSoon);
  device::MessageLine* nextLine(Pair& pair);
  void publishLine(Pair& pair, device::More more = device::More::kSoon);
  void publishSlot(const Ends& ends, const unsigned char* slot, std::uint64_t bytes);
  unsigned char* nextSlot(const Flow& flow, const device::Counter& taken, unsigned char* slots) const;
  static std::vector<Send>::iterator findAsked(Pair& pair, std::uint32_t id);
  const char* problemWith(Pair& pair, const device::MessageLine& line);
  const char* problemWithAnswer(Pair& pair, const device::MessageLine& line);
  static std::string describe(const device::MessageLine& line, const char* problem);
  void takeMessage(int peer, const device::MessageLine& line, const unsigned char* payload);
  device::WindowRef sourceOf(const Pair& pair, const Send& send) const;
  void answered(Pair& pair, const device::MessageLine& line);
  // One that has been matched: mostly the oldest, which costs less.
  void forget(const std::deque<Receive>::iterator& receive) {
    if (receive == receives_.begin()) receives_.pop_front();
    else receives_.erase(receive);
  }
  void deliver(const Receive& receive, const Unexpected& message);
  std::optional<Status> takeInPlace(Pair& pair, const Receive& receive, const Unexpected& message, std::uint64_t bytes);
  void sendToSelf(const Send& send);
  Status arrived(const Receive& receive, int peer, int tag, std::uint8_t datatype, std::uint64_t bytes);
  bool accepts(const Receive& receive, int peer, int tag) const;
  void end(Request* request, Status status);
  int waitedFor() const;
  template <class Function>
  void forEach(const Function& function) const;
  struct Overdue {
    int peer;
    int timeoutMs;  // as its request has it; -1: the communicator's
  };
  std::optional<Overdue> overdue(std::int64_t nowNs);
  // Whether nothing more is done, until somebody has said why. A receive is in hand between two calls if there was no
  // memory for it.
  bool isStuck() const { return broken_.kind != device::Fault::kNone || doubted_ >= 0 || inHand_ != nullptr; }
  bool goesStraight() const;
  Status giveUp(const device::Fault& fault, int peer);
  void endAllHere(const Status& why);

  const Setup setup_;
  Peers& peers_;
  const ArenaLayout layout_;
  Windows& windows_;
  std::vector<Pair> pairs_;
  const std::uint64_t eagerBytes_;  // the same on all ranks, as the slots are
  std::deque<Receive> receives_;    // posted, not matched; the oldest are matched first, and go
  std::deque<Unexpected> unexpected_;
  Request* inHand_ = nullptr;     // of the receive that has got a message, and stands nowhere else yet
  std::uint64_t unfinished_ = 0;  // sends and receives that are not done
  std::uint64_t unanswered_ = 0;  // answers that could not be written yet
  Request* settled_ = nullptr;    // over when nothing is unfinished: settle() waits for it
  std::int64_t scannedNs_ = 0;    // when deadlines were looked at last
  device::Fault broken_;          // a peer that cannot be reached, or wrote what cannot be
  int doubted_ = -1;              // a peer of whom it is not known whether its message was read in time
  std::vector<int> active_;       // peers with whom messages have been exchanged, or are about to be
  std::vector<int> silent_;       // the others
  const device::Counter* calls_;  // one for each peer; 1: it has sent something
  std::size_t first_ = 0;         // place in active_ where progress() begins
};

}  // namespace kolo::comm
