#include "base/status.h"

#include <cstring>

namespace kolo {

Status::Status(koloResult_t code, std::string message)
    : failure_(code == koloSuccess ? nullptr : std::make_unique<Failure>(Failure{code, std::move(message)})) {}

const std::string& Status::message() const {
  static const std::string* const none = new std::string;
  return failure_ ? failure_->message : *none;
}

Status systemError(int errnum, const std::string& what) {
  char text[128];
  return error(koloSystemError, "{}: {} (errno {})", what, strerror_r(errnum, text, sizeof text), errnum);
}

}  // namespace kolo
