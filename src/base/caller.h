// What the library remembers of the calling thread between and during its calls.
#pragma once

#include <utility>

namespace kolo {

// What a thread has for itself while it is in a call, and lets others have while it waits outside of the communicator.
class Lendable {
 public:
  virtual void lend() = 0;
  virtual void takeBack() = 0;  // waits for those who have it

 protected:
  ~Lendable() = default;
};

struct Caller {
  int openGroups = 0;     // koloGroupStart without koloGroupEnd yet
  int userFunctions = 0;  // functions of the user's (reductions, progress) that the library is calling on this thread
  bool mayWait = true;    // for other ranks, in an operation
  bool isLibrarys =
      false;  // a thread of the library's own, which calls no function of the user's but what that thread is for
  bool isInNotice = false;       // in a function that is called at the end of a request
  int timeoutMs = -1;            // of the operations that it calls; -1: the communicator's
  Lendable* lendable = nullptr;  // nullptr: none

  // Neither: an operation may run at once, and may be waited for.
  bool isPlain() const { return (openGroups | userFunctions) == 0; }
};

// Initial-exec and constant-initialised: every operation looks at it, and so a load is all it takes.
[[gnu::tls_model("initial-exec")]] extern thread_local constinit Caller caller;

// Calls a function of the user's. An exception must not leave it, as this would leave other ranks in the operation that
// the function is part of: it ends the process, and so the others are told at once.
template <class Function, class... Arguments>
auto callUsers(Function* function, Arguments... arguments) noexcept {
  return function(arguments...);
}

// While the library calls a function of the user's, which must not wait for the operation that it is part of.
struct InUserFunction {
  InUserFunction() { ++caller.userFunctions; }
  ~InUserFunction() { --caller.userFunctions; }
  InUserFunction(const InUserFunction&) = delete;
  InUserFunction& operator=(const InUserFunction&) = delete;
};

// While the calling thread waits for other ranks, by the control plane or by bulletins: what it has is lent.
struct WhileLent {
  WhileLent() {
    if (caller.lendable != nullptr) caller.lendable->lend();
  }
  ~WhileLent() {
    if (caller.lendable != nullptr) caller.lendable->takeBack();
  }
  WhileLent(const WhileLent&) = delete;
  WhileLent& operator=(const WhileLent&) = delete;
};

// While the library waits for other ranks whatever the calling thread has said.
struct MayWait {
  MayWait() : before(std::exchange(caller.mayWait, true)) {}
  ~MayWait() { caller.mayWait = before; }
  MayWait(const MayWait&) = delete;
  MayWait& operator=(const MayWait&) = delete;
  const bool before;
};

// While the calling thread gives a notice, which may not end what the library goes on with.
struct InNotice {
  InNotice() : before(std::exchange(caller.isInNotice, true)) {}
  ~InNotice() { caller.isInNotice = before; }
  InNotice(const InNotice&) = delete;
  InNotice& operator=(const InNotice&) = delete;
  const bool before;
};

// While the calling thread executes what was called with a deadline of its own.
struct WithTimeout {
  explicit WithTimeout(int timeoutMs) : before(std::exchange(caller.timeoutMs, timeoutMs)) {}
  ~WithTimeout() { caller.timeoutMs = before; }
  WithTimeout(const WithTimeout&) = delete;
  WithTimeout& operator=(const WithTimeout&) = delete;
  const int before;
};

}  // namespace kolo
