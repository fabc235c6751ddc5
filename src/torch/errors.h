// From Kolo's results to torch's exceptions.
//
// Thread safety: all functions.
#pragma once

#include <kolo/kolo.h>

#include <exception>
#include <string>

#include "torch/signals.h"

namespace kolo::pytorch {

// An exception for `result`; `text` says what happened. A faulty argument becomes a ValueError in Python, everything
// else a torch.distributed.DistBackendError, which is a RuntimeError.
std::exception_ptr exceptionFor(koloResult_t result, const std::string& title, const std::string& text);

// Throws exceptionFor() with the calling thread's last error.
[[noreturn]] void raise(koloResult_t result, const char* title);

// After a call of Kolo's that may have waited: throws raise()'s exception, or what the handler of a signal has raised
// meanwhile.
inline void check(koloResult_t result, const char* title) {
  signals::endWait();
  if (result != koloSuccess) [[unlikely]]
    raise(result, title);
}

}  // namespace kolo::pytorch
