// NCCL's all-reduce beside Kolo's, timed in the same way by the same threads on the same buffers. NCCL is opened at run
// time: KOLO_PEER_NCCL names its library, else the system has it. Several ranks on one device need NCCL 2.30 and
// NCCL_MULTI_RANK_GPU_ENABLE=1. By the mock Kolo itself stands in NCCL's place, to test this file.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "measure.h"
#include "measure_ranks.h"

namespace kolo::test {
namespace {

// Of nccl.h, version 2.30.
struct NcclId {
  char bytes[128];
};
constexpr int kNcclFloat32 = 7, kNcclBfloat16 = 9, kNcclSum = 0, kNcclSymmetric = 1, kNcclSuccess = 0;

struct Nccl {
  int (*getVersion)(int* version);
  const char* (*getErrorString)(int result);
  int (*getUniqueId)(NcclId* id);
  int (*commInitRank)(void** comm, int ranks, NcclId id, int rank);
  int (*commDestroy)(void* comm);
  int (*allReduce)(const void* send, void* recv, std::size_t count, int datatype, int op, void* comm, CUstream stream);
  int (*windowRegister)(void* comm, void* buffer, std::size_t bytes, void** window, int flags);
  int (*windowDeregister)(void* comm, void* window);
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Why there is none, or "".
std::string open(Nccl& nccl) {
  const char* const named = std::getenv("KOLO_PEER_NCCL");
  void* const library = dlopen(named != nullptr ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const bool whole =
      find(library, "ncclGetVersion", nccl.getVersion) && find(library, "ncclGetErrorString", nccl.getErrorString) &&
      find(library, "ncclGetUniqueId", nccl.getUniqueId) && find(library, "ncclCommInitRank", nccl.commInitRank) &&
      find(library, "ncclCommDestroy", nccl.commDestroy) && find(library, "ncclAllReduce", nccl.allReduce) &&
      find(library, "ncclCommWindowRegister", nccl.windowRegister) &&
      find(library, "ncclCommWindowDeregister", nccl.windowDeregister);
  return whole ? "" : "this NCCL has no windows: it is older than 2.27";
}

int codeOf(koloResult_t result) { return result == koloSuccess ? kNcclSuccess : 1; }

Nccl koloInItsPlace() {
  static_assert(sizeof(NcclId) >= sizeof(koloUniqueId));
  return {
      .getVersion = [](int* version) { return *version = 23000, kNcclSuccess; },
      .getErrorString = [](int) { return koloGetLastError(nullptr); },
      .getUniqueId = [](NcclId* id) { return codeOf(koloGetUniqueId(reinterpret_cast<koloUniqueId*>(id))); },
      .commInitRank =
          [](void** comm, int ranks, NcclId id, int rank) {
            koloConfig_t config = KOLO_CONFIG_INITIALIZER;
            config.device = 0;
            return codeOf(koloCommInitRankConfig(reinterpret_cast<koloComm_t*>(comm), ranks,
                                                 *reinterpret_cast<koloUniqueId*>(&id), rank, &config));
          },
      .commDestroy = [](void* comm) { return codeOf(koloCommDestroy(static_cast<koloComm_t>(comm))); },
      .allReduce =
          [](const void* send, void* recv, std::size_t count, int datatype, int, void* comm, CUstream stream) {
            return codeOf(koloAllReduce(send, recv, count, datatype == kNcclFloat32 ? koloFloat32 : koloBfloat16,
                                        koloSum, static_cast<koloComm_t>(comm),
                                        reinterpret_cast<koloStream_t>(stream)));
          },
      .windowRegister =
          [](void* comm, void* buffer, std::size_t bytes, void** window, int) {
            return codeOf(koloWindowRegister(static_cast<koloComm_t>(comm), buffer, bytes,
                                             reinterpret_cast<koloWindow_t*>(window)));
          },
      .windowDeregister =
          [](void* comm, void* window) {
            return codeOf(koloWindowDeregister(static_cast<koloComm_t>(comm), static_cast<koloWindow_t>(window)));
          },
  };
}

// One rank of NCCL's, in the thread and the stream of one of Kolo's.
class NcclRank {
 public:
  NcclRank(const Nccl& nccl, Rank& rank, const NcclId& id) : nccl_(nccl), rank_(rank) {
    check(nccl.commInitRank(&comm_, rank.ranks, id, rank.number), "ncclCommInitRank");
  }
  ~NcclRank() { check(nccl_.commDestroy(comm_), "ncclCommDestroy"); }
  NcclRank(const NcclRank&) = delete;

  void measure(const Options& options, const Buffers& buffers, bool registered, Way way, std::size_t bytes) {
    nowMeasuring("nccl: all_reduce of " + std::to_string(bytes) + " bytes, " + nameOf(way));
    const std::size_t count = bytes / buffers.elementBytes();
    const int datatype = buffers.datatype() == koloFloat32 ? kNcclFloat32 : kNcclBfloat16;
    buffers.spoil();
    const Timing timing = timed(rank_, way, options.budgetMs(60), [&] {
      check(nccl_.allReduce(buffers.send(), buffers.recv(), count, datatype, kNcclSum, comm_, rank_.stream),
            "ncclAllReduce");
    });
    const int wrong = static_cast<int>(rank_.meeting.most(rank_.number, buffers.wrongSums(bytes)));
    if (rank_.number != 0) return;
    Line("nccl")
        .add("kind", "threads")
        .add("ranks", rank_.ranks)
        .add("collective", "all_reduce")
        .add("bytes", bytes)
        .add("datatype", koloDataTypeName(buffers.datatype()))
        .add("caches", "warm")
        .add("algorithm", "auto")
        .add("plan", "")
        .add("resident", false)
        .add("buffers", registered ? "registered" : "plain")
        .add("way", nameOf(way))
        .add("us", timing.us, 3)
        .add("least_us", timing.leastUs, 3)
        .add("calls", timing.calls)
        .add("algbw_gbps", static_cast<double>(bytes) / timing.us / 1e3, 3)
        .add("wrong", wrong)
        .print();
  }

  // Whether NCCL takes both buffers for windows, on all ranks alike.
  bool enter(const Buffers& buffers, std::size_t bytes) {
    int failures = 0;
    for (void* const buffer : {buffers.send(), buffers.recv()}) {
      void* window = nullptr;
      const int result = nccl_.windowRegister(comm_, buffer, bytes, &window, kNcclSymmetric);
      if (result == kNcclSuccess && window != nullptr) windows_.push_back(window);
      else ++failures;
    }
    return rank_.meeting.most(rank_.number, failures) == 0;
  }
  void leave() {
    for (void* const window : windows_) check(nccl_.windowDeregister(comm_, window), "ncclCommWindowDeregister");
    windows_.clear();
  }

 private:
  void check(int result, const char* what) const {
    if (result != kNcclSuccess) fail(std::string(what) + ": " + nccl_.getErrorString(result));
  }

  const Nccl& nccl_;
  Rank& rank_;
  void* comm_ = nullptr;
  std::vector<void*> windows_;
};

void measureRank(const Options& options, NcclRank& nccl, Rank& rank) {
  const std::vector<std::size_t> sizes =
      options.quick ? std::vector<std::size_t>{8, 8 * kKiB}
                    : std::vector<std::size_t>{8, 8 * kKiB, 64 * kKiB, kMiB, 16 * kMiB, 256 * kMiB};
  for (const bool registered : {false, true}) {  // windows last: what NCCL does not take may end its communicator
    for (const koloDataType_t datatype : {koloFloat32, koloBfloat16}) {
      const Buffers buffers(rank, sizes.back(), registered, datatype);
      if (registered && !nccl.enter(buffers, sizes.back())) {
        if (rank.number == 0) Line("nccl").add("missing", "windows of Kolo's memory").print();
      } else {
        for (const Way way : {Way::kStream, Way::kGraph}) {  // the first calls make what is not captured
          for (const std::size_t bytes : sizes) nccl.measure(options, buffers, registered, way, bytes);
        }
      }
      nccl.leave();
    }
  }
}

}  // namespace

void measureNccl(const Options& options) {
  nowMeasuring("nccl: opening it");
  Nccl nccl{};
  const std::string missing = options.mock ? "" : open(nccl);
  if (options.mock) nccl = koloInItsPlace();
  int version = 0;
  if (missing.empty() && nccl.getVersion(&version) == kNcclSuccess) Line("nccl").add("version", version).print();
  const bool serves = missing.empty() && version >= 23000;
  if (!serves) {
    Line("nccl")
        .add("missing", missing.empty() ? "NCCL 2.30, which serves several ranks on one device" : missing)
        .print();
    return;
  }
  for (const int ranks : options.ranks.empty() ? std::vector<int>{2} : options.ranks) {
    NcclId id;
    if (nccl.getUniqueId(&id) != kNcclSuccess) fail("ncclGetUniqueId");
    onThreads({.device = options.device, .ranks = ranks}, [&](Rank& rank) {
      NcclRank mine(nccl, rank, id);
      measureRank(options, mine, rank);
    });
  }
}

}  // namespace kolo::test
