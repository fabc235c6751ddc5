// The team that is a block of threads: on a GPU, or played by host threads. What the two have apart is the platform:
//   unsigned thread() const, threads() const   this thread's index, how many there are
//   bool syncOr(bool)                          barrier of the block; whether any thread said true
//   bool claim(counter)                        sets it to 1; whether this thread is the first of the block to do so
//   Fault keepWaiting(peer, state)             between two rounds of polling, by any thread: kNone, or why to give up
//   int polls() const                          in a round
//   kPosts                                     whether it serves posted links, by the ring of its channel; if so:
//   uint64 add(counter)                        adds one; acquires and releases; gives the sum
//   bool read(peer, to, from, bytes)           as Team's, by the leader; false where it is not possible
//   kReadsLists; bool readList(...), writeList(...), const Segments* loadableList(...)   as Team's
//   bool write(peer, to, from, bytes)          as read()
//   void reduce(index, work, datatype, args)   blockReduce() of the datatype and the work's operation; index: thread()
//                                              and threads()
//   FoldLists& lists()                         of the block, not of a thread
//   Work& step()                               likewise: the description of a step
//   kServesLists                               whether buffers may be lists of segments; if so:
//   void castRows(index, move)                 castRows() of the move's datatypes
#pragma once

#include <cstdint>

#include "device/atomics.h"
#include "device/block_ops.h"
#include "device/packet_front.h"
#include "device/row_move.h"
#include "device/work.h"

namespace kolo::device {

template <class Platform>
class BlockTeam {
 public:
  KOLO_DEVICE BlockTeam(Platform& platform, const Work& work) : platform_(platform), work_(work) {}

  KOLO_DEVICE bool leader() const { return platform_.thread() == 0; }
  KOLO_DEVICE bool failed() const { return failed_; }

  static constexpr bool kIsOneThread = false;
  static constexpr bool kPosts = Platform::kPosts, kWakes = false, kOpens = false,
                        kServesLists = Platform::kServesLists;
  static constexpr bool kReadsLists = Platform::kReadsLists;
  static constexpr bool kPackets = true;
  static constexpr std::uint64_t kFoldBytes = 1 << 21;  // at a time: a call costs more than caches give

  // A thread that has failed says so; after the barrier all know. The first one's fault counts.
  KOLO_DEVICE void sync() { failed_ = platform_.syncOr(failed_); }
  KOLO_DEVICE void fail(const Fault& fault) {
    if (!failed_ && platform_.claim(work_.channel.fault->claimed)) {
      work_.channel.fault->kind = fault.kind;
      work_.channel.fault->peer = fault.peer;
      work_.channel.fault->signature = fault.signature;
      work_.channel.fault->count = fault.count;
      work_.channel.fault->mine = fault.mine;
      work_.channel.fault->mineCount = fault.mineCount;
    }
    failed_ = true;
  }

  KOLO_DEVICE FoldLists& lists() { return platform_.lists(); }
  KOLO_DEVICE Work& step() { return platform_.step(); }
  KOLO_DEVICE bool leaderSays(bool value) { return platform_.syncOr(leader() && value); }

  // body(i) for each i below count, by the threads side by side; no barrier.
  template <class Body>
  KOLO_DEVICE void divide(int count, const Body& body) {
    KOLO_ROLLED
    for (int i = static_cast<int>(platform_.thread()); i < count; i += static_cast<int>(platform_.threads())) body(i);
  }
  template <class Body>
  KOLO_DEVICE void spread(int count, const Body& body) {
    divide(count, body);
    sync();
  }
  KOLO_DEVICE_CALL bool waitAlone(const Counter& counter, std::uint64_t target, int peer) {
    if (!failed_) wait(counter, target, peer);
    return !failed_;
  }
  // As waitAlone(), for a packet. What has come; a packet without the number after a failure.
  KOLO_DEVICE_CALL LoadedPacket waitPacket(const Packet& packet, std::uint32_t number, int peer) {
    for (int i = 0; i < platform_.polls() && !failed_; ++i) {
      if (const LoadedPacket loaded = loadPacket(packet); loaded.has(number)) return loaded;
    }
    if (!failed_) waitLong(AwaitedPacket{&packet, number}, peer);
    return failed_ ? packetOf(0, ~number) : loadPacket(packet);
  }

