#include "mpi/on_host.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>

#include "mpi/datatypes.h"
#include "mpi/errors.h"
#include "mpi/pool.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

using gpu::Pieces;

// A run of data, from an address on.
struct Run {
  std::ptrdiff_t begin;
  std::size_t bytes;
};

// The data of one element, with the gaps between them.
struct Bounds {
  MPI_Aint begin, bytes;
};
Bounds boundsOf(MPI_Datatype datatype) {
  Bounds bounds{};
  PMPI_Type_get_true_extent(datatype, &bounds.begin, &bounds.bytes);
  return bounds;
}

// The runs of one element that has gaps, lowest first: those of the bytes that the MPI writes when it unpacks.
std::vector<Run> runsOf(MPI_Datatype datatype, const Form& form, const Bounds& bounds) {
  std::vector<unsigned char> ones(form.size, 1), mask(static_cast<std::size_t>(bounds.bytes));
  unpack({nullptr, datatype, MPI_COMM_SELF}, ones.data(), ones.size(), mask.data() - bounds.begin);
  std::vector<Run> runs;
  for (std::size_t at = 0; at < mask.size();) {
    const std::size_t begin = at;
    while (at < mask.size() && mask[at] == mask[begin]) ++at;
    if (mask[begin] != 0) runs.push_back({bounds.begin + static_cast<std::ptrdiff_t>(begin), at - begin});
  }
  return runs;
}

// Puts together what lies one behind the other, or with equal gaps. Offsets are from `base` on.
class Gathering {
 public:
  explicit Gathering(std::ptrdiff_t base) : base_(base) {}

  void add(const Run& run) {
    const auto offset = static_cast<std::size_t>(run.begin - base_);
    if (!pieces_.empty()) {
      Pieces& last = pieces_.back();
      const std::size_t end = last.offset + (last.rows - 1) * last.pitch + last.width;
      if (last.rows == 1 && offset == end) {
        last.width += run.bytes;
        return;
      }
      if (run.bytes == last.width && offset >= end) {
        if (last.rows == 1) last.pitch = offset - last.offset;
        if (offset == last.offset + last.rows * last.pitch) {
          ++last.rows;
          return;
        }
      }
    }
    pieces_.push_back({offset, run.bytes, run.bytes, 1});
  }
  // Adds the run of each of so many elements, which lie `distance` apart. The elements may lie in any order, but not
  // within each other.
  void addRows(const Run& run, std::ptrdiff_t distance, std::size_t count) {
    const std::ptrdiff_t first =
        distance < 0 ? run.begin + distance * static_cast<std::ptrdiff_t>(count - 1) : run.begin;
    const auto pitch = static_cast<std::size_t>(distance < 0 ? -distance : distance);
    if (pitch == run.bytes || count == 1) {
      add({first, run.bytes * count});
    } else if (pitch > run.bytes) {
      pieces_.push_back({static_cast<std::size_t>(first - base_), run.bytes, pitch, count});
    } else {
      for (std::size_t i = 0; i < count; ++i) add({first + static_cast<std::ptrdiff_t>(i * pitch), run.bytes});
    }
  }
  std::vector<Pieces> take() { return std::move(pieces_); }

 private:
  std::ptrdiff_t base_;
  std::vector<Pieces> pieces_;
};

// The runs of all elements of the parts, in few pieces: run by run, or, where that takes more pieces than there are
// elements, element by element.
template <class Parts>
std::vector<Pieces> gather(const Parts& parts, const std::vector<Run>& runs, MPI_Aint extent, std::ptrdiff_t base) {
  Gathering byRun(base), byElement(base);
  std::size_t elements = 0;
  for (const auto& part : parts) {
    if (part.count <= 0) continue;
    elements += static_cast<std::size_t>(part.count);
    for (const Run& run : runs)
      byRun.addRows({part.first * extent + run.begin, run.bytes}, extent, static_cast<std::size_t>(part.count));
  }
  std::vector<Pieces> pieces = byRun.take();
  if (pieces.size() <= elements) return pieces;
  for (const auto& part : parts) {
    for (MPI_Count i = 0; i < part.count; ++i) {
      for (const Run& run : runs) byElement.add({(part.first + i) * extent + run.begin, run.bytes});
    }
  }
  return byElement.take();
}

// Where requests of the MPI's own leave what arrives.
class Awaited {
 public:
  bool isAny() const { return count_.load(std::memory_order_relaxed) != 0; }  // of those that this thread can know of
  void add(MPI_Request request, std::unique_ptr<OnHost> buffers) {
    const std::lock_guard lock(mutex_);
    all_[keyOf(request)] = std::move(buffers);
    count_.store(all_.size(), std::memory_order_relaxed);
  }
  std::unique_ptr<OnHost> take(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    auto node = all_.extract(keyOf(request));
    count_.store(all_.size(), std::memory_order_relaxed);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

 private:
  std::atomic<std::size_t> count_{0};
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::unique_ptr<OnHost>> all_;
};

// Never destroyed, as sessions.
Awaited& awaited() {
  static auto* const made = new Awaited;
  return *made;
}

}  // namespace

