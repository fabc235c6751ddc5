// Groups, streams, memory, windows and reductions.
#include <cstring>

#include "api/checks.h"
#include "api/guard.h"
#include "base/datatypes.h"
#include "device/reducers.h"
#include "memory/shared_memory.h"

namespace kolo::api {
namespace {

Status notAWindow(koloWindow_t window) {
  return error(koloInvalidHandle, "{} is not a window: it was deregistered, or never came from koloWindowRegister",
               fmt::ptr(window));
}

Result<Pin<WindowEntry>> findWindow(koloWindow_t window) {
  Pin<WindowEntry> found = windows.find(reinterpret_cast<std::uintptr_t>(window));
  if (!found) return notAWindow(window);
  return found;
}

Status checkOwner(const WindowEntry& entry, const comm::Communicator& communicator) {
  if (entry.communicator == &communicator) return {};
  return error(koloInvalidHandle, "the window belongs to another communicator");
}

// Ends the handle. nullptr: another thread has ended it.
std::unique_ptr<WindowEntry> retireWindow(koloWindow_t window) {
  const auto handle = reinterpret_cast<std::uintptr_t>(window);
  std::unique_ptr<WindowEntry> retired(windows.retire(handle));
  if (retired != nullptr) windows.release(handle);
  return retired;
}

Status allocate(void** ptr, std::size_t bytes, int device) {
  KOLO_TRY(checkResult("ptr", ptr));
  if (bytes > static_cast<std::size_t>(PTRDIFF_MAX))
    return error(koloInvalidCount, "bytes is {}, expected at most {}", bytes, PTRDIFF_MAX);
  if (device < KOLO_HOST)
    return error(koloInvalidArgument, "device is {}, expected a CUDA device or KOLO_HOST", device);
  KOLO_ASSIGN(*ptr, device == KOLO_HOST ? memory::allocate(bytes) : memory::allocateOn(device, bytes));
  return {};
}

// What a window may lie over.
Status checkRange(const void* buffer, std::size_t bytes) {
  KOLO_TRY(checkPointer({"buffer", buffer, bytes}));
  if (bytes > static_cast<std::uintptr_t>(PTRDIFF_MAX) || reinterpret_cast<std::uintptr_t>(buffer) + bytes < bytes) {
    return error(koloInvalidCount, "bytes is {}: a window of so many from {} exceeds the address space", bytes,
                 fmt::ptr(buffer));
  }
  return {};
}

// add() -> Result<comm::Window*>, in the communicator's turn.
template <class Add>
Status addWindow(comm::Communicator& communicator, koloWindow_t* window, const Add& add) {
  if (communicator.failed()) return communicator.failure();
  auto entry = std::make_unique<WindowEntry>();
  entry->communicator = &communicator;
  KOLO_ASSIGN(entry->window, add());
  entry->zeroCopy = entry->window->zeroCopy;
  entry->isMapped = entry->window->isMapped;
  return giveHandle(window, windows, std::move(entry), "window");
}
template <class Add>
Status addWindowInTurn(const Pin<comm::Communicator>& communicator, koloWindow_t* window, const Add& add) {
  KOLO_TRY(refuseInGroupOrReduction());
  return addWindow(*communicator, window, [&] { return inTurn(*communicator, add); });
}

// In the communicator's turn: a window, if some rank has memory for it.
Status addWindowOfAny(comm::Communicator& communicator, void* buffer, std::size_t bytes, koloWindow_t* window) {
  const std::int32_t mine = bytes != 0 ? 1 : 0;
  std::int32_t any = 0;
  const comm::Call vote{.send = &mine,
                        .recv = &any,
                        .count = 1,
                        .collective = device::Collective::kAllReduce,
                        .datatype = koloInt32,
                        .op = koloMax};
  KOLO_TRY(communicator.backend().run({vote, {}, {}}, nullptr));
  *window = nullptr;
  if (any == 0) return {};
  return addWindow(communicator, window, [&] { return communicator.backend().addWindow(buffer, bytes); });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloGroupStart(void) {
  return guard(__func__, []() -> Status {
    KOLO_TRY(refuseInReduction());
    comm::groupStart();
    return {};
  });
}

KOLO_API koloResult_t koloGroupEnd(void) {
  return guard(__func__, [] { return comm::groupEnd(); });
}

KOLO_API koloResult_t koloStreamCreate(koloStream_t* stream) {
  return guardProcess(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("stream", stream));
    return giveHandle(stream, streams, std::make_unique<comm::Stream>(), "stream");
  });
}

KOLO_API koloResult_t koloStreamSynchronize(koloStream_t stream) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(refuseInReduction());
    KOLO_ASSIGN(const Pin<comm::Stream> found, find(stream));
    return !found ? Status() : found->synchronize();
  });
}

