#include "perf/tensor_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "perf/failure.h"
#include "perf/machine.h"
#include "perf/names.h"
#include "perf/operation.h"
#include "perf/patterns.h"
#include "perf/sizes.h"

namespace kolo::perf {
namespace {

constexpr std::uint64_t kListSeed = 161;
constexpr size_t kAlignment = 64;  // of each tensor, as allocators align

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Hands out parts of a buffer, one after the other.
class Arena {
 public:
  explicit Arena(std::byte* begin) : next_(begin) {}
  std::byte* take(size_t bytes) {
    std::byte* const taken = next_;
    next_ += aligned(bytes);
    return taken;
  }

 private:
  std::byte* next_;
};

struct ListMemory {
  Arena inputs, outputs, packedInputs, packedOutputs;
};

struct Call {
  koloCollective_t collective;
  koloComm_t comm;
  Ranks ranks;

  // Whether a rank gives, or gets, only its own part of a tensor.
  bool givesPart() const { return collective == koloCollectiveAllGather; }
  bool getsPart() const { return collective == koloCollectiveReduceScatter; }
};

// A tensor with its parts, and this rank's memory for it.
struct Placed {
  Tensor tensor;
  std::vector<size_t> parts;  // [rank] elements
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t inputElements = 0, outputElements = 0;

  size_t elementBytes() const { return koloDataTypeSize(tensor.datatype); }
  size_t inputBytes() const { return inputElements * elementBytes(); }
  size_t outputBytes() const { return outputElements * elementBytes(); }
};

std::vector<size_t> partsOf(size_t count, int ranks) {
  const auto n = static_cast<size_t>(ranks);
  std::vector<size_t> parts(n, count / n);
  for (size_t rank = 0; rank < count % n; ++rank) ++parts[rank];
  return parts;
}

// The collective on one buffer. counts: one for each rank; of an all-reduce, one.
void runSingle(const Call& call, const std::byte* input, std::byte* output, const size_t* counts,
               koloDataType_t datatype) {
  koloResult_t result = koloSuccess;
  if (call.collective == koloCollectiveAllReduce)
    result = koloAllReduce(input, output, *counts, datatype, koloSum, call.comm, nullptr);
  else if (call.collective == koloCollectiveAllGather)
    result = koloAllGatherv(input, output, counts, nullptr, datatype, call.comm, nullptr);
  else result = koloReduceScatterv(input, output, counts, nullptr, datatype, koloSum, call.comm, nullptr);
  check(result, koloCollectiveName(call.collective));
}

// The tensors of one datatype of a bucket, packed: the ranks' blocks one after the other, in each the parts of all
// tensors. An all-reduce has one block.
class Packed {
 public:
  Packed(const Call& call, std::vector<Placed*> tensors, ListMemory& memory)
      : call_(call), tensors_(std::move(tensors)) {
    blocks_.assign(call.collective == koloCollectiveAllReduce ? 1 : static_cast<size_t>(call.ranks.count), 0);
    size_t inputBytes = 0, outputBytes = 0;
    for (const Placed* tensor : tensors_) {
      for (size_t block = 0; block < blocks_.size(); ++block) blocks_[block] += part(*tensor, block);
      inputBytes += tensor->inputBytes();
      outputBytes += tensor->outputBytes();
    }
    input_ = memory.packedInputs.take(inputBytes);
    output_ = memory.packedOutputs.take(outputBytes);
  }

  void run() const {
    pack();
    runSingle(call_, input_, output_, blocks_.data(), tensors_.front()->tensor.datatype);
    unpack();
  }

