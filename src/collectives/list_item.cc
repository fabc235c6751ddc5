// One item of a list, from its caller's words to the one form that all items have.
#include "collectives/list_item.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/datatypes.h"
#include "device/row_move.h"

namespace kolo::collectives {
namespace {

// Short of so many elements no product of an element's bytes overflows.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 56;

// A caller's array, or a flat buffer as one.
struct Array {
  const char* name = "";
  bool isGiven = false;
  int ndim = 1;
  std::uint64_t shape[device::kMostDimensions] = {};
  std::int64_t strides[device::kMostDimensions] = {};
};

void useRowMajor(Array& array) {
  std::int64_t stride = 1;
  for (int d = array.ndim - 1; d >= 0; --d) {
    array.strides[d] = stride;
    stride *= static_cast<std::int64_t>(std::max<std::uint64_t>(array.shape[d], 1));
  }
}

// With each datatype in place of KOLO_SAME_DATATYPE.
koloItem_t withDatatypes(koloItem_t item) {
  if (item.transfertype == KOLO_SAME_DATATYPE) item.transfertype = item.sendtype;
  if (item.recvtype == KOLO_SAME_DATATYPE) item.recvtype = item.sendtype;
  return item;
}

// Item number `number`; its errors say so.
class ItemReader {
 public:
  ItemReader(const ListCall& call, const koloItem_t& given, std::size_t number)
      : call_(call), given_(withDatatypes(given)), number_(number), ranks_(static_cast<std::size_t>(call.ranks)),
        sendsBlocks_(device::isIn(call.collective, device::kSendsBlocks)),
        receivesBlocks_(device::isIn(call.collective, device::kReceivesBlocks)) {}

  Result<Item> read() {
    KOLO_TRY(checkDatatypes());
    KOLO_TRY(readArray("sendarray", given_.sendarray, send_));
    KOLO_TRY(readArray("recvarray", given_.recvarray, recv_));
    Item item;
    item.transferType = given_.transfertype;
    if (given_.scale != nullptr) item.scale = *given_.scale;
    if (sendsBlocks_ && receivesBlocks_) {
      KOLO_TRY(readBoth(item));
    } else if (sendsBlocks_ || receivesBlocks_) {
      KOLO_TRY(readDivided(item));
    } else {
      KOLO_TRY(readWhole(item));
    }
    KOLO_TRY(finish(item));
    return item;
  }

  // Of an all-to-all along two axes.
  Result<Item> read(int splitAxis, int concatAxis, const std::size_t* splits, const std::size_t* concats) {
    KOLO_TRY(checkDatatypes());
    KOLO_TRY(readArray("sendarray", given_.sendarray, send_));
    KOLO_TRY(readArray("recvarray", given_.recvarray, recv_));
    if (!send_.isGiven) return refuse("sendarray is NULL, expected the array that is split");
    Item item;
    item.transferType = given_.transfertype;
    if (given_.scale != nullptr) item.scale = *given_.scale;
    KOLO_TRY(checkAxis("splitAxis", splitAxis, send_));
    KOLO_TRY(checkAxis("concatAxis", concatAxis, send_));
    KOLO_ASSIGN(const std::vector<std::uint64_t> parts, cut(send_, splitAxis, splits, "splits"));
    std::vector<std::uint64_t> joins(ranks_, send_.shape[concatAxis]);
    if (splitAxis == concatAxis) joins.assign(ranks_, parts[mine()]);
    if (concats != nullptr) {
      KOLO_TRY(checkCounts(concats));
      joins.assign(concats, concats + ranks_);
    }
    if (splitAxis != concatAxis && joins[mine()] != send_.shape[concatAxis]) {
      return refuse("concats[{}] is {}, expected {}: this rank's own length along axis {}", call_.rank, joins[mine()],
                    send_.shape[concatAxis], concatAxis);
    }
    Array result = send_;
    result.shape[splitAxis] = parts[mine()];
    std::uint64_t length = 0;
    for (const std::uint64_t join : joins) length += join;
    result.shape[concatAxis] = length;
    KOLO_TRY(checkElements("recvarray", result));
    useRowMajor(result);
    if (recv_.isGiven) KOLO_TRY(checkShape(recv_, result));
    use(item.send, given_.sendbuf, given_.sendtype, send_, splitAxis, parts);
    use(item.recv, given_.recvbuf, given_.recvtype, recv_.isGiven ? recv_ : result, concatAxis, joins);
    KOLO_TRY(finish(item));
    return item;
  }

