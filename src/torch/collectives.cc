// Collectives on single tensors, and their coalesced forms.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>

#include "torch/backend.h"
#include "torch/items.h"

namespace kolo::pytorch {
namespace {

// What an asynchronous work gives as its result.
void results(Operation& operation, const at::Tensor& tensor) {
  if (operation.lasting) operation.outputs.push_back(tensor);
}

void checkPair(const at::Tensor& output, const at::Tensor& input) {
  checkTensor(output);
  checkTensor(input);
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type() && output.device() == input.device(),
                    "output and input are of different types or devices: ", output.toString(), " and ",
                    input.toString());
}

constexpr const char* kNotGathered = "output tensor size must be equal to world_size times input tensor size";
constexpr const char* kNotScattered = "input tensor must be the same size as output size times world size";

void checkTimes(const at::Tensor& large, const at::Tensor& small, int size, const char* what) {
  TORCH_CHECK_VALUE(large.numel() == small.numel() * size, what, ": expected ", size, " x ", small.numel(),
                    " elements, got ", large.numel());
}

// converted: an output may be of another type than its input.
void checkPairs(const Tensors& outputs, const Tensors& inputs, bool converted) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(),
                    "expected as many outputs as inputs, and at least one, got ", outputs.size(), " and ",
                    inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    checkTensor(outputs[i]);
    checkTensor(inputs[i]);
    TORCH_CHECK_VALUE(outputs[i].device() == inputs.front().device() && inputs[i].device() == inputs.front().device() &&
                          (converted || outputs[i].scalar_type() == inputs[i].scalar_type()),
                      "item ", i, ": output and input are of different types or devices: ", outputs[i].toString(),
                      " and ", inputs[i].toString());
  }
}

// What one operation of a group works on.
struct Pair {
  Block out, in;
  koloDataType_t type;
  koloRedOp_t op = koloSum;
};

Pair pairToGather(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size) {
  checkTimes(output, input, size, kNotGathered);
  const Pair pair{operation.writes(output), operation.reads(input), typeToMove(input.scalar_type())};
  results(operation, output);
  return pair;
}

Pair pairToScatter(Operation& operation, const at::Tensor& output, const at::Tensor& input, int size,
                   const c10d::ReduceOp& reduceOp, koloComm_t comm) {
  checkTimes(input, output, size, kNotScattered);
  const koloDataType_t type = typeToReduce(input.scalar_type());
  const koloRedOp_t op = operation.reduction(reduceOp, input.scalar_type(), comm);
  const Pair pair{operation.writes(output), operation.reads(input), type, op};
  results(operation, output);
  return pair;
}

Pair pairToReduce(Operation& operation, const at::Tensor& tensor, const c10d::ReduceOp& reduceOp, koloComm_t comm) {
  const koloDataType_t type = typeToReduce(tensor.scalar_type());
  const koloRedOp_t op = operation.reduction(reduceOp, tensor.scalar_type(), comm);
  const Block block = operation.updates(tensor);
  results(operation, tensor);
  return {block, block, type, op};
}

koloResult_t gatherAll(const Place& at, const Pair& pair) {
  return start(at, koloAllGather, koloIallGather, pair.in.data, pair.out.data, pair.in.count, pair.type);
}

koloResult_t reduceScatter(const Place& at, const Pair& pair) {
  return start(at, koloReduceScatter, koloIreduceScatter, pair.in.data, pair.out.data, pair.out.count, pair.type,
               pair.op);
}

koloResult_t reduceAll(const Place& at, const Pair& pair) {
  return start(at, koloAllReduce, koloIallReduce, pair.in.data, pair.out.data, pair.in.count, pair.type, pair.op);
}

// A call of the operation for one pair, and a group of calls for several.
template <auto issue>
auto callOf(const Pair& pair) {
  return [pair](const Place& at, Operation&) { return issue(at, pair); };
}

template <auto issue>
auto groupOf(std::vector<Pair> pairs) {
  return [pairs = std::move(pairs)](const Place& at, Operation&) {
    return startGroup(at, [&](const Place& inside) {
      for (const Pair& pair : pairs) (void)issue(inside, pair);
    });
  };
}

// The lists of a reduction of several tensors: one, or where types have reductions of their own (truth values, and
// pre-multiplied sums) one for each reduction.
class ReducedLists {
 public:
  // The items for tensors of a type.
  Items& of(Operation& operation, const c10d::ReduceOp& reduceOp, at::ScalarType scalar, koloComm_t comm) {
    auto known =
        std::find_if(ops_.begin(), ops_.end(), [&](const auto& typeAndOp) { return typeAndOp.first == scalar; });
    if (known == ops_.end()) known = ops_.insert(known, {scalar, operation.reduction(reduceOp, scalar, comm)});
    auto list = std::find_if(lists_.begin(), lists_.end(), [&](const List& each) { return each.op == known->second; });
    return (list != lists_.end() ? *list : lists_.emplace_back(known->second)).items;
  }

