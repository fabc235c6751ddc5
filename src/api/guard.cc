#include "api/guard.h"

#include <algorithm>
#include <cstring>

#include "executor/host/user_fold.h"

namespace kolo::api {

std::string& lastError() {
  thread_local std::string message;
  return message;
}

Communicators& communicators = *new Communicators;
Streams& streams = *new Streams;
Windows& windows = *new Windows;

Status notACommunicator(koloComm_t comm) {
  return error(koloInvalidHandle, "{} is not a communicator: {}", fmt::ptr(comm),
               comm == nullptr ? "it is NULL" : "it was destroyed, or never came from this library");
}

Status notAStream(koloStream_t stream) {
  return error(koloInvalidHandle, "{} is not a stream: it was destroyed, or never came from koloStreamCreate",
               fmt::ptr(stream));
}

Status refuseInGroup() {
  if (!comm::groupIsOpen()) return {};
  return error(koloInvalidUsage, "not inside a group: expected koloGroupEnd first");
}

Status refuseInReduction() {
  if (!executor::insideUserFunction()) return {};
  return error(koloInvalidUsage, "not from inside a reduction function, which is part of an operation that would wait for this "
               "call: expected it after the operation");
}

Status refuseInGroupOrReduction() {
  KOLO_TRY(refuseInGroup());
  return refuseInReduction();
}

Status checkResult(const char* name, const void* place) {
  if (place != nullptr) return {};
  return error(koloInvalidPointer, "{} is NULL, expected a place for the result", name);
}

Status giveText(const std::string& text, char* place, std::size_t size, std::size_t* needed) {
  if (needed != nullptr) *needed = text.size() + 1;
  if (place == nullptr && size != 0) return error(koloInvalidPointer, "text is NULL, expected room for {} bytes", size);
  if (size == 0) return {};
  const std::size_t bytes = std::min(text.size(), size - 1);
  std::memcpy(place, text.data(), bytes);
  place[bytes] = '\0';
  return {};
}

}  // namespace kolo::api
