#include "comm/stream.h"

#include "base/quiet_thread.h"

namespace kolo::comm {

bool Moment::isReached() const {
  const std::lock_guard lock(mutex_);
  return isReached_;
}

void Moment::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return isReached_; });
}

void Moment::reach() {
  {
    const std::lock_guard lock(mutex_);
    isReached_ = true;
  }
  changed_.notify_all();
}

std::shared_ptr<Moment> Event::renew() {
  const std::lock_guard lock(mutex_);
  return moment_ = std::make_shared<Moment>();
}

std::shared_ptr<const Moment> Event::moment() const {
  const std::lock_guard lock(mutex_);
  return moment_;
}

void Stream::waitFor(std::shared_ptr<const Moment> moment) {
  enqueue([moment = std::move(moment)] {
    moment->wait();
    return Status();
  });
}

void Stream::mark(std::shared_ptr<Moment> moment) {
  enqueue([moment = std::move(moment)] {
    moment->reach();
    return Status();
  });
}

Stream::Stream() : thread_(startQuietly([this] { work(); })) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Stream::Prepared Stream::prepare(std::function<Status(std::uint64_t place)> run) {
  Prepared made;
  made.push_back({std::move(run)});
  return made;
}

void Stream::enqueue(Prepared tasks) noexcept {
  {
    const std::lock_guard lock(mutex_);
    tasks_.splice(tasks_.end(), tasks);
  }
  changed_.notify_all();
}

Status Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
  return std::exchange(first_, Status());
}

Status Stream::query() {
  const std::lock_guard lock(mutex_);
  const std::size_t left = tasks_.size() + (busy_ ? 1 : 0);
  if (left != 0) return error(koloInProgress, "{} operation{} left on the stream", left, left == 1 ? " is" : "s are");
  return first_;
}

void Stream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Prepared taken;
    taken.splice(taken.begin(), tasks_, tasks_.begin());
    busy_ = true;
    lock.unlock();
    const Task& task = taken.front();
    Status status = withoutExceptions([&] { return task.run(task.place); }, "a task of a stream needs a thread");
    taken.clear();  // what it holds is let go before anybody is told that it is done
    lock.lock();
    busy_ = false;
    if (first_.ok() && !status.ok()) first_ = std::move(status);
    changed_.notify_all();
  }
}

}  // namespace kolo::comm
