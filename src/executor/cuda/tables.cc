#include "executor/cuda/tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "executor/cuda/lists.h"

namespace kolo::executor::cuda {
namespace {

constexpr std::uint64_t kLeastTable = 4 << 10;
constexpr std::uint64_t kMoreTables = 2 << 20;  // bytes that are added at once

// Calls visit(array, at) for each array of lengths, which lies so many bytes from the table's begin. Returns the bytes
// of the table. segments: of the bytes that they have.
template <class Work, class Visit>
std::uint64_t eachLength(Work& work, std::uint64_t segments, const Visit& visit) {
  std::uint64_t at = segments;
  for (auto* const layout : {&work.sendLayout, &work.recvLayout}) {
    if (layout->counts == nullptr) continue;
    for (auto* const array : {&layout->counts, &layout->displs}) {
      visit(*array, at);
      at += static_cast<std::uint64_t>(work.ranks) * sizeof(std::uint64_t);
    }
  }
  return at;
}

}  // namespace

Result<std::shared_ptr<Table>> Tables::make(const device::Work& work, std::uint64_t edgesAt, std::uint64_t ended) {
  const std::uint64_t forSegments = work.segments->bytes, forLengths = static_cast<std::uint64_t>(work.ranks) * 8;
  const std::uint64_t bytes = eachLength(work, forSegments, [](const auto&, std::uint64_t) {});
  std::vector<unsigned char> image(bytes);
  std::memcpy(image.data(), work.segments, forSegments);
  device::Segments head = *work.segments;
  head.edgesAt = edgesAt;
  std::memcpy(image.data(), &head, sizeof head);
  eachLength(work, forSegments,
             [&](const std::uint64_t* array, std::uint64_t at) { std::memcpy(image.data() + at, array, forLengths); });
  KOLO_ASSIGN(std::shared_ptr<Table> table, find(bytes, ended));
  KOLO_TRY(gpu_->upload(reinterpret_cast<CUdeviceptr>(table->begin), image.data(), bytes));
  return table;
}

void Tables::use(const Table& table, device::Work& work) {
  eachLength(work, work.segments->bytes, [&](const std::uint64_t*& array, std::uint64_t at) {
    array = reinterpret_cast<const std::uint64_t*>(table.begin + at);
  });
  work.segments = reinterpret_cast<const device::Segments*>(table.begin);
}

// One that nobody uses, in all its members as new but for its place.
Result<std::shared_ptr<Table>> Tables::find(std::uint64_t bytes, std::uint64_t ended) {
  const std::uint64_t each = std::bit_ceil(std::max(bytes, kLeastTable));
  Shelf& shelf = shelves_[each];
  for (std::shared_ptr<Table>& table : shelf) {
    const bool isHeld = table.use_count() > 1;
    const bool isInGraph =
        table->graphs != nullptr && table->graphs->load(std::memory_order_acquire) != 0;  // [graph gone]
    if (isHeld || isInGraph || table->lastLaunch > ended) continue;
    *table = {.begin = table->begin, .lastLaunch = 0, .capture = 0, .graphs = nullptr};
    return table;
  }
  KOLO_ASSIGN(Lent more, gpu_->lend(Lent::Where::kMapped, std::max(each, kMoreTables)));
  const Lent& whole = memory_.emplace_back(std::move(more));
  for (std::uint64_t at = 0; at + each <= whole.bytes(); at += each) {
    shelf.push_back(std::make_shared<Table>());
    shelf.back()->begin = whole.as() + at;
  }
  return shelf.back();
}

// A capture has a graph of its own: its launches from one table keep it once.
Status Tables::keepForGraph(Table& table, std::uint64_t capture, CUgraph graph) const {
  if (table.capture == capture) return {};
  if (table.graphs == nullptr) table.graphs = std::make_shared<std::atomic<int>>(0);
  table.graphs->fetch_add(1, std::memory_order_relaxed);
  KOLO_TRY(tellWhenGone(gpu_->driver(), graph, [graphs = table.graphs] {
    graphs->fetch_sub(1, std::memory_order_release);  // [graph gone]
  }));
  table.capture = capture;
  return {};
}

void Tables::setMayStayInUse() {
  for (Lent& memory : memory_) memory.setMayStayInUse();
}

}  // namespace kolo::executor::cuda
