// A CUDA driver without a GPU: devices are numbers, device memory is memory that processes can share, streams are
// threads, and the kernels that the library has are executed by host threads, block by block side by side. What real
// hardware cannot be told to do on demand (few multiprocessors, a failing call, copies that get lost) can be told to
// this one.
//
// Thread safety: all functions; install() and remove() while nothing uses the driver.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace kolo::test {

struct MockCuda {
  // Of CUDA. What came later the driver does not have, or refuses. The variable KOLO_MOCK_CUDA_VERSION overrides it.
  int version = 13000;
  int devices = 1;
  int multiprocessors = 4;    // one block each is resident
  unsigned blockThreads = 3;  // host threads that stand for the threads of a block, at most
  bool peersReach = true;     // devices reach each other's memory
  bool peersBroken =
      false;  // but lines that kernels move to another device's memory get lost, and those from there bring 0xff
  bool sharesByFile = true;  // allocations can be exported as file descriptors
  bool dmaBuf = true;        // memory can be exported as a dma-buf
  bool peerMemory = true;    // the device says that NICs may register its memory by address
  bool ordersWrites = true;  // and that its kernels see what NICs write in order
  bool mps = false;          // contexts are shared through MPS
  bool timeSlices =
      false;  // one grid runs at a time, until all its blocks wait: as processes without MPS have the device
  bool streamMemoryOps = true;    // streams write and wait for words of 64 bits
  int syncDomains = 4;            // of memory synchronisation
  bool launchesInDomains = true;  // where there are several; otherwise a launch that names one is refused
  int assembledDevice = -1;       // for which the library has no machine code: its driver has to assemble the kernels
  std::chrono::milliseconds assembly{0};  // how long that takes it
  bool describesItself = true;            // names of devices, their clocks and sizes; otherwise asking for these fails
  bool lazyLoading = false;  // kernels are loaded when they are first launched, as by default; that waits for all that
                             // the device has to do
  bool blockingLaunches = false;  // a launch returns when the kernel has ended, as beneath some tools, and by
                                  // CUDA_LAUNCH_BLOCKING=1 here too
  unsigned connections =
      0;  // queues of the hardware for all streams of a device, 32 at most on real ones; what two streams put into one
          // queue is executed in the order in which it came. 0: a queue for each stream
  bool queuesInTurn =
      false;  // a new stream takes the next of these queues, whoever has it; else the one that the fewest share
  unsigned launchQueue = 0;  // entries of a queue (about 1,024 on real devices); whoever finds it full waits for room,
                             // and until then no call of the driver in the same context goes on. 0: without end
  bool freeWaits = true;     // cuMemFree and cuMemFreeHost wait for all that the device has to do, as the real ones do;
                             // until then no call of the driver in the same context goes on
  bool allocationWaits = false;  // and so do cuMemAlloc, cuMemHostAlloc and cuMemHostRegister, as the real ones may
                                 // (tests/gpu/driver_probe.h asks)
  std::string failing;           // name of a driver's function that fails from now on

  // Puts the mock in the driver's place, with these properties.
  void install() const;
  // Checks that everything was given back and nothing forbidden was done: "" or what was not.
  static std::string remove();

  static std::uint64_t launches();  // since install()
  static std::uint64_t
  remoteLaunches();  // those in the remote domain of memory synchronisation, captured ones included
  static std::size_t nodesInARow(
      CUgraph graph);  // of the longest chain of nodes each of which waits for the one before
  static std::uint64_t
  parameterBytes();  // of the kernels whose launches have been called for since, captured ones included
  // Of the library's table, by the driver's function; since the process began.
  static std::map<std::string, std::uint64_t> calls();
  static unsigned mostBlocksAtOnce();     // on one device
  static std::uint64_t slices();          // how often the device went from one grid to another
  static void blockLaunches(bool block);  // from now on
  static void failFrom(const std::string& function, CUresult result = CUDA_ERROR_UNKNOWN);  // "": none

  // Memory as from cuMemAllocAsync: the device's, but no process can share it. Freed with cuMemFree. 0: failed.
  static CUdeviceptr poolMemory(int device, std::size_t bytes);
  // Whether the device may use the memory at this address: for what is mapped, whether cuMemSetAccess has said so.
  static bool mayUse(int device, CUdeviceptr address);
  // Plays a kernel that fails, an illegal address for example: what the devices have not begun is dropped, and whoever
  // asks a stream or an event from now on is told this error. What runs goes on until it ends by itself.
  static void breakDevice(CUresult error);
};

}  // namespace kolo::test