 private:
  std::size_t mine() const { return static_cast<std::size_t>(call_.rank); }

  template <class... Values>
  Status refuse(fmt::format_string<Values...> text, Values&&... values) const {
    return error(koloInvalidArgument, "item {}: {}", number_, fmt::format(text, std::forward<Values>(values)...));
  }

  Status checkDatatypes() const {
    if (given_.sendtype == KOLO_SAME_DATATYPE) {
      return error(koloInvalidDatatype, "item {}: sendtype is not set (KOLO_SAME_DATATYPE), expected a koloDataType_t",
                   number_);
    }
    const auto isKnown = [](koloDataType_t datatype) { return datatype >= 0 && datatype < koloNumDatatypes; };
    for (const auto& [name, datatype] : {std::pair("sendtype", given_.sendtype), std::pair("recvtype", given_.recvtype),
                                         std::pair("transfertype", given_.transfertype)}) {
      if (isKnown(datatype)) continue;
      return error(koloInvalidDatatype, "item {}: {} is {}, expected a koloDataType_t from 0 to {}", number_, name,
                   static_cast<int>(datatype), koloNumDatatypes - 1);
    }
    KOLO_TRY(checkCast("sendtype", given_.transfertype, given_.sendtype));
    return checkCast("recvtype", given_.recvtype, given_.transfertype);
  }
  Status checkCast(const char* name, koloDataType_t to, koloDataType_t from) const {
    if (to == from || device::isCastDefined(to, from)) return {};
    return error(koloInvalidDatatype,
                 "item {}: {} and transfertype differ, and {} is not converted into {}: expected the same, or floats "
                 "(of 8, 16 and 32 bits each into the others, float32 and float64 into each other)",
                 number_, name, koloDataTypeName(from), koloDataTypeName(to));
  }

  Status readArray(const char* name, const koloArray_t* given, Array& array) const {
    array.name = name;
    if (given == nullptr) return {};
    if (given->ndim < 0 || given->ndim > device::kMostDimensions)
      return refuse("{}: ndim is {}, expected 0 to {}", name, given->ndim, device::kMostDimensions);
    if (given->ndim > 0 && given->shape == nullptr)
      return error(koloInvalidPointer, "item {}: {}: shape is NULL, expected {} lengths", number_, name, given->ndim);
    array.isGiven = true;
    array.ndim = std::max(given->ndim, 1);
    array.shape[0] = 1;  // of no dimensions
    for (int d = 0; d < given->ndim; ++d) array.shape[d] = given->shape[d];
    KOLO_TRY(checkElements(name, array));
    useRowMajor(array);
    for (int d = 0; d < given->ndim && given->strides != nullptr; ++d) array.strides[d] = given->strides[d];
    return checkReach(array);
  }
  Status checkReach(const Array& array) const {
    const auto dimensions = static_cast<std::size_t>(array.ndim);
    const int d = dimensionBeyondMemory({array.shape, dimensions}, {array.strides, dimensions});
    if (d < 0) return {};
    return error(koloInvalidCount, "item {}: {}: strides[{}] is {}: the array reaches further than memory", number_,
                 array.name, d, array.strides[d]);
  }