// ---- the communicator, which is asked only where a process uses GPUs

int OnHost::rank() const {
  int rank = 0;
  PMPI_Comm_rank(comm_, &rank);
  return rank;
}

int OnHost::ownRanks() const {
  int ranks = 0;
  PMPI_Comm_size(comm_, &ranks);
  return ranks;
}

bool OnHost::isOfTwoGroups() const {
  int between = 0;
  PMPI_Comm_test_inter(comm_, &between);
  return between != 0;
}

// With whom blocks are exchanged: of two groups those of the other one.
MPI_Count OnHost::otherRanks() const {
  if (!isOfTwoGroups()) return ownRanks();
  int ranks = 0;
  PMPI_Comm_remote_size(comm_, &ranks);
  return ranks;
}

// Between two groups, `root` is a rank of the other one, or says that this rank is it, or that it has no part.
OnHost::Role OnHost::roleIn(const Flow& flow) const {
  if (!flow.isRooted()) return {true, true};
  if (isOfTwoGroups()) return {flow.root == MPI_ROOT, flow.root >= 0};
  return {flow.root == rank(), true};
}

// ---- what a collective reads and writes

// Between two groups, a reduce-scatter's blocks are for this rank's own.
std::vector<OnHost::Data> OnHost::dataOf(const Side& side, bool isReduced) const {
  using enum Side::Blocks;
  if (side.blocks == kOne) return {{side.datatype, {{0, side.count}}}};
  const bool areArrays = side.counts.isGiven() && (side.blocks <= kInARow || side.displs.isGiven()) &&
                         (side.blocks != kTyped || side.datatypes != nullptr);
  const MPI_Count ranks = isReduced ? ownRanks() : otherRanks();
  if (side.blocks == kEach) return {{side.datatype, {{0, side.count * ranks}}}};
  if (!areArrays) return {};
  if (side.blocks == kOwn) return {{side.datatype, {{0, side.counts[rank()]}}}};
  std::vector<Data> each;
  Data all{side.datatype, {}};
  MPI_Count end = 0;
  for (int i = 0; i < ranks; end += side.counts[i++]) {
    const MPI_Count count = side.counts[i];
    if (side.blocks == kTyped) {
      each.push_back({count != 0 ? side.datatypes[i] : MPI_DATATYPE_NULL, {{0, count}}, side.displs[i]});
    } else {
      all.parts.push_back({side.blocks == kInARow ? end : side.displs[i], count});
    }
  }
  if (side.blocks != kTyped) each.push_back(std::move(all));
  return each;
}

// A reduce-scatter in place has its input where it gets its result. Of an exclusive scan, the first rank's result stays
// as it is.
void OnHost::replaceAll(const Collective& its) {
  const Role role = roleIn(its.flow);
  const bool gives = its.flow.kind == Flow::Kind::kFromRoot ? role.isRoot : role.isMember;
  const bool takes = its.flow.kind == Flow::Kind::kToRoot ? role.isRoot : role.isMember;
  const bool isReduced = its.op != nullptr, isOneBuffer = its.given.argument == its.taken.argument;
  if (its.given.blocks == Side::Blocks::kNone) return;
  const bool isInPlace = its.given.isInPlace();
  if (gives && !isInPlace) replace(*its.given.argument, dataOf(its.given, isReduced), Use::kRead);
  if (!takes || (gives && isOneBuffer)) return;
  const bool isRead = isInPlace || its.name == Hook::kExscan;
  replace(*its.taken.argument, dataOf(isInPlace && isReduced ? its.given : its.taken, isReduced),
          isRead ? Use::kBoth : Use::kWritten);
}

// ---- copies

std::unique_ptr<OnHost> OnHost::of(Hook hook, const Collective& its) {
  auto buffers = std::unique_ptr<OnHost>(new OnHost(hook, its.comm));
  buffers->replaceAll(its);
  return buffers->copies_.empty() ? nullptr : std::move(buffers);
}

OnHost::~OnHost() {
  for (const Copy& copy : copies_) {
    if (!pool().give(copy.memory)) std::free(copy.memory);
  }
}

