// Protection domains, registrations, completion queues and queue pairs: what may be made of them, and in which order.
#include "mock_verbs/objects.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kolo::test::mock_verbs {
namespace {

using Lock = std::unique_lock<std::mutex>;

// What a queue pair must be told on each step of its way; others may not be told there.
constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToSend =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

template <class Object, class Base>
void erase(std::list<Object>& from, Base* object) {
  from.remove_if([&](const Object& one) { return &one == object; });
}

SharedRegion* freeRegion() {
  for (SharedRegion& region : world->shared->regions) {
    if (region.key == 0) return &region;
  }
  return nullptr;
}

constexpr std::uint64_t kPage = 4096;

// Memory of a GPU that tests/mock_cuda plays, by the name of the file that it is a mapping of.
bool isMemoryOfGpu(const void* memory) {
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  std::FILE* const file = std::fopen("/proc/self/maps", "re");
  bool found = false;
  char line[512];
  while (file != nullptr && !found && std::fgets(line, sizeof line, file) != nullptr) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line, "%lx-%lx", &begin, &end) != 2 || address < begin || address >= end) continue;
    found = std::strstr(line, "memfd:kolo-mock-gpu") != nullptr;
  }
  if (file != nullptr) std::fclose(file);
  return found;
}

SharedPair* freePair() {
  for (SharedPair& pair : world->shared->pairs) {
    if (pair.number == 0) return &pair;
  }
  return nullptr;
}

bool isLegal(ibv_qp_state from, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_STATE) == 0) return false;
  switch (attributes.qp_state) {
    case IBV_QPS_INIT: return from == IBV_QPS_RESET && mask == kToInit && attributes.port_num == 1;
    case IBV_QPS_RTR:
      return from == IBV_QPS_INIT && mask == kToReceive && attributes.path_mtu >= IBV_MTU_256 &&
             attributes.path_mtu <= world->shared->properties.mtu &&
             (world->shared->properties.isInfiniBand || attributes.ah_attr.is_global != 0);
    case IBV_QPS_RTS:
      return from == IBV_QPS_RTR && mask == kToSend && attributes.timeout < 32 && attributes.retry_cnt < 8;
    case IBV_QPS_ERR: return mask == IBV_QP_STATE;
    default: return false;
  }
}

// RoCE v1 and v2 are told apart by the sender's entry: the type is part of the address.
void address(Pair& pair, const ibv_qp_attr& attributes) {
  SharedPair& shared = *pair.shared;
  shared.destination = attributes.dest_qp_num;
  shared.lidOfDestination = attributes.ah_attr.dlid;
  shared.gidOfDestination = attributes.ah_attr.grh.dgid;
  shared.serviceLevel = attributes.ah_attr.sl;
  shared.trafficClass = attributes.ah_attr.grh.traffic_class;
  if (attributes.ah_attr.is_global == 0) return;
  shared.gid = gidAt(shared.nic, attributes.ah_attr.grh.sgid_index);
}

std::uint64_t bytesOf(const ibv_send_wr& request) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) bytes += request.sg_list[i].length;
  return bytes;
}

bool namesMemoryOfGpu(const ibv_send_wr& request) {
  for (int i = 0; i < request.num_sge; ++i) {
    for (const Region& region : world->regions) {
      const auto begin = reinterpret_cast<std::uint64_t>(region.addr);
      if (region.isOfDevice && request.sg_list[i].addr >= begin && request.sg_list[i].addr < begin + region.length)
        return true;
    }
  }
  return false;
}

// An errno; what is none but a mistake is noted.
int check(const Pair& pair, const ibv_send_wr& request) {
  const bool isInline = (request.send_flags & IBV_SEND_INLINE) != 0;
  if (request.opcode != IBV_WR_RDMA_WRITE && request.opcode != IBV_WR_SEND) return EINVAL;
  if (request.num_sge < 0 || static_cast<unsigned>(request.num_sge) > pair.cap.max_send_sge) return EINVAL;
  if (isInline && bytesOf(request) > pair.cap.max_inline_data) return ENOMEM;
  if (isInline && namesMemoryOfGpu(request)) {
    world->complain("the processor was to read memory of a GPU, which went inline");
    return EINVAL;
  }
  if (bytesOf(request) > (std::uint64_t{1} << 31)) return EINVAL;
  if (pair.posted - pair.retired >= pair.cap.max_send_wr) {
    world->complain("a request was posted to a full queue");
    return ENOMEM;
  }
  return pair.shared->state == IBV_QPS_RTS || pair.shared->state == IBV_QPS_ERR ? 0 : EINVAL;
}