  Status checkElements(const char* name, const Array& array) const {
    if (fitsMemory({array.shape, static_cast<std::size_t>(array.ndim)})) return {};
    return error(koloInvalidCount, "item {}: {}: the shape has more elements than memory", number_, name);
  }
  Status checkAxis(const char* name, int axis, const Array& array) const {
    if (axis >= 0 && axis < array.ndim) return {};
    return refuse("{} is {}, expected 0 to {}: {} has {} dimensions", name, axis, array.ndim - 1, array.name,
                  array.ndim);
  }
  Status checkShape(const Array& given, const Array& expected) const {
    const auto text = [](const Array& array) {
      return fmt::format("({})", fmt::join(array.shape, array.shape + array.ndim, ", "));
    };
    if (given.ndim == expected.ndim && std::equal(given.shape, given.shape + given.ndim, expected.shape)) return {};
    return refuse("{} has the shape {}, expected {}", given.name, text(given), text(expected));
  }

  // The lengths of the ranks' parts of an array along an axis, which the counts say, or which are alike.
  Result<std::vector<std::uint64_t>> cut(const Array& whole, int axis, const std::size_t* counts,
                                         const char* name) const {
    const std::uint64_t length = whole.shape[axis];
    if (counts == nullptr) {
      if (length % ranks_ != 0) {
        return refuse("axis {} of {} has the length {}, which {} ranks do not divide: expected a multiple, or {}", axis,
                      whole.name, length, ranks_, name);
      }
      return std::vector<std::uint64_t>(ranks_, length / ranks_);
    }
    KOLO_TRY(checkCounts(counts));
    const std::uint64_t sum = sumOf(counts);
    if (sum != length) {
      return refuse("the {} sum up to {}, expected {}: the length of axis {} of {}", name, sum, length, axis,
                    whole.name);
    }
    return std::vector<std::uint64_t>(counts, counts + ranks_);
  }
  // One count for each rank.
  Status checkCounts(const std::size_t* counts) const {
    for (std::size_t i = 0; i < ranks_; ++i) KOLO_TRY(checkCount(counts[i]));
    return {};
  }
  std::uint64_t sumOf(const std::size_t* counts) const {
    return std::accumulate(counts, counts + ranks_, std::uint64_t{0});
  }
  Result<std::vector<std::uint64_t>> flatParts() const {
    if (given_.counts != nullptr) {
      KOLO_TRY(checkCounts(given_.counts));
      return std::vector<std::uint64_t>(given_.counts, given_.counts + ranks_);
    }
    KOLO_TRY(checkCount(given_.count));
    return std::vector<std::uint64_t>(ranks_, given_.count);
  }
  Status checkCount(std::size_t count) const {
    if (count <= kMostElements / ranks_) return {};
    return error(koloInvalidCount, "item {}: a count is {}, expected at most {}", number_, count,
                 kMostElements / ranks_);
  }

  static void use(Side& side, const void* buffer, koloDataType_t datatype, const Array& array, int axis,
                  std::vector<std::uint64_t> extents) {
    side.data = static_cast<unsigned char*>(const_cast<void*>(buffer));
    side.datatype = datatype;
    side.ndim = array.ndim;
    side.axis = axis;
    std::copy_n(array.shape, array.ndim, side.shape);
    std::copy_n(array.strides, array.ndim, side.strides);
    side.shape[axis] = 0;  // the extents say it
    side.extents = std::move(extents);
  }

  // Buffers that are not divided.
  Status readWhole(Item& item) {
    if (given_.counts != nullptr) return refuse("counts is not NULL, expected NULL: buffers are not divided");
    const auto flat = [&](Array& array) {
      array.shape[0] = given_.count;
      array.strides[0] = 1;
    };
    if (!send_.isGiven && !recv_.isGiven) {
      KOLO_TRY(checkCount(given_.count));
      flat(send_);
      flat(recv_);
    } else if (send_.isGiven && recv_.isGiven) {
      KOLO_TRY(checkShape(recv_, send_));
    } else {
      copyShape(send_.isGiven ? send_ : recv_, send_.isGiven ? recv_ : send_);
    }
    use(item.send, given_.sendbuf, given_.sendtype, send_, 0, {send_.shape[0]});
    use(item.recv, given_.recvbuf, given_.recvtype, recv_, 0, {recv_.shape[0]});
    return {};
  }
  // In a row.
  static void copyShape(const Array& from, Array& to) {
    to.ndim = from.ndim;
    std::copy_n(from.shape, from.ndim, to.shape);
    useRowMajor(to);
  }