// Where it lies at the same distance from a cache line as the program's does.
void OnHost::replace(void*& buffer, std::span<const Data> all, Use use) {
  if (buffer == MPI_IN_PLACE) return;
  struct Shaped {
    const Data& data;
    Form form;
    bool isPair;  // what pairs have between and behind their parts goes along with them in reductions
    Bounds bounds;
  };
  std::vector<Shaped> shaped;
  std::ptrdiff_t begin = PTRDIFF_MAX, end = PTRDIFF_MIN;
  for (const Data& data : all) {
    if (data.datatype == MPI_DATATYPE_NULL) continue;
    const Form form = formOf(data.datatype);
    const bool isPair = !form.isRun && findNumber(data.datatype) != nullptr;
    const Bounds bounds = form.isRun || isPair ? Bounds{0, form.extent} : boundsOf(data.datatype);
    for (const Part& part : data.parts) {
      if (part.count < 0) return;
      if (part.count == 0 || form.size == 0) continue;
      const std::ptrdiff_t first = data.begin + part.first * form.extent + bounds.begin,
                           last = first + (part.count - 1) * form.extent;
      begin = std::min({begin, first, last});
      end = std::max({end, first + bounds.bytes, last + bounds.bytes});
    }
    if (form.size != 0) shaped.push_back({data, form, isPair, bounds});
  }
  if (begin >= end) return;
  auto* const device =
      reinterpret_cast<unsigned char*>(reinterpret_cast<std::uintptr_t>(buffer) + static_cast<std::uintptr_t>(begin));
  if (!gpu::owns(device)) return;

  std::vector<Pieces> described, read;
  const auto append = [](std::vector<Pieces>& to, std::vector<Pieces> pieces) {
    to.insert(to.end(), pieces.begin(), pieces.end());
  };
  for (const auto& [data, form, isPair, bounds] : shaped) {
    const std::vector<Run> runs = form.isRun ? std::vector<Run>{{0, form.size}} : runsOf(data.datatype, form, bounds);
    append(described, gather(data.parts, runs, form.extent, begin - data.begin));
    const std::vector<Run> whole = {{0, static_cast<std::size_t>(form.extent)}};
    if (use != Use::kWritten) append(read, gather(data.parts, isPair ? whole : runs, form.extent, begin - data.begin));
  }
  // With the buffer's own address, even if no data are there: so it is no other buffer's.
  const std::ptrdiff_t low = buffer == MPI_BOTTOM ? begin : std::min<std::ptrdiff_t>(begin, 0);
  const std::ptrdiff_t high = buffer == MPI_BOTTOM ? end : std::max<std::ptrdiff_t>(end, 1);
  constexpr std::size_t kLine = 64;
  const std::size_t shift = reinterpret_cast<std::uintptr_t>(device - (begin - low)) % kLine;
  const std::size_t bytes = static_cast<std::size_t>(high - low) + shift;
  void* memory = pool().take(bytes, kLine);
  if (memory == nullptr) memory = std::aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
  if (memory == nullptr) throw std::bad_alloc();
  copies_.push_back({memory, static_cast<unsigned char*>(memory) + shift + (begin - low), device, {}});
  Copy& copy = copies_.back();
  if (use != Use::kWritten) {
    const char* const error = gpu::toHost(copy.data, device, read);
    if (error != nullptr) throw MpiError{raise(comm_, explain("from", error))};
  }
  if (use != Use::kRead) copy.written = std::move(described);
  buffer = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(copy.data) - static_cast<std::uintptr_t>(begin));
  countStaged();
}

int OnHost::store() const {
  for (const Copy& copy : copies_) {
    if (const char* const error = gpu::fromHost(copy.device, copy.data, copy.written)) return explain("to", error);
  }
  return MPI_SUCCESS;
}

int OnHost::explain(const char* direction, const char* error) const {
  complain(std::string(nameOf(hook_)) + ": copying " + direction + " a GPU's memory: " + error);
  return MPI_ERR_BUFFER;
}

// ---- requests of the MPI's own

// MPIs give the same request to all collectives that are over at once.
int storeWhenComplete(MPI_Request request, std::unique_ptr<OnHost> buffers) {
  int isComplete = 0;
  const int code = underneath().Request_get_status(request, &isComplete, MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS && isComplete != 0) return buffers->store();
  awaited().add(request, std::move(buffers));
  return MPI_SUCCESS;
}

// They are taken before the MPI may give their requests' handles to others, and those put back that go on.
Arrivals::Arrivals(int count, const MPI_Request* requests) : requests_(requests) {
  if (requests == nullptr || !awaited().isAny()) return;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    if (std::unique_ptr<OnHost> buffers = awaited().take(requests[i]))
      awaited_.push_back({i, requests[i], std::move(buffers)});
  }
}

int Arrivals::store(int code, bool areComplete) {
  const bool hasData = code == MPI_SUCCESS || code == MPI_ERR_IN_STATUS;
  int stored = MPI_SUCCESS;
  for (auto& [i, request, buffers] : awaited_) {
    if (!areComplete && requests_[i] != MPI_REQUEST_NULL) {
      awaited().add(request, std::move(buffers));
    } else if (const int its = hasData ? buffers->store() : MPI_SUCCESS; its != MPI_SUCCESS) {
      stored = its;
    }
  }
  awaited_.clear();
  return code == MPI_SUCCESS && stored != MPI_SUCCESS ? raise(MPI_COMM_SELF, stored) : code;
}

}  // namespace kolo::mpi
