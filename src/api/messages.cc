// Messages from rank to rank: arguments checked, then submitted.
#include <string>

#include "api/submit.h"
#include "base/log.h"

namespace kolo::api {
namespace {

// "send: 1000 float32 to rank 1, tag 0": as collectives have a line (collectives/call_log.h).
void logMessage(const comm::Message& m) {
  if (!log::enabled(log::Level::kDebug)) return;
  const auto wordOf = [](int number) { return number < 0 ? std::string("any") : fmt::format("{}", number); };
  log::debug("{}: {} {} {} rank {}, tag {}", m.isSend ? "send" : "recv", m.count, koloDataTypeName(m.datatype),
             m.isSend ? "to" : "from", wordOf(m.peer), wordOf(m.tag));
}

// One end of a message.
koloResult_t message(const char* function, const comm::Message& message, koloComm_t comm, const Where& where) noexcept {
  return guard(function, [&] {
    return submit(message, comm, where, [](const comm::Communicator& communicator, const comm::Message& m) -> Status {
      KOLO_TRY(checkDatatype(m.datatype));
      KOLO_TRY(checkCount(m.count, m.datatype, 1));
      const bool anyAllowed = !m.isSend && !m.strict;
      KOLO_TRY(checkPeer(m.peer, communicator.ranks(), anyAllowed));
      KOLO_TRY(checkTag(m.tag, anyAllowed));
      KOLO_TRY(communicator.backend().checkMessage(m));
      const Extent buffer{m.isSend ? "sendbuf" : "recvbuf", m.isSend ? m.send : m.recv,
                          m.count * elementBytes(m.datatype)};
      KOLO_TRY(checkPointer(buffer));
      KOLO_TRY(checkPlace(communicator, buffer));
      logMessage(m);
      return {};
    });
  });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloSendTag(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloComm_t comm, koloStream_t stream) {
  return message(__func__,
                 {.isSend = true, .send = sendbuf, .count = count, .datatype = datatype, .peer = peer, .tag = tag},
                 comm, Where(stream));
}

KOLO_API koloResult_t koloSend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream) {
  return message(__func__, {.isSend = true, .send = sendbuf, .count = count, .datatype = datatype, .peer = peer}, comm,
                 Where(stream));
}

KOLO_API koloResult_t koloRecvTag(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                  koloRecvStatus_t* status, koloComm_t comm, koloStream_t stream) {
  return message(__func__,
                 {.recv = recvbuf, .count = count, .datatype = datatype, .peer = peer, .tag = tag, .status = status},
                 comm, Where(stream));
}

KOLO_API koloResult_t koloRecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, koloComm_t comm,
                               koloStream_t stream) {
  return message(__func__, {.strict = true, .recv = recvbuf, .count = count, .datatype = datatype, .peer = peer}, comm,
                 Where(stream));
}

KOLO_API koloResult_t koloIsend(const void* sendbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloComm_t comm, koloRequest_t* request) {
  return message(__func__,
                 {.isSend = true, .send = sendbuf, .count = count, .datatype = datatype, .peer = peer, .tag = tag},
                 comm, Where(request));
}

KOLO_API koloResult_t koloIrecv(void* recvbuf, size_t count, koloDataType_t datatype, int peer, int tag,
                                koloRecvStatus_t* status, koloComm_t comm, koloRequest_t* request) {
  return message(__func__,
                 {.recv = recvbuf, .count = count, .datatype = datatype, .peer = peer, .tag = tag, .status = status},
                 comm, Where(request));
}

}  // extern "C"