 private:
  size_t part(const Placed& tensor, size_t block) const {
    return blocks_.size() == 1 && call_.collective == koloCollectiveAllReduce ? tensor.tensor.count
                                                                              : tensor.parts[block];
  }
  // Visits the parts in the order of a buffer that has all blocks: the tensor, where its part begins, its bytes, and
  // where it lies in the buffer.
  template <class Visit>
  void eachPart(Visit visit) const {
    std::vector<size_t> begins(tensors_.size());
    size_t at = 0;
    for (size_t block = 0; block < blocks_.size(); ++block) {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        const size_t bytes = part(*tensors_[i], block) * tensors_[i]->elementBytes();
        visit(*tensors_[i], begins[i], bytes, at);
        begins[i] += bytes;
        at += bytes;
      }
    }
  }
  void pack() const {
    if (!call_.givesPart()) {
      eachPart([this](const Placed& tensor, size_t begin, size_t bytes, size_t at) {
        std::memcpy(input_ + at, tensor.input + begin, bytes);
      });
      return;
    }
    size_t at = 0;
    for (const Placed* tensor : tensors_) {
      std::memcpy(input_ + at, tensor->input, tensor->inputBytes());
      at += tensor->inputBytes();
    }
  }
  void unpack() const {
    if (!call_.getsPart()) {
      eachPart([this](const Placed& tensor, size_t begin, size_t bytes, size_t at) {
        std::memcpy(tensor.output + begin, output_ + at, bytes);
      });
      return;
    }
    size_t at = 0;
    for (const Placed* tensor : tensors_) {
      std::memcpy(tensor->output, output_ + at, tensor->outputBytes());
      at += tensor->outputBytes();
    }
  }

  Call call_;
  std::vector<Placed*> tensors_;
  std::vector<size_t> blocks_;  // elements of each
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

// One bucket, with the memory that each way needs.
class Bucket {
 public:
  Bucket(const Call& call, const std::vector<Tensor>& tensors, ListMemory& memory) : call_(call) {
    for (const Tensor& tensor : tensors) {
      Placed placed{.tensor = tensor, .parts = partsOf(tensor.count, call.ranks.count)};
      const size_t own = placed.parts[static_cast<size_t>(call.ranks.self)];
      placed.inputElements = call.givesPart() ? own : tensor.count;
      placed.outputElements = call.getsPart() ? own : tensor.count;
      placed.input = memory.inputs.take(placed.inputBytes());
      placed.output = memory.outputs.take(placed.outputBytes());
      tensors_.push_back(std::move(placed));
    }
    for (Placed& placed : tensors_) items_.push_back(itemOf(placed));
    for (int number = 0; number < koloNumDatatypes; ++number) {
      std::vector<Placed*> ofType;
      for (Placed& placed : tensors_) {
        if (placed.tensor.datatype == number) ofType.push_back(&placed);
      }
      if (!ofType.empty()) packed_.emplace_back(call, std::move(ofType), memory);
    }
  }
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  void runList() const {
    koloResult_t result = koloSuccess;
    if (call_.collective == koloCollectiveAllReduce)
      result = koloAllReduceList(items_.data(), items_.size(), koloSum, call_.comm, nullptr);
    else if (call_.collective == koloCollectiveAllGather)
      result = koloAllGatherList(items_.data(), items_.size(), call_.comm, nullptr);
    else result = koloReduceScatterList(items_.data(), items_.size(), koloSum, call_.comm, nullptr);
    check(result, "list");
  }
  void runPacked() const {
    for (const Packed& packed : packed_) packed.run();
  }
  void runSingly() const {
    for (const Placed& placed : tensors_) {
      const size_t* const counts =
          call_.collective == koloCollectiveAllReduce ? &placed.tensor.count : placed.parts.data();
      runSingle(call_, placed.input, placed.output, counts, placed.tensor.datatype);
    }
  }

  void fillInputs() const {
    for (size_t i = 0; i < tensors_.size(); ++i)
      fill(tensors_[i].input, tensors_[i].inputElements, tensors_[i].elementBytes(),
           given(tensors_[i], call_.ranks.self), i);
  }
  void clearOutputs() const {
    for (const Placed& placed : tensors_) std::memset(placed.output, 0xa5, placed.outputBytes());
  }
  size_t wrong() const {
    size_t count = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) count += wrongIn(tensors_[i], i);
    return count;
  }

