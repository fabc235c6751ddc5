// What ends the waits of this process for other ranks, whatever those do: the failure or the abort of a communicator
// ends the exchanges of its calls. The hub and the other ranks have no part in that; they may be stopped.
//
// Thread safety: all functions, from any thread.
// Invariant: once raised, it stays so. A wait that begins afterwards ends at once.
#pragma once

#include <mutex>
#include <vector>

#include "base/status.h"

namespace kolo::bootstrap {

class Handover;

class Interrupt {
 public:
  // Ends what waits, and what comes to wait, with this error. Only the first call counts.
  void raise(const Status& why);
  bool isRaised() const { return !why().ok(); }
  // Success: it is not raised.
  Status why() const;

  // The time in which something is waited for that this ends. interrupt: null: nothing ends it.
  class Scope {
   public:
    Scope(Interrupt* interrupt, Handover& awaited);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Interrupt* const interrupt_;
    Handover& awaited_;
  };

 private:
  mutable std::mutex mutex_;
  Status why_;
  std::vector<Handover*> awaited_;
};

}  // namespace kolo::bootstrap
