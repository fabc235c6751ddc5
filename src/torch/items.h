// Tensors as the items of one list operation of Kolo's (koloAllReduceList and the like). Tensors are used where they
// lie, whatever their strides. What an item cannot describe is copied, as Operation does it.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "torch/operation.h"

namespace kolo::pytorch {

class Items {
 public:
  Items() = default;
  Items(const Items&) = delete;  // items point into it

  // A tensor that is reduced in place.
  void reduceAll(Operation& operation, const at::Tensor& tensor);
  // One tensor of each rank, and a tensor of so many blocks. Elements are converted to the output's type.
  void gather(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size);
  // A tensor of so many blocks, of which each rank gets its own, reduced. Elements are converted to the output's type.
  void reduceScatter(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size);
  // One tensor of each rank, and a tensor for each: an item for each rank, of which the others' parts are empty.
  void gatherApart(Operation& operation, const std::vector<at::Tensor>& outputs, const at::Tensor& input, int rank);
  // A tensor for each rank, of which each rank gets its own, reduced.
  void reduceScatterApart(Operation& operation, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                          int rank);

  const koloItem_t* data() const { return items_.data(); }
  std::size_t size() const { return items_.size(); }

 private:
  struct Layout {
    koloArray_t array;
    std::size_t shape[KOLO_MAX_DIMS];
    std::ptrdiff_t strides[KOLO_MAX_DIMS];
  };
  // One buffer of an item; without an array, its elements lie in a row.
  struct Side {
    void* data;
    std::size_t count;
    const koloArray_t* array;
  };
  enum class Use { kRead, kWritten, kUpdated };

  // asArray: the item may describe it by shape and strides.
  Side side(Operation& operation, const at::Tensor& tensor, Use use, bool asArray = true);
  const koloArray_t* layoutOf(const at::Tensor& tensor);
  // The two buffers of an item of which one has a block for each rank.
  std::pair<Side, Side> wholeAndBlock(Operation& operation, const at::Tensor& whole, const at::Tensor& block, int size,
                                      bool gathers);
  // An item for each rank. each(item, r, side): the side of the tensor that rank r's block comes from or goes to.
  template <class Each>
  void forEachRank(Operation& operation, const std::vector<at::Tensor>& tensors, Use use, Each&& each);

  std::vector<koloItem_t> items_;
  std::deque<Layout> layouts_;                   // which stay where they are
  std::deque<std::vector<std::size_t>> counts_;  // which stay, too
};

}  // namespace kolo::pytorch