  // One buffer with the ranks' blocks, and one with this rank's.
  Status readDivided(Item& item) {
    Array& whole = sendsBlocks_ ? send_ : recv_;
    Array& part = sendsBlocks_ ? recv_ : send_;
    const int axis = whole.isGiven || part.isGiven ? given_.axis : 0;
    std::vector<std::uint64_t> extents;
    if (!whole.isGiven && !part.isGiven) {
      KOLO_ASSIGN(extents, flatParts());
      whole.strides[0] = part.strides[0] = 1;
    } else {
      KOLO_TRY(checkAxis("axis", axis, whole.isGiven ? whole : part));
      if (!whole.isGiven) KOLO_TRY(joinParts(part, axis, whole));
      KOLO_ASSIGN(extents, cut(whole, axis, given_.counts, "counts"));
      Array expected = whole;
      expected.shape[axis] = extents[mine()];
      if (part.isGiven) KOLO_TRY(checkShape(part, expected));
      else copyShape(expected, part);
    }
    Side& ofWhole = sendsBlocks_ ? item.send : item.recv;
    Side& ofPart = sendsBlocks_ ? item.recv : item.send;
    use(item.send, given_.sendbuf, given_.sendtype, send_, axis, {});
    use(item.recv, given_.recvbuf, given_.recvtype, recv_, axis, {});
    ofPart.extents = {extents[mine()]};
    ofWhole.extents = std::move(extents);
    return {};
  }
  // The whole array, in a row, of which this is a rank's part.
  Status joinParts(const Array& part, int axis, Array& whole) const {
    copyShape(part, whole);
    KOLO_TRY(given_.counts != nullptr ? checkCounts(given_.counts) : checkCount(part.shape[axis]));
    whole.shape[axis] = given_.counts != nullptr ? sumOf(given_.counts) : part.shape[axis] * ranks_;
    KOLO_TRY(checkElements(sendsBlocks_ ? "sendbuf" : "recvbuf", whole));
    useRowMajor(whole);
    return {};
  }

  // A block for each rank in both buffers. What is received has this rank's length in all of them.
  Status readBoth(Item& item) {
    const bool isFlat = !send_.isGiven && !recv_.isGiven;
    const int axis = isFlat ? 0 : given_.axis;
    std::vector<std::uint64_t> extents;
    if (isFlat) {
      KOLO_ASSIGN(extents, flatParts());
      send_.strides[0] = recv_.strides[0] = 1;
    } else {
      KOLO_TRY(checkAxis("axis", axis, send_.isGiven ? send_ : recv_));
      if (!send_.isGiven) KOLO_TRY(splitLike(recv_, axis, send_));
      KOLO_ASSIGN(extents, cut(send_, axis, given_.counts, "counts"));
      Array result = send_;
      result.shape[axis] = extents[mine()] * ranks_;
      KOLO_TRY(checkElements("recvbuf", result));
      if (recv_.isGiven) KOLO_TRY(checkShape(recv_, result));
      else copyShape(result, recv_);
    }
    std::vector<std::uint64_t> received(ranks_, extents[mine()]);
    use(item.send, given_.sendbuf, given_.sendtype, send_, axis, std::move(extents));
    use(item.recv, given_.recvbuf, given_.recvtype, recv_, axis, std::move(received));
    return {};
  }
  // The array, in a row, from which an all-to-all makes one like this.
  Status splitLike(const Array& result, int axis, Array& array) const {
    copyShape(result, array);
    if (given_.counts == nullptr) return {};
    KOLO_TRY(checkCounts(given_.counts));
    array.shape[axis] = sumOf(given_.counts);
    KOLO_TRY(checkElements("sendbuf", array));
    useRowMajor(array);
    return {};
  }

