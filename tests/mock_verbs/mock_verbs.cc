#include "mock_verbs/mock_verbs.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "mock_verbs/objects.h"

namespace kolo::test::mock_verbs {

World* world = nullptr;

namespace {

using Lock = std::unique_lock<std::mutex>;

constexpr char kVariable[] = "KOLO_MOCK_VERBS";  // path of the file that the processes share

// ---- devices and ports

ibv_device** getDeviceList(int* count) {
  const int nics = world->shared->properties.nics;
  auto** const list = static_cast<ibv_device**>(std::calloc(static_cast<std::size_t>(nics) + 1, sizeof(ibv_device*)));
  for (int i = 0; i < nics; ++i) list[i] = &world->nics[static_cast<std::size_t>(i)];
  if (count != nullptr) *count = nics;
  return list;
}

void freeDeviceList(ibv_device** list) { std::free(list); }

const char* getDeviceName(ibv_device* device) { return device->name; }

// The thread begins with the first one: most children of a fork only begin another program.
ibv_context* openDevice(ibv_device* device) {
  const Lock lock(world->mutex);
  if (!world->engine.joinable()) world->engine = std::thread(runEngine);
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (fd < 0) return nullptr;
  Context& context = world->contexts.emplace_back();
  context.device = device;
  context.async_fd = fd;
  context.nic = static_cast<Nic*>(device);
  return &context;
}

int closeDevice(ibv_context* context) {
  const Lock lock(world->mutex);
  close(context->async_fd);
  world->contexts.remove_if([&](const Context& one) { return &one == context; });
  return 0;
}

int getAsyncEvent(ibv_context* given, ibv_async_event* event) {
  std::uint64_t one;
  if (read(given->async_fd, &one, sizeof one) != sizeof one) return -1;
  const Lock lock(world->mutex);
  auto& events = static_cast<Context*>(given)->events;
  *event = {};
  event->event_type = events.front();
  event->element.port_num = 1;
  events.pop_front();
  return 0;
}

void ackAsyncEvent(ibv_async_event*) {}

int queryDevice(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  attributes->phys_port_cnt = 1;
  attributes->max_qp_wr = static_cast<int>(world->shared->properties.mostRequests);
  attributes->max_cqe = 1 << 16;
  attributes->max_sge = 4;
  return 0;
}

int queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) {
  if (port != 1) return EINVAL;
  const SharedLock lock(*world->shared);
  const MockVerbs& properties = world->shared->properties;
  const int nic = static_cast<Context*>(context)->nic->index;
  *attributes = {};
  attributes->state = world->shared->isDown[nic] ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attributes->max_mtu = attributes->active_mtu = properties.mtu;
  attributes->gid_tbl_len = static_cast<int>(std::size(properties.gids));
  attributes->lid = lidOf(nic);
  attributes->active_speed = 32;
  attributes->active_width = 2;
  attributes->max_msg_sz = 1u << 31;
  attributes->link_layer = properties.isInfiniBand ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int queryGid(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid) {
  if (port != 1 || index < 0 || index >= static_cast<int>(std::size(world->shared->properties.gids))) return -1;
  *gid = gidAt(static_cast<Context*>(context)->nic->index, index);
  return 0;
}

drivers::GidType gidType(ibv_context*, std::uint8_t, int index) {
  using Gid = MockVerbs::Gid;
  switch (world->shared->properties.gids[index]) {
    case Gid::kLinkLocalV1:
    case Gid::kIpv4V1: return drivers::GidType::kRoceV1;
    case Gid::kLinkLocalV2:
    case Gid::kIpv4V2:
    case Gid::kGlobalV2: return drivers::GidType::kRoceV2;
    case Gid::kInfiniBand: return drivers::GidType::kInfiniBand;
    case Gid::kNone: break;
  }
  return drivers::GidType::kUnknown;
}

const char* statusText(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
    case IBV_WC_WR_FLUSH_ERR: return "Work Request Flushed Error";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    default: return "an error of the mock's";
  }
}

// ---- calls that are told to fail

// Those that give a pointer say why by errno, the others return it.
bool fails(const char* function) {
  const Lock lock(world->mutex);
  if (world->failingCall != function || world->failingAfter-- > 0) return false;
  errno = world->failingErrno;
  return true;
}

template <auto function>
struct Failing;
template <class Result, class... Arguments, Result (*function)(Arguments...)>
struct Failing<function> {
  static inline const char* name = nullptr;
  static Result call(Arguments... arguments) {
    if (!fails(name)) return function(arguments...);
    if constexpr (std::is_pointer_v<Result>) return nullptr;
    else return errno;
  }
  static auto* as(const char* of) {
    name = of;
    return &call;
  }
};

drivers::Verbs makeTable() {
  return {getDeviceList,
          freeDeviceList,
          getDeviceName,
          Failing<openDevice>::as("openDevice"),
          closeDevice,
          getAsyncEvent,
          ackAsyncEvent,
          Failing<queryDevice>::as("queryDevice"),
          Failing<queryPort>::as("queryPort"),
          queryGid,
          gidType,
          Failing<allocPd>::as("allocPd"),
          deallocPd,
          Failing<regMr>::as("regMr"),
          Failing<regDmabufMr>::as("regDmabufMr"),
          deregMr,
          Failing<createCq>::as("createCq"),
          destroyCq,
          pollCq,
          Failing<createQp>::as("createQp"),
          Failing<modifyQp>::as("modifyQp"),
          destroyQp,
          Failing<postSend>::as("postSend"),
          Failing<postReceive>::as("postReceive"),
          statusText};
}

// ---- the world

void start();

void enter(int file) {
  world = new World;
  world->file = file;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::abort();
  world->shared = static_cast<Shared*>(memory);
}

// A forked child has the devices, but neither their thread nor what its parent made of them, and must not wait for
// locks that were held.
void registerForFork() {
  const auto before = [] {
    if (world != nullptr) world->mutex.lock();
  };
  const auto inParent = [] {
    if (world != nullptr) world->mutex.unlock();
  };
  const auto inChild = [] {
    if (world == nullptr) return;
    enter(world->file);
    start();
  };
  static const int registered = pthread_atfork(before, inParent, inChild);
  (void)registered;
}

void start() {
  registerForFork();
  for (int i = 0; i < kMostNics; ++i) {
    Nic& nic = world->nics[static_cast<std::size_t>(i)];
    nic.index = i;
    nic.node_type = IBV_NODE_CA;
    nic.transport_type = IBV_TRANSPORT_IB;
    std::snprintf(nic.name, sizeof nic.name, "mock%d", i);
  }
  world->random.seed(world->shared->properties.shuffle);
  static const drivers::Verbs verbs = makeTable();
  drivers::setVerbs(&verbs);
}

void raise(int nic, ibv_event_type event) {
  const Lock lock(world->mutex);
  for (Context& context : world->contexts) {
    if (context.nic->index != nic) continue;
    context.events.push_back(event);
    const std::uint64_t one = 1;
    (void)!write(context.async_fd, &one, sizeof one);
  }
}

std::string leftBehind() {
  const Lock lock(world->mutex);
  if (!world->complaint.empty()) return world->complaint;
  const std::pair<const char*, std::size_t> left[] = {{"queue pairs", world->pairs.size()},
                                                      {"completion queues", world->queues.size()},
                                                      {"registrations", world->regions.size()},
                                                      {"protection domains", world->domains.size()},
                                                      {"contexts", world->contexts.size()}};
  for (const auto& [what, count] : left) {
    if (count != 0) return std::to_string(count) + " " + what + " were not given back";
  }
  return "";
}

}  // namespace

