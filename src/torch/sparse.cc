// The sum of sparse tensors: every rank gets all ranks' indices and values, and adds them up.
//
// How many there are is asked for in the call, which so waits for the other ranks; what is long goes as a request.
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/float_mode.h"
#include "torch/backend.h"

namespace kolo::pytorch {
namespace {

// What a rank says of its tensor: sparse dimensions, sizes, then how many elements it specifies.
std::vector<std::int64_t> describe(const at::Tensor& tensor) {
  std::vector<std::int64_t> words{tensor.sparse_dim()};
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  words.push_back(tensor._nnz());
  return words;
}

std::string inWords(const std::int64_t* words, std::size_t count) {
  std::string text = std::to_string(words[0]) + " sparse dimensions of (";
  for (std::size_t i = 1; i + 1 < count; ++i) text += (i == 1 ? "" : ", ") + std::to_string(words[i]);
  return text + ")";
}

// The blocks of all ranks, one behind the other.
at::Tensor sumOf(const at::Tensor& indices, const at::Tensor& values, const std::vector<std::size_t>& specified,
                 const at::Tensor& like) {
  Tensors parts;
  std::int64_t next = 0;
  for (const std::size_t count : specified) {
    const auto n = static_cast<std::int64_t>(count);
    parts.push_back(indices.narrow(0, next * like.sparse_dim(), n * like.sparse_dim()).view({like.sparse_dim(), n}));
    next += n;
  }
  return at::_sparse_coo_tensor_unsafe(at::cat(parts, 1), values, like.sizes(), like.options()).coalesce();
}

}  // namespace

WorkPtr KoloBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse(),
                    "expected one sparse tensor");
  TORCH_CHECK_VALUE(tensors[0].device().is_cpu(), "kolo sums sparse tensors on cpu, got one on ",
                    tensors[0].device().str());
  TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM || options.reduceOp.op_ == c10d::ReduceOp::AVG,
                    "allreduce of sparse tensors only works with ReduceOp.SUM and AVG");
  TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM || tensors[0].scalar_type() != at::kBool,
                    "bool has no average");
  TORCH_CHECK_VALUE(!coalesces(), "allreduce of sparse tensors cannot be coalesced");
  const UsualFloatMode usual;  // in which Kolo sums everywhere else
  const at::Tensor target = tensors[0], own = target.coalesce();
  const auto size = static_cast<std::size_t>(size_);
  const std::vector<std::int64_t> words = describe(own);
  std::vector<std::int64_t> all(words.size() * size);
  const Deadline limit(deadline(options.timeout), *host_);
  check(koloAllGather(words.data(), all.data(), words.size(), koloInt64, host_->get(), nullptr),
        "kolo:sparse_all_reduce");
  std::vector<std::size_t> specified, indexCounts, valueCounts;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::int64_t* const its = all.data() + rank * words.size();
    TORCH_CHECK_VALUE(std::equal(words.begin(), words.end() - 1, its), "rank ", rank_, " has a tensor with ",
                      inWords(words.data(), words.size()), ", rank ", rank, " one with ", inWords(its, words.size()));
    specified.push_back(static_cast<std::size_t>(its[words.size() - 1]));
  }
  std::int64_t each = 1;
  for (std::int64_t d = own.sparse_dim(); d < own.dim(); ++d) each *= own.size(d);
  for (const std::size_t count : specified) {
    indexCounts.push_back(count * static_cast<std::size_t>(own.sparse_dim()));
    valueCounts.push_back(count * static_cast<std::size_t>(each));
  }
  const auto total = static_cast<std::int64_t>(std::accumulate(specified.begin(), specified.end(), std::size_t{0}));
  std::vector<std::int64_t> shape = own._values().sizes().vec();
  shape[0] = total;
  const at::Tensor indices = at::empty({total * own.sparse_dim()}, at::kLong),
                   values = at::empty(shape, own._values().options());
  Operation operation("kolo:sparse_all_reduce", c10d::OpType::_ALLREDUCE_SPARSE, at::kCPU, true);
  const Block ownIndices = operation.reads(own._indices()), ownValues = operation.reads(own._values());
  const Block allIndices = operation.writes(indices), allValues = operation.writes(values);
  if (options.asyncOp) operation.outputs.push_back(target);
  operation.afterwards = [target, indices, values, specified, average = options.reduceOp.op_ == c10d::ReduceOp::AVG,
                          n = size_] {
    const at::NoGradGuard noGrad;
    const UsualFloatMode usual;
    at::Tensor sum = sumOf(indices, values, specified, target);
    if (average && c10::isIntegralType(sum.scalar_type(), false)) sum._values().div_(n, "trunc");
    else if (average) sum.div_(n);
    at::Tensor(target).copy_(sum);
  };
  return run(std::move(operation), options.asyncOp, options.timeout,
             [=, type = typeToMove(own.scalar_type())](const Place& at, Operation&) {
               return startGroup(at, [&](const Place& inside) {
                 (void)start(inside, koloAllGatherv, koloIallGatherv, ownIndices.data, allIndices.data,
                             indexCounts.data(), nullptr, koloInt64);
                 (void)start(inside, koloAllGatherv, koloIallGatherv, ownValues.data, allValues.data,
                             valueCounts.data(), nullptr, type);
               });
             });
}

}  // namespace kolo::pytorch