 private:
  koloItem_t itemOf(const Placed& placed) const {
    koloItem_t item{};
    item.sendbuf = placed.input;
    item.recvbuf = placed.output;
    item.sendtype = item.transfertype = item.recvtype = placed.tensor.datatype;
    if (call_.collective == koloCollectiveAllReduce) item.count = placed.tensor.count;
    else item.counts = placed.parts.data();
    return item;
  }
  Table given(const Placed& placed, int rank) const {
    if (call_.givesPart()) return movedTable(placed.tensor.datatype, rank, kListSeed);
    return operandTable(placed.tensor.datatype, koloSum, rank, call_.ranks.count, kListSeed);
  }
  // phase: of the tensor's pattern, so that tensors that are exchanged are seen.
  size_t wrongIn(const Placed& placed, size_t phase) const {
    const koloDataType_t type = placed.tensor.datatype;
    if (call_.givesPart()) {
      size_t count = 0, begin = 0;
      for (int rank = 0; rank < call_.ranks.count; ++rank) {
        const size_t part = placed.parts[static_cast<size_t>(rank)];
        count += countWrong(placed.output + begin * placed.elementBytes(), part, type, given(placed, rank), phase,
                            Compare::kBytes);
        begin += part;
      }
      return count;
    }
    if (call_.getsPart()) {
      for (int rank = 0; rank < call_.ranks.self; ++rank) phase += placed.parts[static_cast<size_t>(rank)];
    }
    return countWrong(placed.output, placed.outputElements, type,
                      foldedTable(type, koloSum, call_.ranks.count, kListSeed), phase, Compare::kNumbers);
  }

  Call call_;
  std::vector<Placed> tensors_;
  std::vector<koloItem_t> items_;
  std::vector<Packed> packed_;
};

std::vector<std::vector<Tensor>> bucketsOf(const std::vector<Tensor>& tensors, size_t capBytes) {
  std::vector<std::vector<Tensor>> buckets;
  size_t filled = 0;
  for (const Tensor& tensor : tensors) {
    if (buckets.empty() || filled + tensor.bytes() > capBytes) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(tensor);
    filled += tensor.bytes();
  }
  return buckets;
}

size_t bytesOf(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// Of one of a rank's buffers, with the gaps between tensors.
size_t capacityFor(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += aligned(tensor.bytes());
  return bytes;
}

std::string datatypesOf(const std::vector<Tensor>& tensors) {
  const bool same = std::all_of(tensors.begin(), tensors.end(),
                                [&](const Tensor& tensor) { return tensor.datatype == tensors.front().datatype; });
  return same ? koloDataTypeName(tensors.front().datatype) : "mixed";
}

using Buckets = std::vector<std::unique_ptr<Bucket>>;

std::vector<Way> waysFor(const Buckets& buckets) {
  return {{"list",
           [&buckets] {
             for (const auto& bucket : buckets) bucket->runList();
           }},
          {"packed",
           [&buckets] {
             for (const auto& bucket : buckets) bucket->runPacked();
           }},
          {"single", [&buckets] {
             for (const auto& bucket : buckets) bucket->runSingly();
           }}};
}

Contents contentsOf(const Buckets& buckets) {
  return {[&buckets] {
            for (const auto& bucket : buckets) bucket->fillInputs();
          },
          [&buckets] {
            for (const auto& bucket : buckets) bucket->clearOutputs();
          },
          [&buckets] {
            size_t wrong = 0;
            for (const auto& bucket : buckets) wrong += bucket->wrong();
            return wrong;
          }};
}

// Bytes that all ranks read and write, beside each other way over the list's own. Packing reads and writes all inputs
// once more, unpacking all outputs. Single calls move what the list moves.
std::vector<double> atMost(koloCollective_t collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case koloCollectiveAllGather: return {2 + 1 / n, 1};  // (2n + 2 + 2n) / 2n, in whole tensors
    default: return {3, 1};  // all-reduce: (2n + 2n + 2n) / 2n; reduce-scatter: (n + 1 + 2n + 2) / (n + 1)
  }
}

}  // namespace

