#include "remains.h"

#include <algorithm>
#include <cstdlib>

#include "base/quiet_thread.h"

namespace kolo::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{10};

}  // namespace

Remains& Remains::instance() { return ofThisProcess<Remains>(); }

Remains::Remains() {
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
  std::thread thread;
  isServed_ = startQuietly(thread, "kolo-tcp-rest", [this] { serve(); }) == 0;
  if (isServed_) thread.detach();
  return isServed_;
}

void Remains::serve() {
  Way::Scratch scratch(Way::kScratch);
  std::unique_lock lock(mutex_);
  while (!ways_.empty()) {
    std::erase_if(ways_, [&](const auto& way) { return way->drain(scratch) == 0; });
    if (!ways_.empty()) (void)changed_.wait_for(lock, kInterval);
  }
  isServed_ = false;
  changed_.notify_all();
}

void Remains::end() {
  std::unique_lock lock(mutex_);
  const auto isOver = [&] { return !isServed_; };
  if (changed_.wait_for(lock, timeAtEnd_, isOver)) return;
  ways_.clear();
  changed_.notify_all();
  changed_.wait(lock, isOver);
}

}  // namespace kolo::tcp
