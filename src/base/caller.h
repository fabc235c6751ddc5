// What the library remembers of the calling thread between and during its calls.
#pragma once

namespace kolo {

struct Caller {
  int openGroups = 0;      // koloGroupStart without koloGroupEnd yet
  int userFunctions = 0;   // reductions of the user's that the library is calling on this thread

  // Neither: an operation may run at once, and may be waited for.
  bool isPlain() const { return (openGroups | userFunctions) == 0; }
};

// Initial-exec and constant-initialised: every operation looks at it, and so a load is all it takes.
[[gnu::tls_model("initial-exec")]] extern thread_local constinit Caller caller;

}  // namespace kolo
