#include "api/guard.h"

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

koloComm_t handleOf(std::unique_ptr<comm::Communicator> communicator) {
  return reinterpret_cast<koloComm_t>(communicators.add(communicator.release()));
}

}  // namespace kolo::api