  KOLO_DEVICE_CALL bool waitAtLeast(const Counter& counter, std::uint64_t target, int peer) {
    if (leader() && !failed_) wait(counter, target, peer);
    sync();
    return !failed_;
  }

  // Whether the counter is there already; all threads get the same answer. A barrier.
  KOLO_DEVICE_CALL bool isAtLeast(const Counter& counter, std::uint64_t target) {
    return platform_.syncOr(leader() && loadAcquire(counter) >= target);
  }
  // Between two rounds of looking for what can be done: fails if it is time to give up.
  typedef typename Platform::WaitState WaitState;
  KOLO_DEVICE_CALL void pause(int peer, WaitState& state) {
    if (leader() && !failed_) {
      const Fault fault = platform_.keepWaiting(peer, state);
      if (fault.kind != Fault::kNone) fail(fault);
    }
    sync();
  }

  // Why there is nothing more to come from a peer: kNone, or that it has gone, or that the link to it is lost.
  KOLO_DEVICE Fault departureOf(int peer) const {
    const Counter* const left = work_.channel.links[peer].marks.left;
    const std::uint64_t said = left != nullptr ? loadAcquire(*left) : 0;  // [gone]
    return {.kind = said == 0 ? Fault::kNone : said == kPeerLeft ? Fault::kLeft : Fault::kLost, .peer = peer};
  }

  // By any thread of the block; those to one peer by one at a time. See device/post_ring.h.
  KOLO_DEVICE_CALL void post(const Link& link, const Post& post) {
    if (failed_) return;
    PostBox& box = *work_.channel.posts;
    const std::uint64_t number = platform_.add(box.issued);
    if (number > kPostPlaces && !awaitPlace(box, number - kPostPlaces, link.peer)) return;
    const auto inMirror = [&](const void* at) {
      return static_cast<std::uint32_t>(static_cast<const unsigned char*>(at) - link.mirror);
    };
    PostRequest& place = box.ring->places[number % kPostPlaces];
    place.value = post.value;
    place.peer = static_cast<std::uint32_t>(link.peer);
    place.rail = post.rail;
    place.dataAt = post.bytes != 0 ? inMirror(post.data) : 0;
    place.bytes = static_cast<std::uint32_t>(post.bytes);
    place.counterAt = inMirror(post.counter);
    place.word = work_.header.word;
    place.count = work_.header.count;
    place.operation = work_.header.number;
    storeRelease(place.number, number);  // [post]
  }

  KOLO_DEVICE void copy(void* dst, const void* src, std::uint64_t bytes, bool streaming) {
    blockCopy(index(), dst, src, bytes, streaming);
  }
  KOLO_DEVICE void took(Course) {}

