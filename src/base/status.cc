#include "base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/forever.h"

namespace kolo {
namespace {

// Which limit an error is of, and how to raise it; "" for one that is of none.
std::string limitBehind(int errnum) {
  rlimit limit{};
  if (errnum == ENFILE) return "; raise the system's limit (sysctl fs.file-max)";
  if (errnum != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  return fmt::format("; this process is at its limit of {} open files: raise it (ulimit -n, LimitNOFILE)",
                     static_cast<std::uint64_t>(limit.rlim_cur));
}

Forever<std::string> none;  // made when the library is loaded: clang knows no constant of this type

}  // namespace

Status::Status(koloResult_t code, std::string message)
    : failure_(code == koloSuccess ? nullptr : std::make_unique<Failure>(Failure{code, std::move(message)})) {}

const std::string& Status::message() const { return failure_ ? failure_->message : none.object; }

Status systemError(int errnum, const std::string& what) {
  char text[128];
  return error(koloSystemError, "{}: {} (errno {}){}", what, strerror_r(errnum, text, sizeof text), errnum,
               limitBehind(errnum));
}

Status noThread(const std::exception& why, const std::string& need) {
  return error(koloSystemError,
               "{}, and the system gives none ({}); raise the limits of threads and memory (ulimit -u, -v, TasksMax)",
               need, why.what());
}

}  // namespace kolo
