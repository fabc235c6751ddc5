// What the tests of the control plane share.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/control.h"
#include "bootstrap/dial.h"
#include "bootstrap/unique_id.h"
#include "bootstrap/wire.h"
#include "support/text.h"
#include "support/watchdog.h"

namespace kolo::bootstrap {

using namespace std::chrono_literals;
using test::contains;

using ControlPtr = std::shared_ptr<Control>;
using Blobs = Result<std::vector<std::string>>;
constexpr int kPatienceMs = 20000 * test::kSlowness;
constexpr Address kLoopback{.bytes = {127, 0, 0, 1}};

inline koloUniqueId newId() {
  Result<koloUniqueId> id = createUniqueId();
  REQUIRE(id.ok());
  return id.take();
}

inline IdContents contentsOf(const koloUniqueId& id) {
  Result<IdContents> contents = decodeId(id);
  REQUIRE(contents.ok());
  return contents.take();
}

inline bool isFree(int port) {
  std::uint16_t chosen = 0;
  return listenOn({}, static_cast<std::uint16_t>(port), chosen).ok();
}

// The first of so many neighbours that are free now, below the range from which the kernel chooses.
inline int freePorts(int count) {
  for (int first = 20000 + ::getpid() % 10000;; first += count) {
    REQUIRE(first < 32000);
    int free = 0;
    while (free < count && isFree(first + free)) ++free;
    if (free == count) return first;
  }
}

template <class Function>
inline void onThreads(int count, const Function& function) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&function, i] { function(i); });
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<ControlPtr> joinAll(const koloUniqueId& id, int ranks, int first = 0, int timeoutMs = kPatienceMs) {
  std::vector<ControlPtr> controls(static_cast<std::size_t>(ranks));
  std::vector<Status> statuses(controls.size());
  onThreads(ranks - first, [&](int i) {
    const auto rank = static_cast<std::size_t>(first + i);
    Result<ControlPtr> joined = join(id, first + i, ranks, timeoutMs);
    statuses[rank] = joined.status();
    if (joined.ok()) controls[rank] = joined.take();
  });
  for (const Status& status : statuses) {
    INFO(status.message());
    REQUIRE(status.ok());
  }
  return controls;
}

inline void leaveAll(const std::vector<ControlPtr>& controls) {
  for (const ControlPtr& control : controls) {
    if (control != nullptr) control->leave();
  }
}

inline std::vector<int> upTo(int ranks) {
  std::vector<int> all;
  for (int i = 0; i < ranks; ++i) all.push_back(i);
  return all;
}

// Collects what a subscription delivers.
class Inbox {
 public:
  std::function<void(const Failure&)> callback() {
    return [this](const Failure& failure) {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure);
      changed_.notify_all();
    };
  }
  bool waitFor(std::size_t count, std::chrono::milliseconds limit = 5000ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return failures_.size() >= count; });
  }
  std::vector<Failure> all() {
    const std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Failure> failures_;
};

// The join of a rank that exists only in a test.
inline std::string rawJoin(int rank, int ranks, std::uint32_t version, std::uint64_t place = 0,
                           std::string_view standby = "", std::string_view address = "", std::uint16_t port = 0,
                           std::string_view reached = "", std::uint64_t stack = stackIdentity(), bool isGiven = false) {
  return frame(Frame::kJoin)
      .number(std::int32_t{rank})
      .number(std::int32_t{ranks})
      .number(version)
      .number(std::uint32_t{4711})
      .number(std::uint32_t{kPatienceMs})
      .number(std::uint32_t{kPatienceMs})
      .raw(std::string(16, 'x'))
      .number(place)
      .number(stack)
      .text(standby)
      .text(address)
      .number(std::uint8_t{isGiven})
      .number(port)
      .text(reached)
      .text("")
      .text("elsewhere")
      .take();
}

inline void push(const Socket& socket, std::string_view bytes) {
  REQUIRE(::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace kolo::bootstrap
