#include "remains.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>

namespace kolo::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{10};

}  // namespace

// Never destroyed: its thread may outlive the objects of this library by a moment.
Remains& Remains::instance() {
  static constinit std::mutex making;
  static constinit Remains* remains = nullptr;
  const std::lock_guard lock(making);
  // The parent's, in a forked child: its lock may be held for ever.
  if (remains == nullptr || remains->generation_ != connect::forkGeneration()) remains = new Remains;
  return *remains;
}

// The thread of a forked child's parent is not in the child, which closes its copies of the sockets (connect/socket.h).
Remains::Remains() : generation_(connect::forkGeneration()) {
  (void)std::atexit([] { instance().end(); });
}

void Remains::keep(std::unique_ptr<Way> way, milliseconds timeAtEnd) { instance().add(std::move(way), timeAtEnd); }

void Remains::add(std::unique_ptr<Way> way, milliseconds timeAtEnd) {
  const std::lock_guard lock(mutex_);
  ways_.push_back(std::move(way));
  timeAtEnd_ = std::max(timeAtEnd_, timeAtEnd);
  if (!isServed_ && !start()) ways_.clear();
}

// REQUIRES: mutex_ held
bool Remains::start() {
  // The application's signals are not for this thread.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_t thread;
  const auto body = [](void* self) -> void* {
    static_cast<Remains*>(self)->serve();
    return nullptr;
  };
  isServed_ = pthread_create(&thread, nullptr, body, this) == 0;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (!isServed_) return false;
  (void)pthread_setname_np(thread, "kolo-tcp-rest");
  (void)pthread_detach(thread);
  return true;
}

void Remains::serve() {
  Way::Scratch scratch;
  std::unique_lock lock(mutex_);
  while (!ways_.empty()) {
    std::erase_if(ways_, [&](const auto& way) { return way->drain(scratch) == 0; });
    if (!ways_.empty()) (void)changed_.wait_for(lock, kInterval);
  }
  isServed_ = false;
  changed_.notify_all();
}

void Remains::end() {
  if (generation_ != connect::forkGeneration()) return;
  std::unique_lock lock(mutex_);
  const auto isOver = [&] { return !isServed_; };
  if (changed_.wait_for(lock, timeAtEnd_, isOver)) return;
  ways_.clear();
  changed_.notify_all();
  changed_.wait(lock, isOver);
}

}  // namespace kolo::tcp
