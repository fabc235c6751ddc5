#include "collectives/reshard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/datatypes.h"
#include "collectives/list_item.h"

namespace kolo::collectives {
namespace {

using device::Collective;

using Shape = std::vector<std::size_t>;

// Where an array is: cut along an axis, whole on one rank, or whole on all.
struct Placement {
  int axis = -1;
  int root = -1;
  Shape parts;  // lengths along the axis, by rank

  bool isCut() const { return axis >= 0; }
  bool isOnAll() const { return axis < 0 && root < 0; }
  bool isOn(int rank) const { return isOnAll() || root == rank; }  // whole
  bool operator==(const Placement&) const = default;
};

class Resharder {
 public:
  Resharder(int rank, int ranks, const ReshardCall& call)
      : rank_(rank), ranks_(ranks), mine_(static_cast<std::size_t>(rank)), call_(call), item_(*call.item) {}

  Result<std::shared_ptr<List>> make() {
    KOLO_TRY(readWhole());
    KOLO_ASSIGN(from_, readPlace("from", call_.from, "fromParts", call_.fromParts));
    KOLO_ASSIGN(to_, readPlace("to", call_.to, "toParts", call_.toParts));
    KOLO_TRY(describe("sendarray", from_, call_.item->sendarray, send_));
    KOLO_TRY(describe("recvarray", to_, call_.item->recvarray, recv_));
    item_.sendarray = &send_.array;
    item_.recvarray = &recv_.array;
    item_.counts = nullptr;
    if (from_ == to_ || from_.isOnAll()) return copyLocally();
    if (from_.isCut()) return fromCut();
    if (to_.isCut()) return overList(Collective::kScatter, from_.root, to_.axis, to_.parts);
    if (to_.isOnAll()) return overList(Collective::kBroadcast, from_.root, 0, {});
    return moveWhole();
  }

 private:
  // This rank's array on one side.
  struct Local {
    Shape shape;
    std::vector<std::ptrdiff_t> strides;
    koloArray_t array{};
  };

  Status readWhole() {
    if (call_.whole == nullptr) return error(koloInvalidPointer, "whole is NULL, expected the shape of the array");
    const koloArray_t& whole = *call_.whole;
    if (whole.ndim < 0 || whole.ndim > device::kMostDimensions)
      return error(koloInvalidArgument, "whole: ndim is {}, expected 0 to {}", whole.ndim, device::kMostDimensions);
    if (whole.ndim > 0 && whole.shape == nullptr)
      return error(koloInvalidPointer, "whole: shape is NULL, expected {} lengths", whole.ndim);
    shape_.assign(whole.shape, whole.shape + whole.ndim);
    if (whole.ndim == 0) shape_ = {1};
    if (fitsMemory(shape_)) return {};
    return error(koloInvalidCount, "whole: the shape has more elements than memory");
  }

  Result<Placement> readPlace(const char* name, int place, const char* partsName, const std::size_t* parts) const {
    Placement result;
    if (place == KOLO_ON_ALL) return result;
    if (place < 0) {
      result.root = -2 - place;
      if (result.root < ranks_) return result;
      return error(koloInvalidRank, "{} is KOLO_ON_RANK({}), expected a rank of 0..{}", name, result.root, ranks_ - 1);
    }
    const int ndim = call_.whole->ndim;
    if (place >= ndim) {
      return error(koloInvalidArgument,
                   "{} is axis {}, expected an axis below {}, which is the number of dimensions, KOLO_ON_ALL or "
                   "KOLO_ON_RANK()",
                   name, place, ndim);
    }
    result.axis = place;
    const std::size_t length = shape_[static_cast<std::size_t>(place)], ranks = static_cast<std::size_t>(ranks_);
    if (parts == nullptr) {
      if (length % ranks != 0) {
        return error(koloInvalidArgument,
                     "axis {} of the array has the length {}, which {} ranks do not divide: expected a multiple, or {}",
                     place, length, ranks_, partsName);
      }
      result.parts.assign(ranks, length / ranks);
      return result;
    }
    result.parts.assign(parts, parts + ranks);
    std::size_t sum = 0;
    for (const std::size_t part : result.parts) {
      if (part > length - sum) sum = length + 1;
      else sum += part;
      if (sum > length) break;
    }
    if (sum == length) return result;
    return error(koloInvalidArgument, "the {} ({}) do not sum up to {}, the length of axis {}", partsName,
                 fmt::join(result.parts, ", "), length, place);
  }

