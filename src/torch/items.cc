#include "torch/items.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <utility>

namespace kolo::pytorch {
namespace {

// Whether shape and strides say where the tensor's elements are. Two elements to be written may not lie at one place.
bool isDescribable(const at::Tensor& tensor, bool written) {
  return tensor.dim() <= KOLO_MAX_DIMS && !tensor.is_conj() && !tensor.is_neg() &&
         !(written && at::has_internal_overlap(tensor) == at::MemOverlap::Yes);
}

koloItem_t itemOf(koloDataType_t sendType, koloDataType_t transferType) {
  koloItem_t item{};
  item.sendtype = sendType;
  item.transfertype = item.recvtype = transferType;
  return item;
}

// Whether a tensor of so many blocks along its first dimension has blocks of this shape.
bool hasBlocksOf(const at::Tensor& whole, const at::Tensor& block, int size) {
  return whole.dim() == block.dim() && whole.size(0) == block.size(0) * size &&
         std::equal(whole.sizes().begin() + 1, whole.sizes().end(), block.sizes().begin() + 1);
}

}  // namespace

const koloArray_t* Items::layoutOf(const at::Tensor& tensor) {
  Layout& layout = layouts_.emplace_back();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), layout.shape);
  std::copy(tensor.strides().begin(), tensor.strides().end(), layout.strides);
  layout.array = {static_cast<int>(tensor.dim()), layout.shape, layout.strides};
  return &layout.array;
}

Items::Side Items::side(Operation& operation, const at::Tensor& tensor, Use use, bool asArray) {
  const bool written = use != Use::kRead;
  if (asArray && !tensor.is_contiguous() && isDescribable(tensor, written)) {
    operation.show(tensor, use == Use::kWritten);
    operation.keep(tensor);
    return {const_cast<void*>(tensor.const_data_ptr()), static_cast<std::size_t>(tensor.numel()), layoutOf(tensor)};
  }
  const Block block = use == Use::kRead      ? operation.reads(tensor)
                      : use == Use::kWritten ? operation.writes(tensor)
                                             : operation.updates(tensor);
  return {block.data, block.count, nullptr};
}

void Items::reduceAll(Operation& operation, const at::Tensor& tensor) {
  const Side both = side(operation, tensor, Use::kUpdated);
  const koloDataType_t type = typeToReduce(tensor.scalar_type());
  koloItem_t& item = items_.emplace_back(itemOf(type, type));
  item.sendbuf = item.recvbuf = both.data;
  item.sendarray = item.recvarray = both.array;
  item.count = both.count;
}

// A buffer without an array beside one with an array is row-major, in blocks of the array's shape. So are these.
std::pair<Items::Side, Items::Side> Items::wholeAndBlock(Operation& operation, const at::Tensor& whole,
                                                         const at::Tensor& block, int size, bool gathers) {
  const bool isCut = whole.dim() > 0 && whole.size(0) % size == 0;
  const Side outer = side(operation, whole, gathers ? Use::kWritten : Use::kRead, isCut);
  const bool fits = outer.array == nullptr || hasBlocksOf(whole, block, size);
  return {outer, side(operation, block, gathers ? Use::kRead : Use::kWritten, fits)};
}

void Items::gather(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size) {
  const auto [whole, block] = wholeAndBlock(operation, output, input, size, true);
  const koloDataType_t type = typeToMove(output.scalar_type());
  koloItem_t& item = items_.emplace_back(itemOf(typeToMove(input.scalar_type()), type));
  item.sendbuf = block.data, item.sendarray = block.array;
  item.recvbuf = whole.data, item.recvarray = whole.array;
  item.count = block.count;
}

void Items::reduceScatter(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size) {
  const auto [whole, block] = wholeAndBlock(operation, input, output, size, false);
  const koloDataType_t type = typeToReduce(output.scalar_type());
  koloItem_t& item = items_.emplace_back(itemOf(typeToReduce(input.scalar_type()), type));
  item.sendbuf = whole.data, item.sendarray = whole.array;
  item.recvbuf = block.data, item.recvarray = block.array;
  item.count = block.count;
}

template <class Each>
void Items::forEachRank(Operation& operation, const std::vector<at::Tensor>& tensors, Use use, Each&& each) {
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    const Side part = side(operation, tensors[r], use);
    std::vector<std::size_t>& counts = counts_.emplace_back(tensors.size(), 0);
    counts[r] = part.array == nullptr ? part.count : part.array->shape[0];
    const koloDataType_t type = typeToMove(tensors[r].scalar_type());
    koloItem_t& item = items_.emplace_back(itemOf(type, type));
    item.counts = counts.data();
    each(item, r, part);
  }
}

void Items::gatherApart(Operation& operation, const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                        int rank) {
  const Side own = side(operation, input, Use::kRead, false);
  forEachRank(operation, outputs, Use::kWritten, [&](koloItem_t& item, std::size_t r, const Side& part) {
    item.recvbuf = part.data, item.recvarray = part.array;
    if (r == static_cast<std::size_t>(rank)) item.sendbuf = own.data;
  });
}

void Items::reduceScatterApart(Operation& operation, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                               int rank) {
  const Side own = side(operation, output, Use::kWritten, false);
  forEachRank(operation, inputs, Use::kRead, [&](koloItem_t& item, std::size_t r, const Side& part) {
    item.sendbuf = part.data, item.sendarray = part.array;
    if (r == static_cast<std::size_t>(rank)) item.recvbuf = own.data;
  });
}

}  // namespace kolo::pytorch
