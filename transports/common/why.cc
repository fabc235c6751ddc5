#include "why.h"

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

ErrorText::ErrorText(int errnum) : text(strerror_r(errnum, room, sizeof room)) {}

}  // namespace kolo::common
