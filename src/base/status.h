// Status and Result<T>: how every internal function says that it failed. No exception crosses the C boundary.
//
// Thread safety: each object belongs to one thread at a time; its copies may belong to others.
#pragma once

#include <fmt/format.h>
#include <kolo/kolo.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace kolo {

// A pointer's worth: success is a null pointer, so the hot path neither builds nor destroys a string. Copies share what
// they say. Neither an error nor a copy of one throws, so that what reports the end of memory needs none: an error for
// whose message there is no memory keeps its code.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(koloResult_t code, std::string message) noexcept;
  Status(Status&& other) noexcept : failure_(std::exchange(other.failure_, nullptr)) {}
  Status(const Status& other) noexcept : failure_(other.failure_) {
    if (failure_ != nullptr) failure_->copies.fetch_add(1, std::memory_order_relaxed);  // there is one already
  }
  Status& operator=(Status&& other) noexcept {
    std::swap(failure_, other.failure_);
    return *this;
  }
  Status& operator=(const Status& other) noexcept { return *this = Status(other); }
  ~Status() {
    if (failure_ != nullptr) release();
  }

  // The same as error(), of arguments whose types have been erased.
  static Status of(koloResult_t code, fmt::string_view format, fmt::format_args args) noexcept;

  bool ok() const { return failure_ == nullptr; }
  koloResult_t code() const { return failure_ != nullptr ? failure_->code : koloSuccess; }
  // Empty for success.
  const std::string& message() const;

 private:
  struct Failure {
    mutable std::atomic<std::uint32_t> copies{1};
    koloResult_t code = koloSuccess;
    std::string message;
  };
  friend struct Wordless;
  void release() noexcept;

  const Failure* failure_ = nullptr;
};

// error(koloInvalidRoot, "root is {}, expected 0..{}", root, n - 1)
template <class... Args>
Status error(koloResult_t code, fmt::format_string<Args...> format, Args&&... args) noexcept {
  return Status::of(code, format, fmt::make_format_args(args...));
}

// "…: No such file (errno 2)" for a failed system call. Of a limit that was reached, also what it is and how to raise
// it.
Status systemError(int errnum, std::string_view what) noexcept;

// "making a communicator needs a thread, and the system gives none: ...", and how to raise the limit.
Status noThreadFor(const std::exception& why, fmt::string_view need, fmt::format_args args) noexcept;
template <class... Args>
Status noThread(const std::exception& why, fmt::format_string<Args...> need, Args&&... args) noexcept {
  return noThreadFor(why, need, fmt::make_format_args(args...));
}

// Of another rank's word: a code that is no failure's, where one was to come, is koloRemoteError.
constexpr koloResult_t failureCode(std::int32_t said) {
  const bool isOne = said > koloSuccess && said < koloNumResults && said != koloInProgress;
  return isOne ? static_cast<koloResult_t>(said) : koloRemoteError;
}

// What `work` returns, also if it throws. need: what a thread was needed for, if there was none.
template <class Work>
auto withoutExceptions(Work&& work, const char* need = "making a communicator needs a thread") -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(koloOutOfMemory, "out of memory");
  } catch (const std::system_error& why) {
    return noThread(why, "{}", need);
  } catch (const std::exception& why) {
    return error(koloInternalError, "{}", why.what());
  }
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: converting on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kolo

#define KOLO_TRY(expression)                                                \
  do {                                                                      \
    if (::kolo::Status koloTryStatus = (expression); !koloTryStatus.ok()) { \
      return koloTryStatus;                                                 \
    }                                                                       \
  } while (false)

#define KOLO_CONCAT_(a, b) a##b
#define KOLO_CONCAT(a, b) KOLO_CONCAT_(a, b)
// KOLO_ASSIGN(auto x, f()): x is f's value, or return f's error.
#define KOLO_ASSIGN(declaration, expression) KOLO_ASSIGN_(KOLO_CONCAT(koloResult, __LINE__), declaration, expression)
#define KOLO_ASSIGN_(result, declaration, expression) \
  auto result = (expression);                         \
  if (!result.ok()) return result.status();           \
  declaration = result.take()