  // What this rank has of the array there.
  Shape shapeAt(const Placement& place) const {
    Shape shape = shape_;
    if (place.isCut()) shape[static_cast<std::size_t>(place.axis)] = place.parts[mine_];
    return shape;
  }

  // given: the caller's array, for its strides.
  Status describe(const char* name, const Placement& place, const koloArray_t* given, Local& local) const {
    local.shape = shapeAt(place);
    const bool isThere = place.isCut() || place.isOn(rank_);
    std::ptrdiff_t stride = 1;
    local.strides.resize(local.shape.size());
    for (std::size_t d = local.shape.size(); d-- > 0;) {
      local.strides[d] = stride;
      stride *= static_cast<std::ptrdiff_t>(std::max<std::size_t>(local.shape[d], 1));
    }
    if (given != nullptr && isThere) {
      const bool isScalar = given->ndim == 0 && call_.whole->ndim == 0;
      const bool fits = isScalar || (given->ndim == call_.whole->ndim && given->shape != nullptr &&
                                     std::equal(local.shape.begin(), local.shape.end(), given->shape));
      if (!fits) {
        return error(koloInvalidArgument, "{}: expected the shape ({}), which is what rank {} has of the array", name,
                     fmt::join(local.shape, ", "), rank_);
      }
      if (given->strides != nullptr && !isScalar)
        std::copy_n(given->strides, local.strides.size(), local.strides.begin());
    }
    if (const int d = dimensionBeyondMemory(local.shape, local.strides); d >= 0) {
      return error(koloInvalidCount, "{}: strides[{}] is {}: the array reaches further than memory", name, d,
                   local.strides[static_cast<std::size_t>(d)]);
    }
    local.array = {static_cast<int>(local.shape.size()), local.shape.data(), local.strides.data()};
    return {};
  }

  Result<std::shared_ptr<List>> overList(Collective collective, int root, int axis, const Shape& counts) {
    item_.axis = axis;
    if (!counts.empty()) item_.counts = counts.data();
    return makeList({collective, rank_, ranks_, root}, ItemsCall{&item_, 1});
  }

  Result<std::shared_ptr<List>> fromCut() {
    if (to_.isOnAll()) return overList(Collective::kAllGather, 0, from_.axis, from_.parts);
    if (!to_.isCut()) return overList(Collective::kGather, to_.root, from_.axis, from_.parts);
    const ListCall call{Collective::kAllToAll, rank_, ranks_, 0};
    if (from_.axis == to_.axis) return makeRecut(call, item_, from_.axis, from_.parts, to_.parts);
    return makeList(call, AxisCall{&item_, to_.axis, from_.axis, to_.parts.data(), from_.parts.data()});
  }

  // From one rank to another: a gather to which the others give nothing.
  Result<std::shared_ptr<List>> moveWhole() {
    Shape counts(static_cast<std::size_t>(ranks_), 0);
    counts[static_cast<std::size_t>(from_.root)] = shape_[0];
    if (rank_ != from_.root) send_.shape[0] = 0;
    return overList(Collective::kGather, to_.root, 0, counts);
  }

  // What this rank is to have lies in what it has.
  Result<std::shared_ptr<List>> copyLocally() {
    const bool isThere = to_.isCut() || to_.isOn(rank_);
    if (from_.isOnAll() && to_.isCut() && item_.sendbuf != nullptr) {
      std::ptrdiff_t before = 0;
      for (std::size_t i = 0; i < mine_; ++i) before += static_cast<std::ptrdiff_t>(to_.parts[i]);
      before *= send_.strides[static_cast<std::size_t>(to_.axis)] * static_cast<std::ptrdiff_t>(bytes());
      item_.sendbuf = static_cast<const unsigned char*>(item_.sendbuf) + before;
    }
    if (from_.isOnAll()) send_.shape = recv_.shape;
    send_.array.shape = send_.shape.data();
    item_.axis = 0;
    return makeLocal(&item_, isThere ? 1 : 0);
  }
  std::size_t bytes() const {
    const bool isKnown = item_.sendtype >= 0 && item_.sendtype < koloNumDatatypes;
    return isKnown ? elementBytes(item_.sendtype) : 0;  // makeLocal() refuses others
  }

  const int rank_, ranks_;
  const std::size_t mine_;
  const ReshardCall& call_;
  koloItem_t item_;
  Shape shape_;
  Placement from_, to_;
  Local send_, recv_;
};

}  // namespace

Result<std::shared_ptr<List>> makeList(const ListCall& call, const ReshardCall& given) {
  if (given.item == nullptr) return refuseNoItem();
  return Resharder(call.rank, call.ranks, given).make();
}

}  // namespace kolo::collectives