std::vector<Tensor> readTensors(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail("--list: cannot read {}", path);
  std::vector<Tensor> tensors;
  std::string line;
  for (size_t number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string count, type, more;
    if (!(words >> count)) continue;
    if (!(words >> type) || words >> more || count.find_first_not_of("0123456789") != std::string::npos ||
        count.size() > 12) {
      fail("--list: line {} of {} is \"{}\", expected elements and datatype, such as 2359296 float32", number, path,
           line);
    }
    tensors.push_back({static_cast<size_t>(std::stoull(count)), parseDatatype(type)});
  }
  if (bytesOf(tensors) == 0) fail("--list: {} has no tensors: expected lines of elements and datatype", path);
  return tensors;
}

void requireLists(const Options& options, int ranksHere) {
  for (const koloCollective_t collective : options.collectives) {
    if (std::find(kListCollectives.begin(), kListCollectives.end(), collective) == kListCollectives.end())
      fail("--list measures all_reduce, all_gather and reduce_scatter, not {}", koloCollectiveName(collective));
  }
  const std::vector<Tensor> tensors = readTensors(options.listFile);
  for (const Tensor& tensor : tensors) {
    if (koloRedOpIsDefined(koloSum, tensor.datatype) == 0)
      fail("--list: {} has tensors of {}, of which there are no sums", options.listFile,
           koloDataTypeName(tensor.datatype));
  }
  const double needed = 4.0 * static_cast<double>(capacityFor(tensors)) * ranksHere;
  if (needed > static_cast<double>(memoryBytes()))
    fail("--list: {} needs {:.1f} GiB for the four buffers of each of {} ranks, but the machine's memory is {}",
         options.listFile, needed / (1u << 30), ranksHere, formatBytes(memoryBytes()));
}

std::vector<Comparison> runLists(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange,
                                 bool print) {
  const std::vector<Tensor> tensors = readTensors(options.listFile);
  const size_t capacity = capacityFor(tensors);
  Ranks ranks{};
  check(koloCommUserRank(comm, &ranks.self), "koloCommUserRank");
  check(koloCommCount(comm, &ranks.count), "koloCommCount");
  WaysTable table(exchange, options, print);
  for (const BufferKind kind : options.buffers) {
    const Buffers own(comm, device, kind, capacity), packed(comm, device, kind, capacity);
    for (const koloCollective_t collective : options.collectives) {
      for (const size_t cap : options.capBytes) {
        ListMemory memory{Arena(own.send()), Arena(own.recv()), Arena(packed.send()), Arena(packed.recv())};
        Buckets buckets;
        for (const auto& some : bucketsOf(tensors, cap))
          buckets.push_back(std::make_unique<Bucket>(Call{collective, comm, ranks}, some, memory));
        Comparison comparison{.collective = koloCollectiveName(collective),
                              .what = fmt::format("cap {}: {} bucket{}", formatBytes(cap), buckets.size(),
                                                  buckets.size() == 1 ? "" : "s"),
                              .datatypes = datatypesOf(tensors),
                              .buffers = kind,
                              .ranks = ranks.count,
                              .bytes = bytesOf(tensors),
                              .atMost = atMost(collective, ranks.count)};
        for (const auto& bucket : bucketsOf(tensors, cap))
          comparison.temporaryBytes = std::max(comparison.temporaryBytes, 2 * bytesOf(bucket));
        table.add(std::move(comparison), waysFor(buckets), contentsOf(buckets));
      }
    }
  }
  return table.end();
}

}  // namespace kolo::perf