void accept(Pair& pair, const ibv_send_wr& given) {
  Request request{};
  request.id = given.wr_id;
  request.index = ++pair.posted;
  request.to = given.wr.rdma.remote_addr;
  request.key = given.wr.rdma.rkey;
  request.isSignaled = pair.signalsAll || (given.send_flags & IBV_SEND_SIGNALED) != 0;
  request.isInline = (given.send_flags & IBV_SEND_INLINE) != 0;
  request.isMessage = given.opcode == IBV_WR_SEND;
  for (int i = 0; i < given.num_sge; ++i) {
    const ibv_sge& part = given.sg_list[i];
    const auto* const bytes = reinterpret_cast<const unsigned char*>(part.addr);
    if (request.isInline) request.inlined.insert(request.inlined.end(), bytes, bytes + part.length);
    else request.parts.push_back(part);
  }
  pair.requests.push_back(std::move(request));
}

Pair* pairOf(std::uint32_t number) {
  for (Pair& pair : world->pairs) {
    if (pair.qp_num == number) return &pair;
  }
  return nullptr;
}

}  // namespace

ibv_pd* allocPd(ibv_context* context) {
  const Lock lock(world->mutex);
  const SharedLock shared(*world->shared);
  Domain& domain = world->domains.emplace_back();
  domain.context = context;
  domain.id = ++world->shared->next;
  return &domain;
}

int deallocPd(ibv_pd* domain) {
  const Lock lock(world->mutex);
  if (static_cast<Domain*>(domain)->users != 0) return EBUSY;
  erase(world->domains, domain);
  return 0;
}

// Its memory is at `memory` for this process. REQUIRES: world's mutex.
Region* addRegion(ibv_pd* given, std::uint64_t address, std::size_t bytes, unsigned access, bool isOfDevice,
                  std::uint64_t memory) {
  const SharedLock sharedLock(*world->shared);
  const std::uint64_t limit = world->shared->properties.lockedBytes;
  SharedRegion* const shared = freeRegion();
  errno = ENOMEM;
  if (shared == nullptr || (limit != 0 && world->locked + bytes > limit)) return nullptr;
  errno = EINVAL;
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return nullptr;
  world->locked += bytes;
  auto* const domain = static_cast<Domain*>(given);
  ++domain->users;
  Region& region = world->regions.emplace_back();
  region.context = domain->context;
  region.pd = domain;
  region.addr = reinterpret_cast<void*>(address);
  region.length = bytes;
  region.lkey = region.rkey = ++world->shared->next * 256 + 7;
  region.shared = shared;
  region.isOfDevice = isOfDevice;
  *shared = {region.rkey, getpid(), domain->id, address, bytes, access, isOfDevice, memory};
  return &region;
}

ibv_mr* regMr(ibv_pd* domain, void* memory, std::size_t bytes, unsigned access) {
  const bool isOfDevice = isMemoryOfGpu(memory);
  const Lock lock(world->mutex);
  errno = EFAULT;
  if (isOfDevice && !world->shared->properties.peerMemory) return nullptr;
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  return addRegion(domain, address, bytes, access, isOfDevice, address);
}

// As a NIC does, this finds the bytes through the buffer, whatever is at the address meanwhile.
ibv_mr* regDmabufMr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                    unsigned access) {
  const Lock lock(world->mutex);
  errno = EOPNOTSUPP;
  if (!world->shared->properties.dmaBuf) return nullptr;
  errno = EINVAL;
  if (offset % kPage != iova % kPage || bytes % kPage != 0 || (access & IBV_ACCESS_RELAXED_ORDERING) != 0)
    return nullptr;
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (mapping == MAP_FAILED) return nullptr;
  Region* const region = addRegion(domain, iova, bytes, access, true, reinterpret_cast<std::uint64_t>(mapping));
  if (region == nullptr) {
    munmap(mapping, bytes);
    return nullptr;
  }
  region->mapping = mapping;
  return region;
}

int deregMr(ibv_mr* given) {
  const Lock lock(world->mutex);
  const SharedLock sharedLock(*world->shared);
  auto* const region = static_cast<Region*>(given);
  world->locked -= region->length;
  --static_cast<Domain*>(region->pd)->users;
  *region->shared = {};
  if (region->mapping != nullptr) munmap(region->mapping, region->length);
  erase(world->regions, given);
  return 0;
}

ibv_cq* createCq(ibv_context* context, int entries, void*, ibv_comp_channel*, int) {
  const Lock lock(world->mutex);
  Queue& queue = world->queues.emplace_back();
  queue.context = context;
  queue.cqe = entries;
  return &queue;
}

int destroyCq(ibv_cq* queue) {
  const Lock lock(world->mutex);
  if (!static_cast<Queue*>(queue)->pairs.empty()) return EBUSY;
  erase(world->queues, queue);
  return 0;
}

int pollCq(ibv_cq* given, int most, ibv_wc* completions) {
  const Lock lock(world->mutex);
  {
    // Another process may have sent; the engine would see it later.
    const SharedLock sharedLock(*world->shared);
    for (Pair* const pair : static_cast<Queue*>(given)->pairs) tellArrivals(*pair);
  }
  auto& entries = static_cast<Queue*>(given)->entries;
  int count = 0;
  while (count < most && !entries.empty() && entries.front().late-- <= 0) {
    const Queue::Entry& entry = entries.front();
    completions[count++] = entry.completion;
    if (Pair* const pair = pairOf(entry.completion.qp_num); pair != nullptr)
      pair->retired = std::max(pair->retired, entry.index);
    entries.pop_front();
  }
  return count;
}

