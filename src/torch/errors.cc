#include "torch/errors.h"

#include <c10/util/Exception.h>

#include <cstdint>

namespace kolo::pytorch {
namespace {

bool isArgument(koloResult_t result) {
  switch (result) {
    case koloInvalidArgument:
    case koloInvalidPointer:
    case koloInvalidCount:
    case koloInvalidDatatype:
    case koloInvalidOperation:
    case koloInvalidRoot:
    case koloInvalidOverlap: return true;
    default: return false;
  }
}

}  // namespace

std::exception_ptr exceptionFor(koloResult_t result, const std::string& title, const std::string& text) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  const std::string limit = result == koloTimeout ? "the group's or the call's timeout is over: " : "";
  const std::string message = title + ": " + limit + (text.empty() ? koloGetErrorString(result) : text);
  if (isArgument(result)) return std::make_exception_ptr(c10::ValueError(here, message));
  return std::make_exception_ptr(c10::DistBackendError(here, message));
}

void raise(koloResult_t result, const char* title) {
  std::rethrow_exception(exceptionFor(result, title, koloGetLastError(nullptr)));
}

}  // namespace kolo::pytorch
