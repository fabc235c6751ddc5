#include "comm/mesh.h"

#include <cstdint>

namespace kolo::comm {
std::string describeMesh(const std::vector<int>& dims) {
  std::string text;
  for (const int length : dims) text += fmt::format("{}{}", text.empty() ? "" : " x ", length);
  return text;
}

Result<Mesh> Mesh::make(const int* dims, int ndim, int ranks) {
  if (ndim < 1 || ndim > kMostDimensions)
    return error(koloInvalidCount, "ndim is {}, expected 1..{}", ndim, kMostDimensions);
  if (dims == nullptr) return error(koloInvalidPointer, "dims is NULL, expected the lengths of {} axes", ndim);
  Mesh mesh;
  mesh.dims_.assign(dims, dims + ndim);
  std::int64_t places = 1;
  for (int axis = 0; axis < ndim; ++axis) {
    const int length = dims[axis];
    if (length < 1) return error(koloInvalidArgument, "dims[{}] is {}, expected 1 or more", axis, length);
    places = places > ranks ? places : places * length;  // short of an overflow
  }
  if (places != ranks) {
    return error(koloInvalidArgument, "a mesh of {} has not as many places as the communicator has ranks, {}",
                 describeMesh(mesh.dims_), ranks);
  }
  mesh.strides_.resize(mesh.dims_.size());
  int stride = 1;
  for (std::size_t axis = mesh.dims_.size(); axis-- > 0; stride *= mesh.dims_[axis]) mesh.strides_[axis] = stride;
  return mesh;
}

Status Mesh::checkAxes(const std::vector<int>& axes) const {
  std::vector<bool> isThere(dims_.size());
  for (const int axis : axes) {
    if (axis < 0 || axis >= static_cast<int>(dims_.size())) {
      return error(koloInvalidArgument, "axes has {}, expected axes 0..{} of a mesh of {}", axis, dims_.size() - 1,
                   describeMesh(dims_));
    }
    if (isThere[static_cast<std::size_t>(axis)])
      return error(koloInvalidArgument, "axes has axis {} twice, expected each axis once", axis);
    isThere[static_cast<std::size_t>(axis)] = true;
  }
  return {};
}

std::vector<int> Mesh::along(const std::vector<int>& axes, int rank) const {
  int origin = rank;
  for (const int listed : axes) {
    const auto axis = static_cast<std::size_t>(listed);
    origin -= rank / strides_[axis] % dims_[axis] * strides_[axis];
  }
  std::vector<int> line{origin};
  for (const int listed : axes) {
    const auto axis = static_cast<std::size_t>(listed);
    std::vector<int> longer;
    for (const int begin : line) {
      for (int place = 0; place < dims_[axis]; ++place) longer.push_back(begin + place * strides_[axis]);
    }
    line = std::move(longer);
  }
  return line;
}

std::vector<int> Mesh::shapeAlong(const std::vector<int>& axes) const {
  std::vector<int> shape;
  for (const int axis : axes) {
    const int length = dims_[static_cast<std::size_t>(axis)];
    if (length > 1) shape.push_back(length);
  }
  if (shape.size() < 2) shape.clear();
  return shape;
}

}  // namespace kolo::comm
