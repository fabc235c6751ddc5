#include "why.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kolo::common {

int Why::fail(int code, const char* format, ...) const {
  if (text == nullptr || bytes == 0) return code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, bytes, format, arguments);
  va_end(arguments);
  return code;
}

ErrorText::ErrorText(int errnum) : text(strerror_r(errnum, room, sizeof room)) {
  rlimit limit{};
  if (errnum == ENFILE) {
    text = "the system is at its limit of open files; raise it (sysctl fs.file-max)";
  } else if (errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    std::snprintf(room, sizeof room,
                  "this process is at its limit of %llu open files; raise it (ulimit -n, LimitNOFILE)",
                  static_cast<unsigned long long>(limit.rlim_cur));
    text = room;
  }
}

}  // namespace kolo::common
