#include "torch/operation.h"

#include <algorithm>
#include <cstdint>

#include "torch/errors.h"

namespace kolo::pytorch {
namespace {

// Whether the memory holds the elements in their logical order, and nothing else has to be done to read them.
bool isPlain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

at::Tensor plainCopy(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous(); }

// For tensors of any strides, negative and conjugated ones: contiguous memory for the same elements.
at::Tensor plainMemoryFor(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options(), at::MemoryFormat::Contiguous);
}

Block blockOf(const at::Tensor& plain) {
  return {const_cast<void*>(plain.const_data_ptr()), static_cast<std::size_t>(plain.numel())};
}

// The counts of a list, displacements as if its tensors lay in a row.
Blocks countsOf(const std::vector<at::Tensor>& tensors) {
  Blocks blocks;
  blocks.counts.reserve(tensors.size());
  blocks.displs.reserve(tensors.size());
  std::size_t next = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto count = static_cast<std::size_t>(tensor.numel());
    blocks.counts.push_back(count);
    blocks.displs.push_back(next);
    blocks.equal = blocks.equal && count == blocks.counts.front();
    next += count;
  }
  return blocks;
}

struct Range {
  std::uintptr_t begin = UINTPTR_MAX, end = 0;
};

Range rangeOf(const std::vector<at::Tensor>& tensors) {
  Range range;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    range.begin = std::min(range.begin, begin);
    range.end = std::max(range.end, begin + tensor.nbytes());
  }
  return range;
}

// Whether the tensors can be used where they lie, as blocks behind the first one's begin.
bool isSpread(const std::vector<at::Tensor>& tensors, const Range& range) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const auto distance =
        tensor.numel() == 0 ? 0 : reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) - range.begin;
    return isPlain(tensor) && distance % tensor.element_size() == 0;
  });
}

// Whether the tensors of both buffers of an operation can be used where they lie: memory that one of them needed would
// lie anywhere, perhaps between the tensors of the other.
bool areSpread(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other) {
  const Range range = rangeOf(tensors), others = rangeOf(other);
  const bool separate = range.end <= others.begin || others.end <= range.begin;
  return separate && isSpread(tensors, range) && isSpread(other, others);
}

// Whether the tensors' memory is one block in this order.
bool liesInRow(const std::vector<at::Tensor>& tensors) {
  std::uintptr_t next = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!isPlain(tensor)) return false;
    if (tensor.numel() == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
    if (next != 0 && begin != next) return false;
    next = begin + tensor.nbytes();
  }
  return true;
}

}  // namespace

void checkAlike(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(
        tensor.scalar_type() == tensors.front().scalar_type() && tensor.device() == tensors.front().device(),
        "the tensors of a list are of several types or devices: ", tensors.front().toString(), " and ",
        tensor.toString());
  }
}

std::unique_ptr<Profile> Profile::make() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE) ? std::make_unique<Profile>() : nullptr;
}

Block Operation::reads(const at::Tensor& tensor) {
  show(tensor, false);
  if (isPlain(tensor)) {
    keep(tensor);
    return blockOf(tensor);
  }
  held_.push_back(plainCopy(tensor));
  return blockOf(held_.back());
}

Block Operation::writes(const at::Tensor& tensor) {
  show(tensor, true);
  if (isPlain(tensor)) {
    keep(tensor);
    return blockOf(tensor);
  }
  copies_.push_back({tensor, plainMemoryFor(tensor)});
  return blockOf(copies_.back().from);
}

Block Operation::updates(const at::Tensor& tensor) {
  show(tensor, false);
  if (isPlain(tensor)) {
    keep(tensor);
    return blockOf(tensor);
  }
  copies_.push_back({tensor, plainCopy(tensor)});
  return blockOf(copies_.back().from);
}

Blocks Operation::inRow(const std::vector<at::Tensor>& tensors, bool written) {
  checkAlike(tensors);
  Blocks blocks = countsOf(tensors);
  if (liesInRow(tensors)) {
    for (const at::Tensor& tensor : tensors) {
      keep(tensor);
      if (blocks.data == nullptr) blocks.data = blockOf(tensor).data;
    }
    return blocks;
  }
  const auto total = static_cast<std::int64_t>(blocks.displs.back() + blocks.counts.back());
  const at::Tensor row = at::empty({total}, tensors.front().options());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor part =
        row.narrow(0, static_cast<std::int64_t>(blocks.displs[i]), tensors[i].numel()).view(tensors[i].sizes());
    if (written) {
      copies_.push_back({tensors[i], part});
    } else {
      part.copy_(tensors[i]);
    }
  }
  held_.push_back(row);
  blocks.data = blockOf(row).data;
  return blocks;
}

Blocks Operation::apart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other, bool written) {
  checkAlike(tensors);
  if (!areSpread(tensors, other)) return inRow(tensors, written);
  const Range range = rangeOf(tensors);
  const auto size = tensors.front().element_size();
  Blocks blocks = countsOf(tensors);
  blocks.data = range.end == 0 ? nullptr : reinterpret_cast<void*>(range.begin);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    keep(tensors[i]);
    const auto begin = reinterpret_cast<std::uintptr_t>(tensors[i].const_data_ptr());
    blocks.displs[i] = tensors[i].numel() == 0 ? 0 : (begin - range.begin) / size;
  }
  return blocks;
}

Blocks Operation::readsInRow(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) show(tensor, false);
  return inRow(tensors, false);
}
Blocks Operation::writesInRow(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) show(tensor, true);
  return inRow(tensors, true);
}
Blocks Operation::readsApart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other) {
  for (const at::Tensor& tensor : tensors) show(tensor, false);
  return apart(tensors, other, false);
}
Blocks Operation::writesApart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other) {
  for (const at::Tensor& tensor : tensors) show(tensor, true);
  return apart(tensors, other, true);
}

koloRedOp_t Operation::reduction(const c10d::ReduceOp& op, at::ScalarType scalar, koloComm_t comm) {
  Reduction made(op, scalar, comm);
  const koloRedOp_t handle = made.get();
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) reductions_.push_back(std::move(made));
  return handle;
}

bool Operation::needsLocals() const {
  if (!copies_.empty() || afterwards) return true;
  return std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part->needsLocals(); });
}

void Operation::conclude(bool success) {
  for (const auto& part : parts) part->conclude(success);
  if (success && !copies_.empty()) {
    const at::NoGradGuard noGrad;
    for (const Copy& copy : copies_) copy.to.copy_(copy.from);
  }
  if (success && afterwards) afterwards();
  copies_.clear();
  held_.clear();
  reductions_.clear();
  afterwards = nullptr;
}

std::exception_ptr Operation::complaint() const {
  for (const auto& part : parts) {
    if (auto found = part->complaint()) return found;
  }
  if (!expected_ || received.source < 0 || received.count == *expected_) return nullptr;
  return exceptionFor(koloMismatch, title,
                      "rank " + std::to_string(received.source) + " sent " + std::to_string(received.count) +
                          " elements with tag " + std::to_string(received.tag) + ", the tensor has " +
                          std::to_string(*expected_));
}

}  // namespace kolo::pytorch
