// The thread that carries requests out, one at a time of each queue pair in turn.
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "mock_verbs/world.h"

namespace kolo::test::mock_verbs {
namespace {

// While it lives, the thread sanitizer does not see what this thread reads and writes, if a queue pair of the process
// has ended. A transport then repeats bytes by another one. The receiver may read these bytes meanwhile, or write the
// same bytes out of a packet that came before, and the sender may fill the place anew. No such race changes a value:
// transports/ib/way.h has the argument, and the tests compare every byte. Releases stay seen.
class HiddenRepeats {
 public:
#ifdef __SANITIZE_THREAD__
  HiddenRepeats()
      : hides_(std::any_of(world->pairs.begin(), world->pairs.end(),
                           [](const Pair& pair) { return pair.shared->state == IBV_QPS_ERR; })) {
    if (!hides_) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~HiddenRepeats() {
    if (!hides_) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  HiddenRepeats() {}  // not defaulted: a variable of this type is no unused one
#endif
  HiddenRepeats(const HiddenRepeats&) = delete;
  HiddenRepeats& operator=(const HiddenRepeats&) = delete;

 private:
  [[maybe_unused]] const bool hides_ = false;
};

template <class Word>
void store(unsigned char* to, Word value) {
  __atomic_store_n(reinterpret_cast<Word*>(to), value, __ATOMIC_RELEASE);
}

// Whole aligned words at a time, in increasing order: other threads read counters among them. The last one is released,
// and with it everything before, as an RDMA write behind others on one queue pair is.
void copyHere(unsigned char* to, const unsigned char* from, std::size_t bytes) {
  std::atomic_thread_fence(std::memory_order_release);
  while (bytes > 0) {
    if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0 && bytes >= 8) {
      std::uint64_t word;
      std::memcpy(&word, from, 8);
      store(to, word);
      to += 8, from += 8, bytes -= 8;
    } else {
      store(to, *from);
      ++to, ++from, --bytes;
    }
  }
}

bool copyThere(int pid, std::uint64_t to, const unsigned char* from, std::size_t bytes) {
  if (pid == getpid()) {
    const HiddenRepeats hidden;
    copyHere(reinterpret_cast<unsigned char*>(to), from, bytes);
    return true;
  }
  while (bytes > 0) {
    const iovec here{const_cast<unsigned char*>(from), bytes};
    const iovec there{reinterpret_cast<void*>(to), bytes};
    const ssize_t done = process_vm_writev(pid, &here, 1, &there, 1, 0);
    if (done <= 0) return false;
    from += done, to += static_cast<std::uint64_t>(done), bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

SharedPair* findPair(std::uint32_t number) {
  for (SharedPair& pair : world->shared->pairs) {
    if (pair.number == number) return &pair;
  }
  return nullptr;
}

// Whether packets get from the one to the other, and are its.
bool reaches(const SharedPair& from, const SharedPair& to) {
  const Shared& shared = *world->shared;
  if (shared.isDown[from.nic] || shared.isBroken[from.nic] || shared.isDown[to.nic] || shared.isBroken[to.nic])
    return false;
  if (to.state != IBV_QPS_RTR && to.state != IBV_QPS_RTS) return false;
  if (to.destination != from.number) return false;
  if (shared.properties.isInfiniBand) return from.lidOfDestination == to.lid && to.lidOfDestination == from.lid;
  return std::memcmp(&from.gidOfDestination, &to.gid, sizeof to.gid) == 0 &&
         std::memcmp(&to.gidOfDestination, &from.gid, sizeof from.gid) == 0;
}

bool isInside(std::uint64_t at, std::uint64_t bytes, std::uint64_t begin, std::uint64_t room) {
  return at >= begin && bytes <= room && at - begin <= room - bytes;
}

// Where the bytes are that a part names, if the pair may read them; else null. Inlined bytes are in no region.
const unsigned char* readable(const Pair& pair, const ibv_sge& part) {
  for (const Region& region : world->regions) {
    if (region.lkey != part.lkey || region.pd != pair.pd ||
        !isInside(part.addr, part.length, region.shared->address, region.length))
      continue;
    return reinterpret_cast<const unsigned char*>(region.shared->memory + (part.addr - region.shared->address));
  }
  return nullptr;
}

// Where they go, if they may be written there; else null.
const SharedRegion* writable(const SharedPair& to, std::uint64_t at, std::uint64_t bytes, std::uint32_t key) {
  for (const SharedRegion& region : world->shared->regions) {
    const bool isMeant = region.key == key && region.pid == to.pid && region.domain == to.domain;
    if (!isMeant || (region.access & IBV_ACCESS_REMOTE_WRITE) == 0 ||
        !isInside(at, bytes, region.address, region.bytes))
      continue;
    return &region;
  }
  return nullptr;
}

// Into the next buffer. There must be one: to be told that there is none, and to try again, is slow on real devices,
// where it is none but a mistake.
ibv_wc_status deliverMessage(const Pair& pair, const Request& request, SharedPair& to, std::uint64_t bytes) {
  SharedInbox& inbox = world->shared->inboxes[&to - world->shared->pairs];
  if (inbox.filled == inbox.posted) {
    world->complain("a message came and there was no buffer for it");
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  const SharedInbox::Buffer& buffer = inbox.buffers[inbox.filled % SharedInbox::kMost];
  if (bytes > buffer.bytes) {
    to.state = IBV_QPS_ERR;
    return IBV_WC_REM_INV_REQ_ERR;
  }
  std::uint64_t at = buffer.address;
  bool isThere = copyThere(to.pid, at, request.inlined.data(), request.inlined.size());
  at += request.inlined.size();
  for (const ibv_sge& part : request.parts) {
    isThere = isThere && copyThere(to.pid, at, readable(pair, part), part.length);
    at += part.length;
  }
  if (!isThere) return IBV_WC_RETRY_EXC_ERR;
  ++world->messages;
  inbox.arrivals[inbox.filled++ % SharedInbox::kMost] = {buffer.id, static_cast<std::uint32_t>(bytes)};
  return IBV_WC_SUCCESS;
}

ibv_wc_status deliver(Pair& pair, const Request& request) {
  SharedPair* const to = findPair(pair.shared->destination);
  std::uint64_t bytes = request.inlined.size();
  for (const ibv_sge& part : request.parts) {
    if (part.length != 0 && readable(pair, part) == nullptr) return IBV_WC_LOC_PROT_ERR;
    bytes += part.length;
  }
  if (to == nullptr || !reaches(*pair.shared, *to)) return IBV_WC_RETRY_EXC_ERR;
  if (request.isMessage) return deliverMessage(pair, request, *to, bytes);
  const SharedRegion* const region = writable(*to, request.to, bytes, request.key);
  if (region == nullptr && bytes != 0) {
    to->state = IBV_QPS_ERR;
    return IBV_WC_REM_ACCESS_ERR;
  }
  if (region == nullptr || (region->isOfDevice && world->shared->properties.losesDeviceWrites)) return IBV_WC_SUCCESS;
#ifdef __SANITIZE_THREAD__
  // Memory of a (mocked) GPU has another address here than for the kernels that wait for what is written: to the
  // sanitizer another word. Before it is written, for who sees it acquires at once.
  if (to->pid == getpid()) __tsan_release(reinterpret_cast<void*>(request.to));
#endif
  std::uint64_t at = region->memory + (request.to - region->address);  // in the other's process
  bool isThere = copyThere(to->pid, at, request.inlined.data(), request.inlined.size());
  for (const ibv_sge& part : request.parts) {
    isThere = isThere && copyThere(to->pid, at, readable(pair, part), part.length);
    at += part.length;
  }
  if (!isThere) return IBV_WC_RETRY_EXC_ERR;
  return IBV_WC_SUCCESS;
}

ibv_wc_status carryOut(Pair& pair, const Request& request) {
  Failure& failure = world->failure;
  const bool isMeant =
      failure.status != IBV_WC_SUCCESS && (failure.nic < 0 || failure.nic == pair.shared->nic) && failure.after-- <= 0;
  if (!isMeant) return deliver(pair, request);
  const ibv_wc_status status = failure.status;
  if (failure.isDelivered) (void)deliver(pair, request);
  failure = {};
  world->hasFailed = true;
  return status;
}

// One request of the pair; false: it has none that may be carried out.
bool step(Pair& pair) {
  const SharedLock lock(*world->shared);
  const bool hasCome = tellArrivals(pair);
  if (pair.shared->state == IBV_QPS_ERR) {
    const bool hadAny = !pair.requests.empty();
    flush(pair);
    return hadAny || hasCome;
  }
  if (pair.requests.empty() || world->isStalled[pair.shared->nic] || pair.shared->state != IBV_QPS_RTS) return hasCome;
  const Request request = std::move(pair.requests.front());
  pair.requests.pop_front();
  const ibv_wc_status status = carryOut(pair, request);
  world->carried[pair.shared->nic] += status == IBV_WC_SUCCESS;
  if (status != IBV_WC_SUCCESS || request.isSignaled) complete(pair, request, status);
  if (status != IBV_WC_SUCCESS) {
    pair.shared->state = IBV_QPS_ERR;
    flush(pair);
  }
  return true;
}

}  // namespace

SharedLock::SharedLock(Shared& shared) : shared_(shared) {
  if (pthread_mutex_lock(&shared_.mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared_.mutex);
}
SharedLock::~SharedLock() { pthread_mutex_unlock(&shared_.mutex); }

namespace {

void enqueue(Pair& pair, const ibv_wc& completion, std::uint64_t index) {
  if (pair.queue->entries.size() >= static_cast<std::size_t>(pair.queue->cqe))
    world->complain("a completion queue overflowed");
  pair.queue->entries.push_back({completion, world->shared->properties.lateBy, index});
}

}  // namespace

void complete(Pair& pair, const Request& request, ibv_wc_status status) {
  ibv_wc completion{};
  completion.wr_id = request.id;
  completion.status = status;
  completion.opcode = request.isMessage ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
  completion.qp_num = pair.qp_num;
  enqueue(pair, completion, request.index);
}

bool tellArrivals(Pair& pair) {
  SharedInbox& inbox = *pair.inbox;
  const bool hasAny = inbox.told != inbox.filled;
  for (; inbox.told != inbox.filled; ++inbox.told) {
    const SharedInbox::Arrival& arrival = inbox.arrivals[inbox.told % SharedInbox::kMost];
    ibv_wc completion{};
    completion.wr_id = arrival.id;
    completion.opcode = IBV_WC_RECV;
    completion.byte_len = arrival.bytes;
    completion.qp_num = pair.qp_num;
    enqueue(pair, completion, 0);
  }
  return hasAny;
}

void flush(Pair& pair) {
  tellArrivals(pair);
  for (const Request& request : pair.requests) complete(pair, request, IBV_WC_WR_FLUSH_ERR);
  pair.requests.clear();
  SharedInbox& inbox = *pair.inbox;
  for (; inbox.told != inbox.posted; inbox.filled = ++inbox.told) {
    ibv_wc completion{};
    completion.wr_id = inbox.buffers[inbox.told % SharedInbox::kMost].id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.qp_num = pair.qp_num;
    enqueue(pair, completion, 0);
  }
}

void runEngine() {
  std::unique_lock lock(world->mutex);
  std::vector<Pair*> order;
  while (!world->isEnding) {
    order.clear();
    for (Pair& pair : world->pairs) order.push_back(&pair);
    if (world->shared->properties.shuffle != 0) {
      std::shuffle(order.begin(), order.end(), world->random);
      if (order.size() > 1) order.resize(1 + world->random() % order.size());
    }
    bool hasMoved = false;
    for (Pair* const pair : order) hasMoved = step(*pair) || hasMoved;
    if (hasMoved) {
      lock.unlock();  // those who post and poll have their turn
      lock.lock();
    } else {
      // Another process, or a switch, may have changed what can go on.
      world->changed.wait_for(lock, std::chrono::milliseconds(2));
    }
  }
}

}  // namespace kolo::test::mock_verbs