  template <class Call>
  koloResult_t start(const Place& at, Call call) const {
    const auto one = [&](const Place& place, const List& list) {
      return startAlone(place, call, list.items.data(), list.items.size(), list.op);
    };
    if (lists_.size() == 1) return one(at, lists_.front());
    return startGroup(at, [&](const Place& inside) {
      for (const List& list : lists_) (void)one(inside, list);
    });
  }

 private:
  struct List {
    explicit List(koloRedOp_t op) : op(op) {}
    koloRedOp_t op;
    Items items;
  };
  std::vector<std::pair<at::ScalarType, koloRedOp_t>> ops_;
  std::deque<List> lists_;
};

// Counts of a buffer whose first dimension is divided among the ranks; no splits: equally.
std::vector<std::size_t> countsOf(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int size,
                                  const char* name) {
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, name, "'s first dimension is ", rows, ", expected a multiple of ", size,
                      " ranks");
    return std::vector<std::size_t>(static_cast<std::size_t>(size), static_cast<std::size_t>(tensor.numel() / size));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<std::size_t>(size), name, " has ", splits.size(), " splits, expected ",
                    size);
  const std::int64_t rowElements = rows == 0 ? 0 : tensor.numel() / rows;
  std::int64_t sum = 0;
  std::vector<std::size_t> counts;
  for (const std::int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, name, " has a split of ", split);
    sum += split;
    counts.push_back(static_cast<std::size_t>(split * rowElements));
  }
  TORCH_CHECK_VALUE(sum == rows, name, "'s splits sum up to ", sum, ", expected its first dimension, ", rows);
  return counts;
}

}  // namespace

void checkTensor(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "kolo takes dense tensors, got one of layout ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu() || tensor.device().is_cuda(),
                    "kolo takes tensors on cpu and cuda, got one on ", tensor.device().str());
}

const at::Tensor& only(const Tensors& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "expected a list of one tensor, got ", tensors.size());
  checkTensor(tensors[0]);
  return tensors[0];
}

WorkPtr KoloBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors);
  const int root = static_cast<int>(options.rootRank);
  Operation operation("kolo:broadcast", c10d::OpType::BROADCAST, tensor.device(),
                      lasts(options.asyncOp, tensor.device()));
  const Block block = root == rank_ ? operation.reads(tensor) : operation.writes(tensor);
  results(operation, tensor);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [block, root, type = typeToMove(tensor.scalar_type())](const Place& at, Operation&) {
               return start(at, koloBroadcast, koloIbroadcast, block.data, block.data, block.count, type, root);
             });
}

WorkPtr KoloBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() != 1) {
    c10d::AllreduceCoalescedOptions several;
    static_cast<c10d::AllreduceOptions&>(several) = options;
    return allreduce_coalesced(tensors, several);
  }
  if (tensors[0].defined() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  const at::Tensor& tensor = only(tensors);
  const at::Device device = tensor.device();
  Operation operation("kolo:all_reduce", c10d::OpType::ALLREDUCE, device, lasts(options.asyncOp, device));
  const Pair pair = pairToReduce(operation, tensor, options.reduceOp, comm(device));
  return run(std::move(operation), options.asyncOp, options.timeout, callOf<reduceAll>(pair));
}

WorkPtr KoloBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "expected at least one tensor");
  for (const at::Tensor& tensor : tensors) checkTensor(tensor);
  const at::Device device = tensors.front().device();
  Operation operation("kolo:all_reduce", c10d::OpType::ALLREDUCE_COALESCED, device, lasts(options.asyncOp, device));
  if (takesLists(device)) {
    const auto lists = std::make_shared<ReducedLists>();
    for (const at::Tensor& tensor : tensors) {
      lists->of(operation, options.reduceOp, tensor.scalar_type(), comm(device)).reduceAll(operation, tensor);
      results(operation, tensor);
    }
    return run(std::move(operation), options.asyncOp, options.timeout,
               [lists](const Place& at, Operation&) { return lists->start(at, koloAllReduceList); });
  }
  std::vector<Pair> pairs;
  for (const at::Tensor& tensor : tensors) {
    pairs.push_back(pairToReduce(operation, tensor, options.reduceOp, comm(device)));
  }
  return run(std::move(operation), options.asyncOp, options.timeout, groupOf<reduceAll>(std::move(pairs)));
}

WorkPtr KoloBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors);
  const at::Device device = tensor.device();
  const int root = static_cast<int>(options.rootRank);
  Operation operation("kolo:reduce", c10d::OpType::REDUCE, device, lasts(options.asyncOp, device));
  const koloDataType_t type = typeToReduce(tensor.scalar_type());
  const koloRedOp_t op = operation.reduction(options.reduceOp, tensor.scalar_type(), comm(device));
  const Block block = root == rank_ ? operation.updates(tensor) : operation.reads(tensor);
  results(operation, tensor);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [block, type, op, root](const Place& at, Operation&) {
               return start(at, koloReduce, koloIreduce, block.data, block.data, block.count, type, op, root);
             });
}

