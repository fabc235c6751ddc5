#include "api/checks.h"

#include "base/datatypes.h"
#include "device/reducers.h"

namespace kolo::api {

Status refusal::ranks(int ranks) {
  return error(koloInvalidRankCount, "nranks is {}, expected 1..{}", ranks, KOLO_MAX_RANKS);
}

Status refusal::datatype(koloDataType_t datatype) {
  return error(koloInvalidDatatype, "datatype is {}, expected a koloDataType_t from 0 to {}",
               static_cast<int>(datatype), koloNumDatatypes - 1);
}

Status refusal::count(std::size_t count, koloDataType_t datatype, std::uint64_t blocks) {
  const std::uint64_t most = static_cast<std::uint64_t>(PTRDIFF_MAX) / elementBytes(datatype) / blocks;
  if (count <= most) return {};
  if (count > static_cast<std::size_t>(PTRDIFF_MAX)) {
    return error(koloInvalidCount, "count is {} ({} when read as signed), expected at most {} elements of {}", count,
                 static_cast<std::ptrdiff_t>(count), most, koloDataTypeName(datatype));
  }
  return error(koloInvalidCount, "count is {}, expected at most {}: {} blocks of so many {} exceed the address space",
               count, most, blocks, koloDataTypeName(datatype));
}

Status refusal::root(int root, int ranks) {
  return error(koloInvalidRoot, "root is {}, expected 0..{}", root, ranks - 1);
}

Status refusal::peer(int peer, int ranks, bool anyAllowed) {
  return error(koloInvalidRoot, "peer is {}, expected 0..{}{}", peer, ranks - 1,
               anyAllowed ? " or KOLO_ANY_SOURCE" : "");
}

Status refusal::tag(int tag, bool anyAllowed) {
  return error(koloInvalidArgument, "tag is {}, expected 0..{}{}", tag, KOLO_MAX_TAG,
               anyAllowed ? " or KOLO_ANY_TAG" : "");
}

Status refusal::reduction(koloRedOp_t op, koloDataType_t datatype, comm::Communicator& communicator) {
  if (op >= 0 && op < koloNumOps) {
    if (koloRedOpIsDefined(op, datatype) != 0) return {};
    return error(koloInvalidOperation, "{} is not defined for {}", koloRedOpName(op), koloDataTypeName(datatype));
  }
  const auto custom = communicator.reductions().find(op);
  if (custom == nullptr) {
    return error(koloInvalidOperation,
                 "reduction {} is unknown: expected 0..{} or a handle made on this communicator and "
                 "not destroyed",
                 static_cast<int>(op), koloNumOps - 1);
  }
  if (custom->isPreMulSum && custom->datatype != datatype) {
    return error(koloInvalidDatatype,
                 "the pre-multiplied sum was made for {}, expected its use with that datatype, got {}",
                 koloDataTypeName(custom->datatype), koloDataTypeName(datatype));
  }
  return {};
}

Status refusal::pointer(const Extent& extent) {
  return error(koloInvalidPointer, "{} is NULL, expected {} bytes", extent.name, extent.bytes);
}

Status refusal::overlap(const Extent& send, const Extent& recv, const char* rule) {
  return error(koloInvalidOverlap, "{} ({}, {} bytes) and {} ({}, {} bytes) overlap; expected them apart{}{}",
               send.name, fmt::ptr(send.data), send.bytes, recv.name, fmt::ptr(recv.data), recv.bytes,
               rule[0] == '\0' ? "" : " or in place: ", rule);
}

}  // namespace kolo::api
