// Barriers of memory that one thread makes others pass, so that they need none of their own on their way: the kernel's
// membarrier(2), expedited.
//
// Thread safety: all from any thread.
#pragma once

namespace kolo {

// Whether barrierInThreads() works here. The process says so to the kernel when the library is loaded, where it mostly
// has one thread yet: with several that takes the kernel some 15 ms.
bool hasMembarrier();
// Every thread of this process passes a full barrier between the call and its return. False: the kernel no longer lets
// it, though it did (a seccomp filter that came later).
[[nodiscard]] bool barrierInThreads();
// So does every thread of every process on this machine that has loaded the library. False: the kernel does not let it.
bool barrierInProcesses();

}  // namespace kolo
