#include "executor/cuda/lists.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

namespace kolo::executor::cuda {
namespace {

// A list has 3 KiB or so and more; most programs need no more lists than there are from the start.
constexpr std::uint64_t kShortList = 8 << 10, kLongList = 128 << 10;
constexpr std::uint64_t kShortLists = 1 << 20, kLongLists = 1 << 20;  // bytes of them all
constexpr std::uint64_t kMoreLists = 2 << 20;                         // bytes that are added at once

// Calls visit(array, bytes) for each array in the host's memory that the description points to. The blocks of a list
// are in its table (executor/cuda/tables.h), in memory of the device that the host cannot read.
template <class Work, class Visit>
void eachArray(Work& work, const Visit& visit) {
  const auto take = [&](auto& array) {
    if (array != nullptr) visit(array, static_cast<std::uint64_t>(work.ranks) * sizeof *array);
  };
  if (work.segments == nullptr) {
    for (auto* const layout : {&work.sendLayout, &work.recvLayout}) {
      take(layout->counts);
      take(layout->displs);
    }
  }
  take(work.header.countTo);
  take(work.header.countFrom);
}

}  // namespace

Lists::~Lists() {
  const Gpu::Current current(*gpu_);
  for (const auto& [bytes, shelf] : shelves_) {
    for (const auto& list : shelf.lists) {
      if (list->used != nullptr) (void)gpu_->driver().cuEventDestroy(list->used);
    }
  }
}

Status Lists::allocate() {
  for (const auto& [all, each] : {std::pair(kShortLists, kShortList), std::pair(kLongLists, kLongList)}) {
    KOLO_ASSIGN(Lent memory, gpu_->lend(Lent::Where::kHost, all));
    KOLO_TRY(add(std::move(memory), each, false));
  }
  return {};
}

// Of so many bytes each. REQUIRES: the context.
Status Lists::add(Lent memory, std::uint64_t bytes, bool areOnDevice) {
  const Lent& whole = memory_.emplace_back(std::move(memory));
  Shelf& shelf = shelves_[bytes];
  shelf.next = shelf.lists.size();
  for (std::uint64_t at = 0; at + bytes <= whole.bytes(); at += bytes) {
    shelf.lists.push_back(std::make_unique<List>());  // owned before anything in it can fail
    List& list = *shelf.lists.back();
    list.begin = whole.as() + at;
    list.isOnDevice = areOnDevice;
    KOLO_CUDA(gpu_->driver(), cuEventCreate, (&list.used, CU_EVENT_DISABLE_TIMING));
  }
  return {};
}

// nullptr: none is found.
Lists::List* Lists::freeOf(Shelf& shelf) const {
  for (std::size_t i = 0; i < shelf.lists.size(); ++i) {
    const std::size_t at = (shelf.next + i) % shelf.lists.size();
    List& list = *shelf.lists[at];
    if (list.inGraph != nullptr && list.inGraph->load(std::memory_order_acquire)) continue;  // [graph gone]
    list.inGraph = nullptr;
    if (gpu_->driver().cuEventQuery(list.used) != CUDA_SUCCESS) return nullptr;
    shelf.next = at + 1;
    return &list;
  }
  return nullptr;
}

Result<Lists::List*> Lists::take(std::uint64_t bytes) {
  const Gpu::Current current(*gpu_);
  for (auto shelf = shelves_.lower_bound(bytes); shelf != shelves_.end(); ++shelf) {
    if (List* const list = freeOf(shelf->second); list != nullptr) return list;
  }
  const std::uint64_t each = std::max(std::bit_ceil(bytes), kLongList);
  KOLO_ASSIGN(Lent more, gpu_->lend(Lent::Where::kMapped, std::max(each, kMoreLists)));
  KOLO_TRY(add(std::move(more), each, true));
  return freeOf(shelves_[each]);
}

std::uint64_t Lists::arrayBytes(const device::Work& work) {
  std::uint64_t bytes = 0;
  eachArray(work, [&](const auto&, std::uint64_t size) { bytes += size; });
  return bytes;
}

Status Lists::put(std::span<device::Work> works, std::uint64_t bytes, const List& list) const {
  std::vector<unsigned char> image(list.isOnDevice ? bytes : 0);
  unsigned char* const to = list.isOnDevice ? image.data() : list.begin;
  std::uint64_t at = works.size_bytes();
  for (device::Work& work : works) {
    eachArray(work, [&](auto& array, std::uint64_t size) {
      std::memcpy(to + at, array, size);
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(list.begin + at);
      at += size;
    });
  }
  std::memcpy(to, works.data(), works.size_bytes());
  return list.isOnDevice ? gpu_->upload(reinterpret_cast<CUdeviceptr>(list.begin), to, bytes) : Status();
}

// The memory waits here for its next use, or for the end.
Status Lists::keepForGraph(List& list, CUgraph graph) {
  list.inGraph = std::make_shared<std::atomic<bool>>(true);
  return tellWhenGone(gpu_->driver(), graph, [flag = list.inGraph] {
    flag->store(false, std::memory_order_release);  // [graph gone]
  });
}

void Lists::setMayStayInUse() {
  for (Lent& memory : memory_) memory.setMayStayInUse();
}

Status tellWhenGone(const drivers::CudaDriver& driver, CUgraph graph, std::function<void()> tell) {
  using Tell = std::function<void()>;
  auto held = std::make_unique<Tell>(std::move(tell));
  CUuserObject object = nullptr;
  const auto gone = [](void* told) {
    const std::unique_ptr<Tell> own(static_cast<Tell*>(told));
    (*own)();
  };
  KOLO_CUDA(driver, cuUserObjectCreate, (&object, held.get(), gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  (void)held.release();
  KOLO_CUDA(driver, cuGraphRetainUserObject, (graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  return {};
}

}  // namespace kolo::executor::cuda
