#include "comm/reductions.h"

namespace kolo::comm {

koloRedOp_t Reductions::add(const CustomReduction& reduction) {
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::make_shared<CustomReduction>(reduction));
  return static_cast<koloRedOp_t>(koloNumOps + static_cast<int>(entries_.size()) - 1);
}

std::shared_ptr<const CustomReduction> Reductions::find(koloRedOp_t op) const {
  const std::lock_guard lock(mutex_);
  const std::size_t index = static_cast<std::size_t>(op) - koloNumOps;
  return op >= koloNumOps && index < entries_.size() ? entries_[index] : nullptr;
}

bool Reductions::remove(koloRedOp_t op) {
  const std::lock_guard lock(mutex_);
  const std::size_t index = static_cast<std::size_t>(op) - koloNumOps;
  if (op < koloNumOps || index >= entries_.size() || entries_[index] == nullptr) return false;
  entries_[index].reset();
  return true;
}

}  // namespace kolo::comm