KOLO_API koloResult_t koloStreamQuery(koloStream_t stream) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Stream> found, find(stream));
    return !found ? Status() : found->query();
  });
}

KOLO_API koloResult_t koloStreamDestroy(koloStream_t stream) {
  return guard(__func__, [&]() -> Status {
    if (stream == nullptr) return error(koloInvalidHandle, "the NULL stream cannot be destroyed");
    KOLO_TRY(refuseInGroupOrReduction());
    comm::Stream* const retired = streams.retire(reinterpret_cast<std::uintptr_t>(stream));
    if (retired == nullptr) return notAStream(stream);
    Status status = retired->synchronize();
    streams.release(reinterpret_cast<std::uintptr_t>(stream));
    delete retired;
    return status;
  });
}

KOLO_API koloResult_t koloMemAlloc(void** ptr, size_t bytes) {
  return guardProcess(__func__, [&] { return allocate(ptr, bytes, KOLO_HOST); });
}

KOLO_API koloResult_t koloMemAllocOn(void** ptr, size_t bytes, int device) {
  return guardProcess(__func__, [&] { return allocate(ptr, bytes, device); });
}

KOLO_API koloResult_t koloMemFree(void* ptr) {
  return guardProcess(__func__, [&]() -> Status { return ptr == nullptr ? Status() : memory::release(ptr); });
}

KOLO_API koloResult_t koloWindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("window", window));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    KOLO_TRY(checkRange(buffer, bytes));
    return addWindowInTurn(communicator, window, [&] { return communicator->backend().addWindow(buffer, bytes); });
  });
}

KOLO_API koloResult_t koloIwindowRegister(koloComm_t comm, void* buffer, size_t bytes, koloWindow_t* window,
                                          koloRequest_t* request) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("window", window));
    KOLO_TRY(refuseInGroupOrReduction());
    const Weak<comm::Communicator> place = communicators.remember(reinterpret_cast<std::uintptr_t>(comm));
    const Pin<comm::Communicator> communicator = place.lock();
    if (!communicator) return notACommunicator(comm);
    KOLO_TRY(communicator->backend().checkRequest());
    KOLO_TRY(checkRange(buffer, bytes));
    return giveRequest(request, [&](comm::Request& made) -> Status {
      made.addPlace(place);
      const auto step = [its = communicator.get(), buffer, bytes, window] {
        return addWindowOfAny(*its, buffer, bytes, window);
      };
      communicator->requests().start(step, made);
      return {};
    });
  });
}

KOLO_API koloResult_t koloWindowRegisterMapped(koloComm_t comm, void* const* parts, const size_t* bytes,
                                               koloWindow_t* window) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("window", window));
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    if (parts == nullptr || bytes == nullptr) {
      return error(koloInvalidPointer, "{} is NULL, expected an entry for each rank",
                   parts == nullptr ? "parts" : "bytes");
    }
    for (int i = 0; i < communicator->ranks(); ++i) {
      if (parts[i] != nullptr || i == communicator->rank()) KOLO_TRY(checkRange(parts[i], bytes[i]));
    }
    return addWindowInTurn(communicator, window, [&] { return communicator->backend().addMappedWindow(parts, bytes); });
  });
}

