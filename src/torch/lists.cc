// Collectives that take a tensor for each rank, of any sizes.
#include <cstddef>
#include <memory>

#include "torch/backend.h"
#include "torch/items.h"

namespace kolo::pytorch {
namespace {

void results(Operation& operation, const Tensors& tensors) {
  if (operation.lasting) operation.outputs.insert(operation.outputs.end(), tensors.begin(), tensors.end());
}

// A list with one tensor for each rank, alone in a list.
const Tensors& onlyList(const std::vector<Tensors>& lists, int size) {
  TORCH_CHECK_VALUE(lists.size() == 1, "expected a list of one list, got ", lists.size());
  TORCH_CHECK_VALUE(lists[0].size() == static_cast<std::size_t>(size), "expected a tensor for each of ", size,
                    " ranks, got ", lists[0].size());
  for (const at::Tensor& tensor : lists[0]) checkTensor(tensor);
  return lists[0];
}

// From so many bytes on, copies into one buffer and out of it take longer than it takes to describe a list.
constexpr std::size_t kBytesOfList = 256 << 10;

// All ranks know the sizes of all tensors, so they all come to the same.
bool isWorthAList(const Tensors& list) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : list) bytes += tensor.nbytes();
  return bytes >= kBytesOfList;
}

void checkOwn(const Tensors& list, const at::Tensor& own, int rank) {
  const at::Tensor& mine = list[static_cast<std::size_t>(rank)];
  const bool areAlike =
      mine.numel() == own.numel() && mine.scalar_type() == own.scalar_type() && mine.device() == own.device();
  TORCH_CHECK_VALUE(areAlike, "element ", rank, " of the list is ", mine.toString(), " with ", mine.numel(),
                    " elements on ", mine.device().str(), ", this rank's tensor is ", own.toString(), " with ",
                    own.numel(), " on ", own.device().str());
}

// One all-gather to a list of tensors.
struct Gathered {
  Block in;
  Blocks out;
  koloDataType_t type;

  koloResult_t operator()(const Place& at) const {
    if (out.equal) return start(at, koloAllGather, koloIallGather, in.data, out.data, in.count, type);
    return start(at, koloAllGatherv, koloIallGatherv, in.data, out.data, out.counts.data(), nullptr, type);
  }
};

Gathered gatherTo(Operation& operation, const Tensors& list, const at::Tensor& input, int rank) {
  checkOwn(list, input, rank);
  return {operation.reads(input), operation.writesInRow(list), typeToMove(input.scalar_type())};
}

void gatherAsItems(Items& items, Operation& operation, const Tensors& list, const at::Tensor& input, int rank) {
  checkOwn(list, input, rank);
  checkAlike(list);
  items.gatherApart(operation, list, input, rank);
}

auto gatherItems(const std::shared_ptr<Items>& items) {
  return
      [items](const Place& at, Operation&) { return startAlone(at, koloAllGatherList, items->data(), items->size()); };
}

}  // namespace

WorkPtr KoloBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const Tensors& list = onlyList(outputs, size_);
  const at::Tensor& input = only(inputs);
  Operation operation("kolo:all_gather", c10d::OpType::ALLGATHER, input.device(),
                      lasts(options.asyncOp, input.device()));
  if (takesLists(input.device()) && isWorthAList(list)) {
    const auto items = std::make_shared<Items>();
    gatherAsItems(*items, operation, list, input, rank_);
    results(operation, list);
    return run(std::move(operation), options.asyncOp, options.timeout, gatherItems(items));
  }
  const Gathered gathered = gatherTo(operation, list, input, rank_);
  results(operation, list);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [gathered](const Place& at, Operation&) { return gathered(at); });
}

// The lists are one for each rank, with a tensor for each input.
WorkPtr KoloBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == static_cast<std::size_t>(size_),
                    "expected an output list for each of ", size_, " ranks, and an input, got ", outputs.size(),
                    " and ", inputs.size());
  for (const at::Tensor& input : inputs) checkTensor(input);
  const at::Device device = inputs.front().device();
  Operation operation("kolo:all_gather", c10d::OpType::ALLGATHER_COALESCED, device, lasts(options.asyncOp, device));
  const bool asItems = takesLists(device);
  const auto items = std::make_shared<Items>();
  std::vector<Gathered> all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors list;
    for (const Tensors& ofRank : outputs) {
      TORCH_CHECK_VALUE(ofRank.size() == inputs.size(), "an output list has ", ofRank.size(), " tensors, expected ",
                        inputs.size());
      checkTensor(ofRank[i]);
      list.push_back(ofRank[i]);
    }
    if (asItems) gatherAsItems(*items, operation, list, inputs[i], rank_);
    else all.push_back(gatherTo(operation, list, inputs[i], rank_));
  }
  for (const Tensors& ofRank : outputs) results(operation, ofRank);
  if (asItems) return run(std::move(operation), options.asyncOp, options.timeout, gatherItems(items));
  return run(std::move(operation), options.asyncOp, options.timeout,
             [all = std::move(all)](const Place& at, Operation&) {
               return startGroup(at, [&](const Place& inside) {
                 for (const Gathered& each : all) (void)each(inside);
               });
             });
}

