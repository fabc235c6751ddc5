// A CUDA driver without a GPU: devices are numbers, device memory is memory, streams are threads, and the one kernel that the
// library has is executed by host threads, block by block side by side. What real hardware cannot be told to do on demand
// (few multiprocessors, little memory, a failing call) can be told to this one.
//
// Thread safety: all functions; install() and remove() while nothing uses the driver.
#pragma once

#include <cstdint>
#include <string>

namespace kolo::test {

struct MockCuda {
  int devices = 1;
  int multiprocessors = 4;       // one block each is resident
  unsigned blockThreads = 3;     // host threads that stand for the threads of a block
  bool peersReach = true;        // devices reach each other's memory
  std::string failing;           // name of a driver's function that fails from now on

  // Puts the mock in the driver's place, with these properties.
  void install() const;
  // Checks that everything was given back: "" or what was left.
  static std::string remove();

  static std::uint64_t launches();       // since install()
  static unsigned mostBlocksAtOnce();    // on one device
  static void failFrom(const std::string& function);   // "": none
};

}  // namespace kolo::test