WorkPtr KoloBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  checkPair(output, input);
  Operation operation("kolo:all_gather", c10d::OpType::_ALLGATHER_BASE, input.device(),
                      lasts(options.asyncOp, input.device()));
  const Pair pair = pairToGather(operation, output, input, size_);
  return run(std::move(operation), options.asyncOp, options.timeout, callOf<gatherAll>(pair));
}

WorkPtr KoloBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "expected at least one input");
  checkTensor(inputs.front());
  const at::Device device = inputs.front().device();
  checkPairs(outputs, inputs, takesLists(device));
  Operation operation("kolo:all_gather", c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED, device,
                      lasts(options.asyncOp, device));
  if (takesLists(device)) {
    const auto items = std::make_shared<Items>();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      checkTimes(outputs[i], inputs[i], size_, kNotGathered);
      items->gather(operation, outputs[i], inputs[i], size_);
      results(operation, outputs[i]);
    }
    return run(std::move(operation), options.asyncOp, options.timeout, [items](const Place& at, Operation&) {
      return startAlone(at, koloAllGatherList, items->data(), items->size());
    });
  }
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pairs.push_back(pairToGather(operation, outputs[i], inputs[i], size_));
  }
  return run(std::move(operation), options.asyncOp, options.timeout, groupOf<gatherAll>(std::move(pairs)));
}

WorkPtr KoloBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::ReduceScatterOptions& options) {
  checkPair(output, input);
  const at::Device device = input.device();
  Operation operation("kolo:reduce_scatter", c10d::OpType::_REDUCE_SCATTER_BASE, device,
                      lasts(options.asyncOp, device));
  const Pair pair = pairToScatter(operation, output, input, size_, options.reduceOp, comm(device));
  return run(std::move(operation), options.asyncOp, options.timeout, callOf<reduceScatter>(pair));
}

WorkPtr KoloBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                     const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "expected at least one input");
  checkTensor(inputs.front());
  const at::Device device = inputs.front().device();
  checkPairs(outputs, inputs, takesLists(device));
  Operation operation("kolo:reduce_scatter", c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, device,
                      lasts(options.asyncOp, device));
  if (takesLists(device)) {
    const auto lists = std::make_shared<ReducedLists>();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      checkTimes(inputs[i], outputs[i], size_, kNotScattered);
      lists->of(operation, options.reduceOp, outputs[i].scalar_type(), comm(device))
          .reduceScatter(operation, outputs[i], inputs[i], size_);
      results(operation, outputs[i]);
    }
    return run(std::move(operation), options.asyncOp, options.timeout,
               [lists](const Place& at, Operation&) { return lists->start(at, koloReduceScatterList); });
  }
  std::vector<Pair> pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pairs.push_back(pairToScatter(operation, outputs[i], inputs[i], size_, options.reduceOp, comm(device)));
  }
  return run(std::move(operation), options.asyncOp, options.timeout, groupOf<reduceScatter>(std::move(pairs)));
}

WorkPtr KoloBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                                   std::vector<std::int64_t>& inputSplits, const c10d::AllToAllOptions& options) {
  checkPair(output, input);
  Operation operation("kolo:all_to_all", c10d::OpType::ALLTOALL_BASE, input.device(),
                      lasts(options.asyncOp, input.device()));
  const Block out = operation.writes(output), in = operation.reads(input);
  const koloDataType_t type = typeToMove(input.scalar_type());
  results(operation, output);
  auto outCounts = countsOf(output, outputSplits, size_, "output"),
       inCounts = countsOf(input, inputSplits, size_, "input");
  if (outputSplits.empty() && inputSplits.empty()) {
    TORCH_CHECK_VALUE(out.count == in.count, "output has ", out.count, " elements and input ", in.count,
                      ": expected equally many");
    const std::size_t count = in.count / static_cast<std::size_t>(size_);
    return run(std::move(operation), options.asyncOp, options.timeout,
               [out, in, count, type](const Place& at, Operation&) {
                 return start(at, koloAllToAll, koloIallToAll, in.data, out.data, count, type);
               });
  }
  return run(
      std::move(operation), options.asyncOp, options.timeout,
      [out, in, outCounts = std::move(outCounts), inCounts = std::move(inCounts), type](const Place& at, Operation&) {
        return start(at, koloAllToAllv, koloIallToAllv, in.data, inCounts.data(), nullptr, out.data, outCounts.data(),
                     nullptr, type);
      });
}

WorkPtr KoloBackend::gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) {
  checkTensor(input);
  const int root = static_cast<int>(options.rootRank);
  Operation operation("kolo:gather", c10d::OpType::GATHER, input.device(), lasts(options.asyncOp, input.device()));
  const Block in = operation.reads(input);
  Block out;
  if (root == rank_) {
    checkPair(output, input);
    checkTimes(output, input, size_, kNotGathered);
    out = operation.writes(output);
    results(operation, output);
  }
  return run(std::move(operation), options.asyncOp, options.timeout,
             [out, in, root, type = typeToMove(input.scalar_type())](const Place& at, Operation&) {
               return start(at, koloGather, koloIgather, in.data, out.data, in.count, type, root);
             });
}

}  // namespace kolo::pytorch