ibv_qp* createQp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const Lock lock(world->mutex);
  const SharedLock sharedLock(*world->shared);
  const MockVerbs& properties = world->shared->properties;
  SharedPair* const shared = freePair();
  errno = EINVAL;
  if (attributes->qp_type != IBV_QPT_RC || attributes->send_cq == nullptr || attributes->recv_cq == nullptr)
    return nullptr;
  if (attributes->cap.max_send_wr > properties.mostRequests || attributes->cap.max_inline_data > properties.maxInline ||
      attributes->cap.max_recv_wr > std::min(properties.mostRequests, SharedInbox::kMost)) {
    return nullptr;
  }
  errno = ENOMEM;
  if (shared == nullptr) return nullptr;
  Pair& pair = world->pairs.emplace_back();
  static_cast<ibv_qp&>(pair) = {};
  pair.context = domain->context;
  pair.pd = domain;
  pair.queue = static_cast<Queue*>(attributes->send_cq);
  pair.cap = attributes->cap;
  pair.signalsAll = attributes->sq_sig_all != 0;
  pair.qp_num = ++world->shared->next;
  pair.shared = shared;
  pair.inbox = &world->shared->inboxes[shared - world->shared->pairs];
  pair.inbox->posted = pair.inbox->filled = pair.inbox->told = 0;
  pair.queue->pairs.push_back(&pair);
  ++static_cast<Domain*>(domain)->users;
  const int nic = static_cast<Context*>(domain->context)->nic->index;
  *shared = {};
  *shared = {pair.qp_num, getpid(), static_cast<Domain*>(domain)->id, IBV_QPS_RESET, 0, nic, gidAt(nic, 0), {},
             lidOf(nic),  0};
  return &pair;
}

int modifyQp(ibv_qp* given, ibv_qp_attr* attributes, int mask) {
  const Lock lock(world->mutex);
  const SharedLock sharedLock(*world->shared);
  Pair& pair = *static_cast<Pair*>(given);
  if (!isLegal(static_cast<ibv_qp_state>(pair.shared->state), *attributes, mask)) return EINVAL;
  if (attributes->qp_state == IBV_QPS_RTR) address(pair, *attributes);
  pair.shared->state = attributes->qp_state;
  if (attributes->qp_state == IBV_QPS_ERR) flush(pair);
  world->changed.notify_all();
  return 0;
}

int destroyQp(ibv_qp* given) {
  const Lock lock(world->mutex);
  const SharedLock sharedLock(*world->shared);
  Pair& pair = *static_cast<Pair*>(given);
  std::erase(pair.queue->pairs, &pair);
  --static_cast<Domain*>(pair.pd)->users;
  std::erase_if(pair.queue->entries, [&](const Queue::Entry& entry) { return entry.completion.qp_num == pair.qp_num; });
  *pair.shared = {};
  erase(world->pairs, given);
  return 0;
}

int postSend(ibv_qp* given, ibv_send_wr* requests, ibv_send_wr** refused) {
  const Lock lock(world->mutex);
  Pair& pair = *static_cast<Pair*>(given);
  for (; requests != nullptr; requests = requests->next) {
    if (const int errnum = check(pair, *requests); errnum != 0) {
      *refused = requests;
      return errnum;
    }
    accept(pair, *requests);
  }
  world->changed.notify_all();
  return 0;
}

int postReceive(ibv_qp* given, ibv_recv_wr* requests, ibv_recv_wr** refused) {
  const Lock lock(world->mutex);
  const SharedLock sharedLock(*world->shared);
  Pair& pair = *static_cast<Pair*>(given);
  SharedInbox& inbox = *pair.inbox;
  for (; requests != nullptr; requests = requests->next) {
    *refused = requests;
    if (pair.shared->state == IBV_QPS_RESET || requests->num_sge != 1) return EINVAL;
    if (inbox.posted - inbox.told >= pair.cap.max_recv_wr) {
      world->complain("a buffer was posted to a full queue");
      return ENOMEM;
    }
    const ibv_sge& part = requests->sg_list[0];
    const bool isRegistered = std::any_of(world->regions.begin(), world->regions.end(), [&](const Region& region) {
      const auto begin = reinterpret_cast<std::uint64_t>(region.addr);
      return region.lkey == part.lkey && region.pd == pair.pd && part.addr >= begin && part.length <= region.length &&
             part.addr - begin <= region.length - part.length && (region.shared->access & IBV_ACCESS_LOCAL_WRITE) != 0;
    });
    if (!isRegistered) {
      world->complain("a buffer to receive into is not registered");
      return EINVAL;
    }
    inbox.buffers[inbox.posted++ % SharedInbox::kMost] = {requests->wr_id, part.addr, part.length};
  }
  if (pair.shared->state == IBV_QPS_ERR) flush(pair);
  world->changed.notify_all();
  return 0;
}

}  // namespace kolo::test::mock_verbs