  // What a rank that is not the root has no buffer for is left out; everything else has to be there.
  Status finish(Item& item) const {
    const bool isRoot = call_.rank == call_.root;
    if (device::isIn(call_.collective, device::kFromRoot) && !isRoot) item.send.data = nullptr;
    else KOLO_TRY(checkBuffer("sendbuf", item.send));
    if (device::isIn(call_.collective, device::kToRoot) && !isRoot) item.recv.data = nullptr;
    else KOLO_TRY(checkBuffer("recvbuf", item.recv));
    if (item.recv.data != nullptr) KOLO_TRY(checkDistinct(item.recv));
    return {};
  }
  Status checkBuffer(const char* name, const Side& side) const {
    std::uint64_t elements = 0;
    for (std::size_t block = 0; block < side.extents.size(); ++block) elements += side.elementsOf(block);
    if (side.data != nullptr || elements == 0) return {};
    return error(koloInvalidPointer, "item {}: {} is NULL, expected {} elements of {}", number_, name, elements,
                 koloDataTypeName(side.datatype));
  }
  // No two elements of what is written lie at one place: each stride reaches over all that the smaller ones span.
  Status checkDistinct(const Side& side) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> dimensions;  // stride, length
    for (int d = 0; d < side.ndim; ++d) {
      std::uint64_t length = side.shape[d];
      if (d == side.axis) {
        length = 0;
        for (const std::uint64_t extent : side.extents) length += extent;
      }
      if (length == 0) return {};
      if (length > 1) dimensions.emplace_back(static_cast<std::uint64_t>(std::abs(side.strides[d])), length);
    }
    std::sort(dimensions.begin(), dimensions.end());
    std::uint64_t span = 0;
    for (const auto& [stride, length] : dimensions) {
      if (stride <= span) {
        return refuse(
            "recvarray: the stride {} may put several elements at one place: expected more than {}, which the "
            "dimensions with smaller strides span",
            stride, span);
      }
      span += stride * (length - 1);
    }
    return {};
  }

  const ListCall& call_;
  const koloItem_t given_;
  const std::size_t number_;
  const std::size_t ranks_;
  const bool sendsBlocks_, receivesBlocks_;
  Array send_, recv_;
};

}  // namespace

Result<Item> readItem(const ListCall& call, const koloItem_t& given, std::size_t number) {
  return ItemReader(call, given, number).read();
}

Result<Item> readItem(const ListCall& call, const koloItem_t& given, int splitAxis, int concatAxis,
                      const std::size_t* splits, const std::size_t* concats) {
  return ItemReader(call, given, 0).read(splitAxis, concatAxis, splits, concats);
}

bool fitsMemory(std::span<const std::uint64_t> shape) {
  std::uint64_t elements = 1;
  return std::ranges::all_of(shape, [&](std::uint64_t length) {
    return !__builtin_mul_overflow(elements, std::max<std::uint64_t>(length, 1), &elements) &&
           elements <= kMostElements;
  });
}

// Strides may point in both directions.
int dimensionBeyondMemory(std::span<const std::uint64_t> shape, std::span<const std::int64_t> strides) {
  if (std::ranges::find(shape, 0U) != shape.end()) return -1;
  std::uint64_t reach = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 2) continue;
    std::uint64_t along =
        strides[d] < 0 ? 0 - static_cast<std::uint64_t>(strides[d]) : static_cast<std::uint64_t>(strides[d]);
    if (__builtin_mul_overflow(along, shape[d] - 1, &along) || __builtin_add_overflow(reach, along, &reach) ||
        reach > kMostElements)
      return static_cast<int>(d);
  }
  return -1;
}

}  // namespace kolo::collectives
