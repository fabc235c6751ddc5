#include "bootstrap/interrupt.h"

#include <algorithm>

#include "bootstrap/member_link.h"

namespace kolo::bootstrap {

void Interrupt::raise(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!why_.ok()) return;
  why_ = why;
  for (Handover* const each : awaited_) each->finish(why);
}

Status Interrupt::why() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

Interrupt::Scope::Scope(Interrupt* interrupt, Handover& awaited) : interrupt_(interrupt), awaited_(awaited) {
  if (interrupt_ == nullptr) return;
  const std::lock_guard lock(interrupt_->mutex_);
  interrupt_->awaited_.push_back(&awaited_);
  if (!interrupt_->why_.ok()) awaited_.finish(interrupt_->why_);
}

Interrupt::Scope::~Scope() {
  if (interrupt_ == nullptr) return;
  const std::lock_guard lock(interrupt_->mutex_);
  std::erase(interrupt_->awaited_, &awaited_);
}

}  // namespace kolo::bootstrap