// Only the root knows whether the blocks are equally long, so it is the form with counts on all ranks.
WorkPtr KoloBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs);
  const int root = static_cast<int>(options.rootRank);
  Operation operation("kolo:gather", c10d::OpType::GATHER, input.device(), lasts(options.asyncOp, input.device()));
  Blocks out;
  if (root == rank_) {
    const Tensors& list = onlyList(outputs, size_);
    checkOwn(list, input, rank_);
    out = operation.writesApart(list, inputs);
    results(operation, list);
  } else {
    TORCH_CHECK_VALUE(outputs.empty() || outputs[0].empty(), "gather: outputs are for the root, rank ", root, ", only");
  }
  const Block in = operation.reads(input);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [in, out = std::move(out), root, type = typeToMove(input.scalar_type())](const Place& at, Operation&) {
               return start(at, koloGatherv, koloIgatherv, in.data, in.count, out.data, out.counts.data(),
                            out.displs.data(), type, root);
             });
}

WorkPtr KoloBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs);
  const int root = static_cast<int>(options.rootRank);
  Operation operation("kolo:scatter", c10d::OpType::SCATTER, output.device(), lasts(options.asyncOp, output.device()));
  Blocks in;
  if (root == rank_) {
    const Tensors& list = onlyList(inputs, size_);
    checkOwn(list, output, rank_);
    in = operation.readsApart(list, outputs);
  } else {
    TORCH_CHECK_VALUE(inputs.empty() || inputs[0].empty(), "scatter: inputs are for the root, rank ", root, ", only");
  }
  const Block out = operation.writes(output);
  results(operation, outputs);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [in = std::move(in), out, root, type = typeToMove(output.scalar_type())](const Place& at, Operation&) {
               return start(at, koloScatterv, koloIscatterv, in.data, in.counts.data(), in.displs.data(), out.data,
                            out.count, type, root);
             });
}

WorkPtr KoloBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs);
  const Tensors& list = onlyList(inputs, size_);
  checkOwn(list, output, rank_);
  const at::Device device = output.device();
  Operation operation("kolo:reduce_scatter", c10d::OpType::REDUCE_SCATTER, device, lasts(options.asyncOp, device));
  const koloDataType_t type = typeToReduce(output.scalar_type());
  const koloRedOp_t op = operation.reduction(options.reduceOp, output.scalar_type(), comm(device));
  results(operation, outputs);
  if (takesLists(device) && isWorthAList(list)) {
    checkAlike(list);
    const auto items = std::make_shared<Items>();
    items->reduceScatterApart(operation, output, list, rank_);
    return run(std::move(operation), options.asyncOp, options.timeout, [items, op](const Place& at, Operation&) {
      return startAlone(at, koloReduceScatterList, items->data(), items->size(), op);
    });
  }
  Blocks in = operation.readsInRow(list);
  const Block out = operation.writes(output);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [in = std::move(in), out, type, op](const Place& at, Operation&) {
               if (in.equal)
                 return start(at, koloReduceScatter, koloIreduceScatter, in.data, out.data, out.count, type, op);
               return start(at, koloReduceScatterv, koloIreduceScatterv, in.data, out.data, in.counts.data(), nullptr,
                            type, op);
             });
}

WorkPtr KoloBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto size = static_cast<std::size_t>(size_);
  TORCH_CHECK_VALUE(outputs.size() == size && inputs.size() == size, "expected an output and an input for each of ",
                    size_, " ranks, got ", outputs.size(), " and ", inputs.size());
  for (const Tensors* tensors : {&outputs, &inputs}) {
    for (const at::Tensor& tensor : *tensors) {
      checkTensor(tensor);
      const at::Tensor& first = inputs.front();
      TORCH_CHECK_VALUE(tensor.scalar_type() == first.scalar_type() && tensor.device() == first.device(),
                        "expected tensors of one type on one device, got ", first.toString(), " on ",
                        first.device().str(), " and ", tensor.toString(), " on ", tensor.device().str());
    }
  }
  const at::Device device = inputs.front().device();
  Operation operation("kolo:all_to_all", c10d::OpType::ALLTOALL, device, lasts(options.asyncOp, device));
  Blocks out = operation.writesApart(outputs, inputs), in = operation.readsApart(inputs, outputs);
  results(operation, outputs);
  return run(std::move(operation), options.asyncOp, options.timeout,
             [in = std::move(in), out = std::move(out), type = typeToMove(inputs.front().scalar_type())](
                 const Place& at, Operation&) {
               return start(at, koloAllToAllv, koloIallToAllv, in.data, in.counts.data(), in.displs.data(), out.data,
                            out.counts.data(), out.displs.data(), type);
             });
}

}  // namespace kolo::pytorch
