#include "api/guard.h"

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

koloComm_t handleOf(std::unique_ptr<comm::Communicator> communicator) {
  return reinterpret_cast<koloComm_t>(communicators.add(communicator.release()));
}

}  // namespace kolo::api
