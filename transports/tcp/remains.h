// The connections of devices that have been closed, as long as the peers' kernels have not taken all that was sent by
// them: the peer calculates, say, and its window is full. To close such a connection would lose what is on its way as
// soon as the peer sends something, too. So they stay open, and a thread of their own, which lives as long as there are
// any, looks after them. The end of the process waits for them, for a while.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "way.h"

namespace kolo::tcp {

class Remains {
 public:
  // timeAtEnd: how long the end of the process may wait for it. No link of the way's is open any more.
  static void keep(std::unique_ptr<Way> way, std::chrono::milliseconds timeAtEnd);

 private:
  friend Remains& kolo::ofThisProcess<Remains>();
  Remains();
  static Remains& instance();
  void add(std::unique_ptr<Way> way, std::chrono::milliseconds timeAtEnd);
  bool start();
  void serve();
  void end();

  std::mutex mutex_;  // the rest
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Way>> ways_;
  std::chrono::milliseconds timeAtEnd_{0};
  bool isServed_ = false;  // a thread is there
};

}  // namespace kolo::tcp