KOLO_API koloResult_t koloWindowDeregister(koloComm_t comm, koloWindow_t window) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    KOLO_TRY(refuseInGroupOrReduction());
    return inTurn(*communicator, [&]() -> Status {
      KOLO_ASSIGN(Pin<WindowEntry> entry, findWindow(window));
      KOLO_TRY(checkOwner(*entry, *communicator));
      Status status = communicator->removeWindow(&entry->window);
      if (entry->window != nullptr) return status;
      entry = Pin<WindowEntry>();
      retireWindow(window);
      return status;
    });
  });
}

KOLO_API koloResult_t koloWindowAbandon(koloComm_t comm, koloWindow_t window) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    {
      KOLO_ASSIGN(const Pin<WindowEntry> entry, findWindow(window));
      KOLO_TRY(checkOwner(*entry, *communicator));
      if (!entry->isMapped)
        return error(koloInvalidUsage,
                     "the window is not one of koloWindowRegisterMapped; expected koloWindowDeregister");
    }
    const std::unique_ptr<WindowEntry> retired = retireWindow(window);
    if (retired == nullptr) return notAWindow(window);
    if (retired->window == nullptr) return {};
    links::Windows::abandon(*retired->window);
    communicator->planning().outdate();
    return {};
  });
}

KOLO_API koloResult_t koloWindowIsZeroCopy(koloWindow_t window, int* zeroCopy) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("zeroCopy", zeroCopy));
    KOLO_ASSIGN(const Pin<WindowEntry> entry, findWindow(window));
    *zeroCopy = entry->zeroCopy ? 1 : 0;
    return {};
  });
}

KOLO_API int koloRedOpIsDefined(koloRedOp_t op, koloDataType_t datatype) {
  if (op < 0 || op >= koloNumOps || datatype < 0 || datatype >= koloNumDatatypes) return 0;
  if (op == koloAvg) return device::isAverageDefined(datatype) ? 1 : 0;
  return device::isDefined(collectives::reduceOpOf(op), datatype) ? 1 : 0;
}

KOLO_API koloResult_t koloRedOpCreatePreMulSum(koloRedOp_t* op, const void* scalar, koloDataType_t datatype,
                                               koloScalarResidence_t residence, koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("op", op));
    if (scalar == nullptr) return error(koloInvalidPointer, "scalar is NULL, expected one element");
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    KOLO_TRY(checkDatatype(datatype));
    if (koloRedOpIsDefined(koloAvg, datatype) == 0) {
      return error(koloInvalidOperation, "a pre-multiplied sum is not defined for {}", koloDataTypeName(datatype));
    }
    if (residence != koloScalarHostImmediate) {
      return error(koloInvalidArgument, "residence is {}, expected koloScalarHostImmediate",
                   static_cast<int>(residence));
    }
    comm::CustomReduction reduction;
    reduction.isPreMulSum = true;
    reduction.datatype = datatype;
    std::memcpy(reduction.scalar.data(), scalar, elementBytes(datatype));
    *op = communicator->reductions().add(reduction);
    return {};
  });
}

KOLO_API koloResult_t koloRedOpCreate(koloRedOp_t* op, koloRedFunction_t function, int commutative, void* context,
                                      koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_TRY(checkResult("op", op));
    if (function == nullptr) return error(koloInvalidPointer, "function is NULL, expected a reduction");
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    comm::CustomReduction reduction;
    reduction.user = {function, context, koloInt8};
    reduction.commutative = commutative != 0;
    *op = communicator->reductions().add(reduction);
    return {};
  });
}

KOLO_API koloResult_t koloRedOpDestroy(koloRedOp_t op, koloComm_t comm) {
  return guard(__func__, [&]() -> Status {
    KOLO_ASSIGN(const Pin<comm::Communicator> communicator, find(comm));
    if (communicator->reductions().remove(op)) return {};
    return error(koloInvalidOperation, "{} is not a reduction that was made on this communicator",
                 static_cast<int>(op));
  });
}

}  // extern "C"
