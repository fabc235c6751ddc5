// Arrays whose shape and datatype travel with the data.
#include "comm/arrays.h"

#include <algorithm>

#include "api/submit.h"

namespace kolo::api {
namespace {

// Row-major without gaps: the only order that is moved. Along dimensions of length 1, and of arrays without elements,
// the stride means nothing.
Status checkStrides(const koloArray_t& array, std::uint64_t elements) {
  if (array.strides == nullptr || elements == 0) return {};
  std::uint64_t expected = 1;
  for (int i = array.ndim - 1; i >= 0; --i) {
    if (array.shape[i] != 1 && array.strides[i] != static_cast<std::ptrdiff_t>(expected)) {
      return error(koloInvalidArgument,
                   "strides[{}] is {}, expected {} or strides NULL: the array must be row-major without gaps", i,
                   array.strides[i], expected);
    }
    expected *= array.shape[i];
  }
  return {};
}

// What an array of the caller's is.
Status describe(const void* data, const koloArray_t* array, koloDataType_t datatype,
                comm::ArrayDescription& description) {
  if (array == nullptr) return error(koloInvalidPointer, "array is NULL, expected the array's shape");
  if (array->ndim < 0 || array->ndim > KOLO_MAX_DIMS) {
    return error(koloInvalidArgument, "array.ndim is {}, expected 0..{} (KOLO_MAX_DIMS)", array->ndim, KOLO_MAX_DIMS);
  }
  if (array->ndim > 0 && array->shape == nullptr) {
    return error(koloInvalidPointer, "array.shape is NULL, expected {} lengths", array->ndim);
  }
  KOLO_TRY(checkDatatype(datatype));
  description.datatype = static_cast<std::uint8_t>(datatype);
  description.ndim = static_cast<std::uint8_t>(array->ndim);
  std::copy_n(array->shape, array->ndim, description.shape.begin());
  KOLO_TRY(comm::check(description));
  KOLO_TRY(checkStrides(*array, description.elements()));
  return checkPointer({"data", data, description.bytes()});
}

// Whether the array has the axis, all ranks see.
Status checkAxis(int axis) {
  if (axis >= 0 && axis < KOLO_MAX_DIMS) return {};
  return error(koloInvalidArgument, "axis is {}, expected 0..{}", axis, KOLO_MAX_DIMS - 1);
}

// What is common to the calls: run(communicator, target).
template <class Run>
Status runArrays(koloComm_t comm, koloStream_t stream, const Run& run) {
  KOLO_TRY(refuseInReduction());
  KOLO_TRY(refuseInGroup());
  Held<comm::Communicator> communicator(communicators.remember(reinterpret_cast<std::uintptr_t>(comm)));
  if (!communicator) return notACommunicator(comm);
  if (communicator->isFinalized()) {
    return error(koloInvalidUsage, "the communicator was finalised; expected no operations after koloCommFinalize");
  }
  const comm::Target target = targetOf(stream, nullptr);
  KOLO_TRY(checkTarget(*communicator, target, stream));
  return run(communicator, target);
}

Status checkDataPlace(const comm::Communicator& communicator, const void* data,
                      const comm::ArrayDescription& description) {
  if (!communicator.backend().checksPlaces() || description.bytes() == 0) return {};
  return communicator.backend().checkPlace("data", data, description.bytes());
}

// What the root cannot send it tells the others, who would wait for it otherwise.
koloResult_t fromRoot(const char* function, comm::ArrayCall call, const koloArray_t* array, koloDataType_t datatype,
                      int axis, koloComm_t comm, koloStream_t stream) noexcept {
  return guard(function, [&] {
    const auto begin = [&](Held<comm::Communicator>& communicator, const comm::Target& target) -> Status {
      KOLO_TRY(checkRoot(call.root, communicator->ranks()));
      if (communicator->rank() == call.root) {
        call.problem = describe(call.data, array, datatype, call.description);
        if (call.problem.ok()) call.problem = checkAxis(axis);
        call.description.axis = static_cast<std::uint8_t>(axis);
        if (call.problem.ok()) call.problem = checkDataPlace(*communicator, call.data, call.description);
      }
      return comm::runArrayCall(communicator, target, call);
    };
    return runArrays(comm, stream, begin);
  });
}

}  // namespace
}  // namespace kolo::api

using namespace kolo;
using namespace kolo::api;

extern "C" {

KOLO_API koloResult_t koloSendArray(const void* data, const koloArray_t* array, koloDataType_t datatype, int peer,
                                    koloComm_t comm, koloStream_t stream) {
  return guard(__func__, [&] {
    const auto begin = [&](Held<comm::Communicator>& communicator, const comm::Target& target) -> Status {
      comm::ArrayDescription description;
      KOLO_TRY(checkPeer(peer, communicator->ranks(), false));
      KOLO_TRY(describe(data, array, datatype, description));
      KOLO_TRY(checkDataPlace(*communicator, data, description));
      return communicator->backend().sendArray(communicator, target, data, description, peer);
    };
    return runArrays(comm, stream, begin);
  });
}

KOLO_API koloResult_t koloRecvArray(koloAllocateFunction_t allocate, void* context, int peer, koloRecvStatus_t* status,
                                    koloComm_t comm, koloStream_t stream) {
  return guard(__func__, [&] {
    const auto begin = [&](Held<comm::Communicator>& communicator, const comm::Target& target) -> Status {
      KOLO_TRY(checkPeer(peer, communicator->ranks(), true));
      if (allocate == nullptr) return error(koloInvalidPointer, "allocate is NULL, expected a function");
      return communicator->backend().receiveArray(communicator, target, {allocate, context}, peer, status);
    };
    return runArrays(comm, stream, begin);
  });
}

KOLO_API koloResult_t koloBroadcastArray(const void* data, const koloArray_t* array, koloDataType_t datatype,
                                         koloAllocateFunction_t allocate, void* context, int root, koloComm_t comm,
                                         koloStream_t stream) {
  return fromRoot(__func__, {.root = root, .data = data, .allocation = {allocate, context}}, array, datatype, 0, comm,
                  stream);
}

KOLO_API koloResult_t koloScatterArray(const void* data, const koloArray_t* array, koloDataType_t datatype, int axis,
                                       koloAllocateFunction_t allocate, void* context, int root, koloComm_t comm,
                                       koloStream_t stream) {
  return fromRoot(__func__, {.scatters = true, .root = root, .data = data, .allocation = {allocate, context}}, array,
                  datatype, axis, comm, stream);
}

}  // extern "C"
