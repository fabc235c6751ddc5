#include <chrono>

#include "mock_cuda/world.h"

namespace kolo::test::mock {
namespace {

constexpr std::chrono::milliseconds kLook(5);  // who waits looks that often whether the device is broken

}  // namespace

Worker::Worker(const Broken* broken) : broken_(broken), thread_([this] { work(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::uint64_t Worker::enqueue(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return ++enqueued_;
}

bool Worker::hasFinished(std::uint64_t task) {
  const std::lock_guard lock(mutex_);
  return finished_ >= task;
}

std::uint64_t Worker::waiting() {
  const std::lock_guard lock(mutex_);
  return enqueued_ - finished_;
}

void Worker::synchronize(std::uint64_t task) {
  std::unique_lock lock(mutex_);
  while (finished_ < task && !isBroken()) changed_.wait_for(lock, kLook);
}

void Worker::synchronize() {
  std::unique_lock lock(mutex_);
  const std::uint64_t last = enqueued_;
  lock.unlock();
  synchronize(last);
}

void Worker::awaitRoom(std::uint64_t most) {
  std::unique_lock lock(mutex_);
  while (enqueued_ - finished_ >= most && !isBroken()) changed_.wait_for(lock, kLook);
}

void Worker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    run(std::move(task));
    lock.lock();
    ++finished_;
    changed_.notify_all();
  }
}

// What the task holds is gone when it counts as finished.
void Worker::run(Task task) {
  if (!isBroken()) task();
}

void Completion::finish() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

bool Completion::done() {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::wait() {
  std::unique_lock lock(mutex_);
  while (!done_ && world->broken == CUDA_SUCCESS) changed_.wait_for(lock, kLook);
}

}  // namespace kolo::test::mock
