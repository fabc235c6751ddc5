// What has to be done though memory may have run out, because others wait for it.
//
// Thread safety: all functions.
#pragma once

#include <time.h>

#include <exception>
#include <new>

namespace kolo {

// Repeats what finds no memory, for up to a second. False: it was not done. REQUIRES: attempt() may be called again
// after it has thrown.
template <class Attempt>
bool insist(const Attempt& attempt) noexcept {
  constexpr int kTries = 200;
  constexpr timespec kNap{0, 5'000'000};
  for (int tries = 0; tries < kTries; ++tries) {
    try {
      attempt();
      return true;
    } catch (const std::bad_alloc&) {
      nanosleep(&kNap, nullptr);
    } catch (const std::exception&) {
      return false;
    }
  }
  return false;
}

}  // namespace kolo
