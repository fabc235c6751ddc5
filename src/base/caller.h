// What the library remembers of the calling thread between and during its calls.
#pragma once

namespace kolo {

struct Caller {
  int openGroups = 0;      // koloGroupStart without koloGroupEnd yet
  int userFunctions = 0;   // functions of the user's (reductions, progress) that the library is calling on this thread

  // Neither: an operation may run at once, and may be waited for.
  bool isPlain() const { return (openGroups | userFunctions) == 0; }
};

// Initial-exec and constant-initialised: every operation looks at it, and so a load is all it takes.
[[gnu::tls_model("initial-exec")]] extern thread_local constinit Caller caller;

// While the library calls a function of the user's, which must not wait for the operation that it is part of.
struct InUserFunction {
  InUserFunction() { ++caller.userFunctions; }
  ~InUserFunction() { --caller.userFunctions; }
  InUserFunction(const InUserFunction&) = delete;
  InUserFunction& operator=(const InUserFunction&) = delete;
};

}  // namespace kolo