ibv_gid gidAt(int nic, int index) {
  using Gid = MockVerbs::Gid;
  ibv_gid gid{};
  const auto last = static_cast<std::uint8_t>(nic);
  const auto ipv4 = [&] {
    const std::uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, last, 1};
    std::memcpy(gid.raw, bytes, sizeof bytes);
  };
  const auto ipv6 = [&](std::uint8_t first, std::uint8_t second) {
    gid.raw[0] = first, gid.raw[1] = second, gid.raw[7] = first == 0xfe ? 0 : last,
    gid.raw[15] = static_cast<std::uint8_t>(last + 1);
  };
  switch (world->shared->properties.gids[index]) {
    case Gid::kNone: break;
    case Gid::kLinkLocalV1:
    case Gid::kLinkLocalV2:
    case Gid::kInfiniBand: ipv6(0xfe, 0x80); break;
    case Gid::kIpv4V1:
    case Gid::kIpv4V2: ipv4(); break;
    case Gid::kGlobalV2: ipv6(0x20, 0x01); break;
  }
  return gid;
}

std::uint16_t lidOf(int nic) {
  return world->shared->properties.isInfiniBand ? static_cast<std::uint16_t>(nic + 1) : 0;
}

}  // namespace kolo::test::mock_verbs

namespace kolo::test {

using namespace mock_verbs;

void MockVerbs::install() const {
  const int file = memfd_create("kolo-mock-verbs", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) std::abort();
  enter(file);
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&world->shared->mutex, &kind);
  world->shared->properties = *this;
  world->shared->next = 1000;
  setenv(kVariable, ("/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file)).c_str(), 1);
  start();
}

bool MockVerbs::join() {
  const char* const path = std::getenv(kVariable);
  const int file = path != nullptr ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return false;
  enter(file);
  start();
  return true;
}

std::string MockVerbs::remove() {
  drivers::setVerbs(nullptr);
  unsetenv(kVariable);
  {
    const std::lock_guard lock(world->mutex);
    world->isEnding = true;
    world->changed.notify_all();
  }
  if (world->engine.joinable()) world->engine.join();
  std::string problem = leftBehind();
  munmap(world->shared, sizeof(Shared));
  close(world->file);
  delete world;
  world = nullptr;
  return problem;
}

void MockVerbs::setPortDown(int nic, bool isDown) {
  {
    const SharedLock lock(*world->shared);
    world->shared->isDown[nic] = isDown;
  }
  raise(nic, isDown ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
}

void MockVerbs::setPathBroken(int nic, bool isBroken) {
  const SharedLock lock(*world->shared);
  world->shared->isBroken[nic] = isBroken;
}

void MockVerbs::setStalled(int nic, bool isStalled) {
  const std::lock_guard lock(world->mutex);
  world->isStalled[nic] = isStalled;
  world->changed.notify_all();
}

void MockVerbs::failWrite(ibv_wc_status status, bool isDelivered, int after, int nic) {
  const std::lock_guard lock(world->mutex);
  world->failure = {status, isDelivered, after, nic};
  world->hasFailed = false;
}

bool MockVerbs::hasFailed() {
  const std::lock_guard lock(world->mutex);
  return world->hasFailed;
}

void MockVerbs::failCall(const std::string& function, int errnum, int after) {
  const std::lock_guard lock(world->mutex);
  world->failingAfter = after;
  world->failingCall = function;
  world->failingErrno = errnum;
}

std::uint64_t MockVerbs::carried(int nic) {
  const std::lock_guard lock(world->mutex);
  return world->carried[nic];
}

std::uint64_t MockVerbs::messages() {
  const std::lock_guard lock(world->mutex);
  return world->messages;
}

int MockVerbs::pairs() {
  const std::lock_guard lock(world->mutex);
  return static_cast<int>(world->pairs.size());
}

int MockVerbs::pairsWith(int serviceLevel, int trafficClass) {
  const std::lock_guard lock(world->mutex);
  return static_cast<int>(std::count_if(world->pairs.begin(), world->pairs.end(), [&](const auto& pair) {
    return pair.shared->serviceLevel == serviceLevel && pair.shared->trafficClass == trafficClass;
  }));
}

int MockVerbs::registrations() {
  const std::lock_guard lock(world->mutex);
  return static_cast<int>(world->regions.size());
}

int MockVerbs::deviceRegistrations(bool byDmaBuf) {
  const std::lock_guard lock(world->mutex);
  const auto& all = world->regions;
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Region& region) {
    return region.isOfDevice && (region.mapping != nullptr) == byDmaBuf;
  }));
}

}  // namespace kolo::test
