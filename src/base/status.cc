#include "base/status.h"

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>

#include "base/forever.h"

namespace kolo {
namespace {

Forever<std::string> none;  // made when the library is loaded: clang knows no constant of this type

}  // namespace

// The errors for whose words there is no memory, by their codes; made when the library is loaded.
struct Wordless {
  std::array<Status::Failure, koloNumResults> errors;

  Wordless() {
    for (std::size_t code = 0; code < errors.size(); ++code) {
      errors[code].code = static_cast<koloResult_t>(code);
      errors[code].message =
          code == koloOutOfMemory ? "out of memory" : "there is no memory for the words of this error";
    }
  }
  // As a further copy of that which stays.
  const Status::Failure* operator()(koloResult_t code) {
    const Status::Failure& found = errors[static_cast<std::size_t>(code)];
    found.copies.fetch_add(1, std::memory_order_relaxed);
    return &found;
  }
};

namespace {

Forever<Wordless> wordless;

}  // namespace

Status::Status(koloResult_t code, std::string message) noexcept {
  if (code == koloSuccess) return;
  auto* const made = new (std::nothrow) Failure;
  if (made != nullptr) {
    made->code = code;
    made->message = std::move(message);
  }
  failure_ = made != nullptr ? made : wordless.object(code);
}

Status Status::of(koloResult_t code, fmt::string_view format, fmt::format_args args) noexcept {
  try {
    return {code, fmt::vformat(format, args)};
  } catch (const std::exception&) {
    Status status;
    if (code != koloSuccess) status.failure_ = wordless.object(code);
    return status;
  }
}

void Status::release() noexcept {
  // [status] what others did with their copies comes before the end of what they share
  // NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDelete): the analyzer does not follow the count
  if (failure_->copies.fetch_sub(1, std::memory_order_acq_rel) == 1) delete failure_;
}

const std::string& Status::message() const { return failure_ != nullptr ? failure_->message : none.object; }

Status systemError(int errnum, std::string_view what) noexcept {
  char text[128];
  const char* const name = strerror_r(errnum, text, sizeof text);
  if (errnum == ENFILE) {
    return error(koloSystemError, "{}: {} (errno {}); raise the system's limit (sysctl fs.file-max)", what, name,
                 errnum);
  }
  if (rlimit limit{}; errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return error(koloSystemError,
                 "{}: {} (errno {}); this process is at its limit of {} open files: raise it (ulimit -n, LimitNOFILE)",
                 what, name, errnum, static_cast<std::uint64_t>(limit.rlim_cur));
  }
  return error(koloSystemError, "{}: {} (errno {})", what, name, errnum);
}

Status noThreadFor(const std::exception& why, fmt::string_view need, fmt::format_args args) noexcept {
  fmt::memory_buffer words;  // on the stack
  try {
    fmt::vformat_to(std::back_inserter(words), need, args);
  } catch (const std::exception&) {
    words.clear();
  }
  return error(koloSystemError,
               "{}, and the system gives none ({}); raise the limits of threads and memory (ulimit -u, -v, TasksMax)",
               fmt::string_view(words.data(), words.size()), why.what());
}

}  // namespace kolo
