#include "perf/array_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "common/collectives.h"
#include "perf/failure.h"
#include "perf/machine.h"
#include "perf/names.h"
#include "perf/operation.h"
#include "perf/patterns.h"
#include "perf/sizes.h"

namespace kolo::perf {
namespace {

constexpr std::uint64_t kAxisSeed = 4096;

using Lengths = std::vector<size_t>;

size_t elementsOf(const Lengths& shape) {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

// Copies rows of one length between two strided buffers. Of a length that the compiler knows, because a call for a row
// of a few bytes would cost more than the row.
template <size_t kBytes>
void copyShortRows(std::byte* to, size_t toStride, const std::byte* from, size_t fromStride, size_t rows) {
  for (size_t row = 0; row < rows; ++row) std::memcpy(to + row * toStride, from + row * fromStride, kBytes);
}

void copyRows(std::byte* to, size_t toStride, const std::byte* from, size_t fromStride, size_t bytes, size_t rows) {
  switch (bytes) {
    case 2: return copyShortRows<2>(to, toStride, from, fromStride, rows);
    case 4: return copyShortRows<4>(to, toStride, from, fromStride, rows);
    case 8: return copyShortRows<8>(to, toStride, from, fromStride, rows);
    case 16: return copyShortRows<16>(to, toStride, from, fromStride, rows);
    default:
      for (size_t row = 0; row < rows; ++row) std::memcpy(to + row * toStride, from + row * fromStride, bytes);
  }
}

// An array, cut along an axis into the ranks' parts.
class Cut {
 public:
  Cut(const Lengths& shape, int axis, int ranks, size_t elementBytes) : axis_(static_cast<size_t>(axis)) {
    const auto n = static_cast<size_t>(ranks);
    lengths_.assign(n, shape[axis_] / n);
    for (size_t rank = 0; rank < shape[axis_] % n; ++rank) ++lengths_[rank];
    outer_ = elementsOf({shape.begin(), shape.begin() + axis});
    inner_ = elementsOf({shape.begin() + axis + 1, shape.end()}) * elementBytes;
    whole_ = shape[axis_];
  }

  const Lengths& lengths() const { return lengths_; }  // along the axis
  size_t bytes(size_t rank) const { return outer_ * lengths_[rank] * inner_; }
  bool isContiguous() const { return outer_ == 1; }

  // Between the array and a rank's part of it, without gaps.
  void take(std::byte* part, const std::byte* whole, size_t rank) const {
    copyRows(part, lengths_[rank] * inner_, whole + begin(rank), whole_ * inner_, lengths_[rank] * inner_, outer_);
  }
  void put(std::byte* whole, const std::byte* part, size_t rank) const {
    copyRows(whole + begin(rank), whole_ * inner_, part, lengths_[rank] * inner_, lengths_[rank] * inner_, outer_);
  }

 private:
  size_t begin(size_t rank) const {
    return std::accumulate(lengths_.begin(), lengths_.begin() + static_cast<std::ptrdiff_t>(rank), size_t{0}) * inner_;
  }

  size_t axis_, outer_ = 1, inner_ = 1, whole_ = 1;
  Lengths lengths_;
};

struct AxisMemory {
  std::byte *input, *output, *packedInput, *packedOutput;
};

struct AxisCase {
  koloCollective_t collective;
  Lengths shape;
  int axis;
  koloDataType_t datatype;
  int root;
};

// One collective on one array, with the memory that each way needs.
class Axis {
 public:
  Axis(const AxisCase& what, koloComm_t comm, Ranks ranks, const AxisMemory& memory)
      : what_(what), comm_(comm), ranks_(ranks), memory_(memory), size_(koloDataTypeSize(what.datatype)),
        cut_(what.shape, what.axis, ranks.count, size_), otherAxis_(other(what)),
        otherCut_(what.shape, otherAxis_, ranks.count, size_), own_(what.shape) {
    own_[static_cast<size_t>(otherAxis_)] = otherCut_.lengths()[self()];
    split_ = std::make_unique<Cut>(own_, what.axis, ranks.count, size_);  // of what this rank has before
    Lengths after = what.shape;
    after[static_cast<size_t>(what.axis)] = cut_.lengths()[self()];
    joined_ = std::make_unique<Cut>(after, otherAxis_, ranks.count, size_);
    for (size_t rank = 0; rank < static_cast<size_t>(ranks.count); ++rank) {
      blocks_.push_back(cut_.bytes(rank) / size_);
      sent_.push_back(split_->bytes(rank) / size_);
      received_.push_back(joined_->bytes(rank) / size_);
    }
    array_ = {static_cast<int>(what_.shape.size()), what_.shape.data(), nullptr};
    ownArray_ = {static_cast<int>(own_.size()), own_.data(), nullptr};
    describe();
  }
  Axis(const Axis&) = delete;
  Axis& operator=(const Axis&) = delete;

  void runAxis() const {
    koloResult_t result = koloSuccess;
    switch (what_.collective) {
      case koloCollectiveAllGather: result = koloAllGatherList(&item_, 1, comm_, nullptr); break;
      case koloCollectiveReduceScatter: result = koloReduceScatterList(&item_, 1, koloSum, comm_, nullptr); break;
      case koloCollectiveGather: result = koloGatherList(&item_, 1, what_.root, comm_, nullptr); break;
      case koloCollectiveScatter: result = koloScatterList(&item_, 1, what_.root, comm_, nullptr); break;
      default:
        result = koloAllToAllAxis(&item_, what_.axis, otherAxis_, cut_.lengths().data(), otherCut_.lengths().data(),
                                  comm_, nullptr);
    }
    check(result, koloCollectiveName(what_.collective));
  }

  // The collective on blocks without gaps, with the copies that it needs: none along the first axis.
  void runWithCopies() const {
    const bool packs = packsInput(), unpacks = unpacksOutput();
    if (packs)
      eachRank([this](size_t rank, std::byte* at) { inputCut().take(at, memory_.input, rank); }, inputCut(),
               memory_.packedInput);
    const std::byte* const from = packs ? memory_.packedInput : memory_.input;
    std::byte* const to = unpacks ? memory_.packedOutput : memory_.output;
    check(runBlocks(from, to), koloCollectiveName(what_.collective));
    if (unpacks)
      eachRank([this](size_t rank, std::byte* at) { outputCut().put(memory_.output, at, rank); }, outputCut(),
               memory_.packedOutput);
  }

  size_t temporaryBytes() const { return (packsInput() ? inputBytes() : 0) + (unpacksOutput() ? outputBytes() : 0); }

  // Bytes that all ranks read and write with copies, over those without. A reduction reads each input and writes its
  // output; everything else reads and writes what it moves; a copy reads and writes.
  double atMost() const {
    const auto n = static_cast<double>(ranks_.count);
    const auto whole = static_cast<double>(elementsOf(what_.shape) * size_);
    double moved = 0, packed = 0, unpacked = 0;
    switch (what_.collective) {
      case koloCollectiveAllGather: moved = 2 * n * whole, unpacked = n * whole; break;
      case koloCollectiveReduceScatter: moved = (n + 1) * whole, packed = n * whole; break;
      case koloCollectiveGather: moved = 2 * whole, unpacked = whole; break;
      case koloCollectiveScatter: moved = 2 * whole, packed = whole; break;
      default: moved = 2 * whole, packed = unpacked = whole;
    }
    const double copies = (inputCut().isContiguous() ? 0 : packed) + (outputCut().isContiguous() ? 0 : unpacked);
    return (moved + 2 * copies) / moved;
  }

  void prepare() const {
    if (!givesWhole()) {
      partOf(given(ranks_.self), memory_.input, otherOrCut());
    } else {
      fill(memory_.input, elementsOf(what_.shape), size_, given(ranks_.self), 0);
    }
  }
  void clearOutput() const { std::memset(memory_.output, 0xa5, outputBytes()); }
  size_t wrong() const {
    const bool reduces = rowOf(what_.collective).folds;
    const Table expected =
        reduces ? foldedTable(what_.datatype, koloSum, ranks_.count, kAxisSeed) : given(givesWhole() ? what_.root : 0);
    if (outputBytes() == 0) return 0;
    if (getsWhole())
      return countWrong(memory_.output, elementsOf(what_.shape), what_.datatype, expected, 0, Compare::kBytes);
    std::vector<std::byte> part(outputBytes());
    partOf(expected, part.data(), cut_);
    size_t count = 0;
    for (size_t at = 0; at < part.size(); at += size_)
      count += std::memcmp(memory_.output + at, part.data() + at, size_) != 0 ? 1 : 0;
    return count;
  }

  bool isPossible() const { return what_.collective != koloCollectiveAllToAll || otherAxis_ != what_.axis; }

 private:
  static int other(const AxisCase& what) {
    const int last = static_cast<int>(what.shape.size()) - 1;
    return what.collective != koloCollectiveAllToAll ? what.axis : what.axis != 0 ? 0 : last;
  }
  size_t self() const { return static_cast<size_t>(ranks_.self); }
  bool isRoot() const { return ranks_.self == what_.root; }
  bool givesWhole() const {
    return what_.collective == koloCollectiveReduceScatter || what_.collective == koloCollectiveScatter;
  }
  bool getsWhole() const {
    return what_.collective == koloCollectiveAllGather || what_.collective == koloCollectiveGather;
  }
  const Cut& otherOrCut() const { return what_.collective == koloCollectiveAllToAll ? otherCut_ : cut_; }
  const Cut& inputCut() const { return what_.collective == koloCollectiveAllToAll ? *split_ : cut_; }
  const Cut& outputCut() const { return what_.collective == koloCollectiveAllToAll ? *joined_ : cut_; }
  bool packsInput() const {
    const bool divides = what_.collective == koloCollectiveReduceScatter ||
                         what_.collective == koloCollectiveAllToAll ||
                         (what_.collective == koloCollectiveScatter && isRoot());
    return divides && !inputCut().isContiguous();
  }
  bool unpacksOutput() const {
    const bool joins = what_.collective == koloCollectiveAllGather || what_.collective == koloCollectiveAllToAll ||
                       (what_.collective == koloCollectiveGather && isRoot());
    return joins && !outputCut().isContiguous();
  }
  size_t inputBytes() const {
    const size_t whole = elementsOf(what_.shape) * size_;
    return givesWhole() ? whole : otherOrCut().bytes(self());
  }
  size_t outputBytes() const {
    const size_t whole = elementsOf(what_.shape) * size_;
    if (what_.collective == koloCollectiveGather && !isRoot()) return 0;
    return getsWhole() ? whole : cut_.bytes(self());
  }

  template <class Visit>
  void eachRank(Visit visit, const Cut& cut, std::byte* packed) const {
    for (size_t rank = 0; rank < static_cast<size_t>(ranks_.count); ++rank) {
      visit(rank, packed);
      packed += cut.bytes(rank);
    }
  }
  koloResult_t runBlocks(const std::byte* from, std::byte* to) const {
    const koloDataType_t type = what_.datatype;
    const size_t* const blocks = blocks_.data();
    switch (what_.collective) {
      case koloCollectiveAllGather: return koloAllGatherv(from, to, blocks, nullptr, type, comm_, nullptr);
      case koloCollectiveReduceScatter:
        return koloReduceScatterv(from, to, blocks, nullptr, type, koloSum, comm_, nullptr);
      case koloCollectiveGather:
        return koloGatherv(from, blocks_[self()], to, blocks, nullptr, type, what_.root, comm_, nullptr);
      case koloCollectiveScatter:
        return koloScatterv(from, blocks, nullptr, to, blocks_[self()], type, what_.root, comm_, nullptr);
      default: return koloAllToAllv(from, sent_.data(), nullptr, to, received_.data(), nullptr, type, comm_, nullptr);
    }
  }
  void describe() {
    item_.sendbuf = memory_.input;
    item_.recvbuf = memory_.output;
    item_.sendtype = item_.transfertype = item_.recvtype = what_.datatype;
    item_.axis = what_.axis;
    item_.counts = cut_.lengths().data();
    if (what_.collective == koloCollectiveAllToAll) item_.sendarray = &ownArray_;
    else (givesWhole() ? item_.sendarray : item_.recvarray) = &array_;
  }
  Table given(int rank) const {
    if (!rowOf(what_.collective).folds) return movedTable(what_.datatype, 0, kAxisSeed);
    return operandTable(what_.datatype, koloSum, rank, ranks_.count, kAxisSeed);
  }
  // This rank's part of an array that has the pattern.
  void partOf(const Table& table, std::byte* part, const Cut& cut) const {
    std::vector<std::byte> whole(elementsOf(what_.shape) * size_);
    fill(whole.data(), elementsOf(what_.shape), size_, table, 0);
    cut.take(part, whole.data(), self());
  }

  AxisCase what_;
  koloComm_t comm_;
  Ranks ranks_;
  AxisMemory memory_;
  size_t size_;
  Cut cut_;
  int otherAxis_;  // of an all-to-all: along which the array is distributed before
  Cut otherCut_;
  Lengths own_;
  std::unique_ptr<Cut> split_, joined_;  // of an all-to-all: what this rank has before, and has then
  std::vector<size_t> blocks_, sent_, received_;
  koloArray_t array_{}, ownArray_{};
  koloItem_t item_{};
};

std::string shapeText(const Lengths& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

// All that is measured with one kind of buffers.
std::vector<AxisCase> casesOf(const Options& options) {
  std::vector<AxisCase> cases;
  for (const koloCollective_t collective : options.collectives) {
    for (const koloDataType_t datatype : options.datatypes) {
      for (const Lengths& shape : options.shapes) {
        for (const int axis : options.axes) {
          if (axis >= static_cast<int>(shape.size())) continue;
          cases.push_back({collective, shape, axis, datatype, rowOf(collective).isRooted() ? options.root : 0});
        }
      }
    }
  }
  return cases;
}

size_t largestBytes(const Options& options) {
  size_t bytes = 0;
  for (const AxisCase& what : casesOf(options))
    bytes = std::max(bytes, elementsOf(what.shape) * koloDataTypeSize(what.datatype));
  return bytes;
}

}  // namespace

std::vector<std::vector<size_t>> parseShapes(std::string_view text) {
  std::vector<Lengths> shapes;
  for (const std::string& word : splitList(text)) {
    Lengths shape;
    const char* at = word.data();
    const char* const end = word.data() + word.size();
    for (bool more = true; more;) {
      size_t length = 0;
      const auto [next, code] = std::from_chars(at, end, length);
      more = code == std::errc() && next != end && *next == 'x';
      if (code != std::errc() || length == 0 || length > (size_t{1} << 40) || (next != end && !more))
        fail("--shape: \"{}\" is no shape, expected lengths such as 64x1024", word);
      shape.push_back(length);
      at = next + 1;
    }
    if (shape.size() > KOLO_MAX_DIMS)
      fail("--shape: {} has {} dimensions, at most {} are possible", word, shape.size(), KOLO_MAX_DIMS);
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

void requireAxes(const Options& options, int ranksHere) {
  for (const koloCollective_t collective : options.collectives) {
    if (std::find(kAxisCollectives.begin(), kAxisCollectives.end(), collective) == kAxisCollectives.end())
      fail("--axis measures all_gather, reduce_scatter, all_to_all, gather and scatter, not {}",
           koloCollectiveName(collective));
  }
  for (const int axis : options.axes) {
    const bool has = std::any_of(options.shapes.begin(), options.shapes.end(),
                                 [axis](const Lengths& shape) { return axis < static_cast<int>(shape.size()); });
    if (!has) fail("--axis: no array of --shape has an axis {}; the first is 0", axis);
  }
  for (const koloDataType_t datatype : options.datatypes) {
    if (koloRedOpIsDefined(koloSum, datatype) == 0) fail("--axis: there are no sums of {}", koloDataTypeName(datatype));
  }
  double elements = 0;
  for (const Lengths& shape : options.shapes) {
    double product = 1;
    for (const size_t length : shape) product *= static_cast<double>(length);
    elements = std::max(elements, product);
  }
  const double needed = 4.0 * 16 * elements * ranksHere;
  if (needed > 16.0 * static_cast<double>(memoryBytes()) ||
      4.0 * static_cast<double>(largestBytes(options)) * ranksHere > static_cast<double>(memoryBytes()))
    fail("--shape: the four buffers of each of {} ranks exceed the machine's memory, {}", ranksHere,
         formatBytes(memoryBytes()));
}

std::vector<Comparison> runAxes(koloComm_t comm, const Options& options, const Device& device, Exchange& exchange,
                                bool print) {
  Ranks ranks{};
  check(koloCommUserRank(comm, &ranks.self), "koloCommUserRank");
  check(koloCommCount(comm, &ranks.count), "koloCommCount");
  const size_t capacity = largestBytes(options);
  WaysTable table(exchange, options, print);
  for (const BufferKind kind : options.buffers) {
    const Buffers own(comm, device, kind, capacity), packed(comm, device, kind, capacity);
    for (const AxisCase& what : casesOf(options)) {
      const Axis axis(what, comm, ranks, {own.send(), own.recv(), packed.send(), packed.recv()});
      if (!axis.isPossible()) continue;
      const std::vector<Way> ways = {{"axis", [&axis] { axis.runAxis(); }},
                                     {"copies", [&axis] { axis.runWithCopies(); }}};
      Comparison comparison{
          .collective = koloCollectiveName(what.collective),
          .what = fmt::format("{} axis {}", shapeText(what.shape), what.axis),
          .datatypes = koloDataTypeName(what.datatype),
          .buffers = kind,
          .ranks = ranks.count,
          .bytes = elementsOf(what.shape) * koloDataTypeSize(what.datatype),
          .temporaryBytes = static_cast<size_t>(exchange.greatest(static_cast<double>(axis.temporaryBytes()))),
          .atMost = {axis.atMost()}};
      table.add(std::move(comparison), ways,
                {[&axis] { axis.prepare(); }, [&axis] { axis.clearOutput(); }, [&axis] { return axis.wrong(); }});
    }
  }
  return table.end();
}

}  // namespace kolo::perf