  KOLO_DEVICE void read(int peer, void* to, std::uint64_t from, std::uint64_t bytes) {
    if (leader() && !platform_.read(peer, to, from, bytes)) fail({.kind = Fault::kUnreadable, .peer = peer});
  }
  KOLO_DEVICE void readList(const PeerSegments& list, void* to, const unsigned char* place, std::uint64_t bytes) {
    if (leader() && !platform_.readList(list, to, place, bytes)) fail({.kind = Fault::kUnreadable, .peer = list.peer});
  }
  KOLO_DEVICE const Segments* loadableList(const PeerSegments& list) {
    return failed_ ? nullptr : platform_.loadableList(list);
  }
  KOLO_DEVICE void writeList(const PeerSegments& list, const unsigned char* place, const void* from,
                             std::uint64_t bytes) {
    if (leader() && !platform_.writeList(list, place, from, bytes))
      fail({.kind = Fault::kUnwritable, .peer = list.peer});
  }
  KOLO_DEVICE void write(int peer, std::uint64_t to, const void* from, std::uint64_t bytes) {
    if (leader() && !platform_.write(peer, to, from, bytes)) fail({.kind = Fault::kUnwritable, .peer = peer});
  }
  KOLO_DEVICE void reduce(const ReduceArgs& args) { platform_.reduce(index(), work_, datatype(), args); }
  KOLO_DEVICE void reduceAs(koloDataType_t datatype, const ReduceArgs& args) {
    platform_.reduce(index(), work_, datatype, args);
  }
  KOLO_DEVICE void reduceAlone(const ReduceArgs& args) { platform_.reduce(BlockIndex{0, 1}, work_, datatype(), args); }
  KOLO_DEVICE void moveRows(const RowMove& move) {
    if (move.dstDatatype == move.srcDatatype) copyRows(index(), move);
    else platform_.castRows(index(), move);
  }

 private:
  KOLO_DEVICE koloDataType_t datatype() const { return static_cast<koloDataType_t>(work_.signature.datatype); }
  KOLO_DEVICE BlockIndex index() const { return {platform_.thread(), platform_.threads()}; }

  KOLO_DEVICE void wait(const Counter& counter, std::uint64_t target, int peer) {
    for (int i = 0; i < platform_.polls(); ++i) {
      if (loadAcquire(counter) >= target) return;
    }
    waitLong(AwaitedCounter{&counter, target}, peer);
  }

  // What is awaited, and what the peer has done instead.
  struct AwaitedCounter {
    const Counter* counter;
    std::uint64_t target;
    KOLO_DEVICE bool isThere() const { return loadAcquire(*counter) >= target; }
    KOLO_DEVICE static Fault instead(const Work& work, int peer) { return packetsInstead(work, peer); }
  };
  struct AwaitedPacket {
    const Packet* packet;
    std::uint32_t number;
    KOLO_DEVICE bool isThere() const { return loadPacket(*packet).has(number); }
    KOLO_DEVICE static Fault instead(const Work& work, int peer) { return otherHeader(work, peer); }
  };
  // The rest of a wait, apart from its first round: what does not wait long saves no registers for it.
  template <class Awaited>
  KOLO_APART void waitLong(const Awaited awaited, int peer) {
    typename Platform::WaitState state{};
    for (;;) {
      Fault fault = platform_.keepWaiting(peer, state);
      if (fault.kind == Fault::kNone) fault = departureOf(peer);
      // What has arrived counts, even if the communicator failed meanwhile: the operation may still be whole.
      if (awaited.isThere()) return;
      if (fault.kind == Fault::kNone) fault = Awaited::instead(work_, peer);
      if (fault.kind != Fault::kNone) fail(fault);
      else failed_ = loadRelaxed(work_.channel.fault->claimed) != 0;  // by another thread in spread()
      if (failed_) return;
      for (int i = 0; i < platform_.polls(); ++i) {
        if (awaited.isThere()) return;
      }
    }
  }

  // Until the proxy has taken so many requests. It takes those to a peer that has gone too.
  KOLO_DEVICE bool awaitPlace(PostBox& box, std::uint64_t target, int peer) {
    if (loadAcquire(box.seen) >= target) return true;  // [taken]
    typename Platform::WaitState state{};
    std::uint64_t taken = loadAcquire(box.ring->taken);  // [taken]
    while (taken < target) {
      const Fault fault = platform_.keepWaiting(peer, state);
      if (fault.kind != Fault::kNone) {
        fail(fault);
        return false;
      }
      taken = loadAcquire(box.ring->taken);  // [taken]
    }
    storeRelease(box.seen, taken);  // [taken]
    return true;
  }

  Platform& platform_;
  const Work& work_;
  bool failed_ = false;
};

}  // namespace kolo::device
