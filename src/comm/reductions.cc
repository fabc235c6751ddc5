#include "comm/reductions.h"

namespace kolo::comm {

koloRedOp_t Reductions::add(const CustomReduction& reduction) {
  const std::lock_guard lock(mutex_);
  const auto op = static_cast<koloRedOp_t>(next_++);
  entries_.emplace(op, std::make_shared<CustomReduction>(reduction));
  return op;
}

std::shared_ptr<const CustomReduction> Reductions::find(koloRedOp_t op) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(op);
  return found != entries_.end() ? found->second : nullptr;
}

bool Reductions::remove(koloRedOp_t op) {
  const std::lock_guard lock(mutex_);
  return entries_.erase(op) != 0;
}

}  // namespace kolo::comm
