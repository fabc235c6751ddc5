// The thread that answers peers while this rank is not in a call: greetings of callers, what peers say of lanes
// that failed, and events of the NICs.
//
// Thread safety: start() and stop() by the device's thread; the others from any.
// Invariants: what is handed over comes by the inbox, so that nobody waits for the thread while it makes queue pairs.
// Ways that are watched outlive the thread.
#pragma once

#include <list>
#include <thread>

#include "greeting.h"

namespace kolo::ib {

class Service {
 public:
  // Called by the thread.
  class Owner {
   public:
    // A greeting that this rank answered is over. way: null if it failed.
    virtual void greeted(const connect::Caller& peer, std::unique_ptr<Way> way) = 0;
    // Something has changed that Way::lookAfter() takes into account.
    virtual void hasNews() = 0;
    // Whether something is under way, or the core has called since the tick before the last.
    virtual bool hasWork() = 0;
    // Now and then while it is: does the core's part if the core does not.
    virtual void workInstead() = 0;

   protected:
    ~Owner() = default;
  };

  Service(Home& home, Owner& owner) : home_(home), owner_(owner) {}
  int start();  // 0, or an errno
  void stop();
  void answer(const connect::Caller& peer, network::Socket socket);
  void watch(Way* way);
  // There is work, where there was none. Cheap, but for the first after a pause.
  void rouse() {
    if (isAsleep_.load(std::memory_order_relaxed)) wake();  // [asleep]
  }

 private:
  struct Guest {
    connect::Caller peer;
    network::Socket socket;
  };
  void serve();
  int patience();
  void takeInbox();
  void advanceGreetings();
  void hearWays();
  void takeEvents();
  void wake();

  Home& home_;
  Owner& owner_;
  std::thread thread_;
  network::Socket wake_;
  std::atomic<bool> isAsleep_{false};
  // The thread's.
  std::list<Greeting> greetings_;
  std::vector<Way*> ways_;  // whose connections are heard
  bool hasWays_ = false;    // there are, or were, some

  std::mutex inbox_;  // the rest
  std::vector<Guest> guests_;
  std::vector<Way*> newWays_;
  bool isEnding_ = false;
};

}  // namespace kolo::ib
