#include "comm/array_description.h"

#include <algorithm>
#include <cstring>

#include "base/caller.h"
#include "base/datatypes.h"

namespace kolo::comm {
namespace {

constexpr std::size_t kHeadBytes = offsetof(ArrayDescription, shape);
static_assert(kHeadBytes == 16 && sizeof(ArrayDescription) == 16 + 8 * KOLO_MAX_DIMS);

Status unpackWhole(const unsigned char* packed, std::size_t bytes, ArrayDescription& description,
                   const unsigned char** data) {
  if (bytes < kHeadBytes)
    return error(koloRemoteError, "a description of {} bytes, expected {} or more", bytes, kHeadBytes);
  std::memcpy(static_cast<void*>(&description), packed, kHeadBytes);
  if (description.ndim > KOLO_MAX_DIMS) return check(description);
  const std::size_t head = kHeadBytes + description.ndim * sizeof(std::uint64_t);
  if (bytes >= head) std::memcpy(&description.shape, packed + kHeadBytes, head - kHeadBytes);
  KOLO_TRY(check(description));
  const std::uint64_t along = description.hasData != 0 ? description.bytes() : 0;
  if (along > kMostAlong || bytes != head + along)
    return error(koloRemoteError, "a description of {} bytes, expected {}", bytes, head + along);
  *data = packed + head;
  return {};
}

}  // namespace

std::uint64_t ArrayDescription::elements() const {
  std::uint64_t all = 1;
  for (std::size_t i = 0; i < ndim; ++i) all *= shape[i];
  return all;
}

std::uint64_t ArrayDescription::bytes() const { return elements() * elementBytes(type()); }

Status check(const ArrayDescription& description) {
  if (description.ndim > KOLO_MAX_DIMS)
    return error(koloInvalidArgument, "ndim is {}, expected 0..{} (KOLO_MAX_DIMS)", description.ndim, KOLO_MAX_DIMS);
  if (description.datatype >= koloNumDatatypes) {
    return error(koloInvalidDatatype, "datatype is {}, expected a koloDataType_t from 0 to {}", description.datatype,
                 koloNumDatatypes - 1);
  }
  // Without zeros: the product of the others is to fit, too.
  std::uint64_t most = static_cast<std::uint64_t>(PTRDIFF_MAX) / elementBytes(description.type());
  for (std::size_t i = 0; i < description.ndim; ++i) {
    const std::uint64_t length = description.shape[i];
    if (length > most)
      return error(koloInvalidCount, "shape[{}] is {}: the array exceeds the address space", i, length);
    if (length != 0) most /= length;
  }
  return {};
}

void* allocate(const Allocation& allocation, const ArrayDescription& description) {
  if (allocation.function == nullptr) return nullptr;
  std::array<std::size_t, KOLO_MAX_DIMS> shape{};
  std::copy(description.shape.begin(), description.shape.end(), shape.begin());
  const InUserFunction running;
  return callUsers(allocation.function, allocation.context, description.type(), description.ndim, shape.data());
}

std::vector<unsigned char> pack(const ArrayDescription& description, const void* data) {
  const std::size_t head = kHeadBytes + description.ndim * sizeof(std::uint64_t);
  std::vector<unsigned char> packed(head + (description.hasData != 0 ? description.bytes() : 0));
  std::memcpy(packed.data(), &description, head);
  if (packed.size() > head) std::memcpy(packed.data() + head, data, packed.size() - head);
  return packed;
}

Status unpack(int source, const unsigned char* packed, std::size_t bytes, ArrayDescription& description,
              const unsigned char** data) {
  Status wrong = unpackWhole(packed, bytes, description, data);
  if (wrong.ok()) return wrong;
  return error(koloRemoteError, "rank {} sent an array that cannot be: {}", source, wrong.message());
}

}  // namespace kolo::comm
