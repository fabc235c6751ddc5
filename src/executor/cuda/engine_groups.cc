// Where kernels find which ranks form a step of a collective, and in which order rings go: tables in the device's
// memory.
#include <vector>

#include "executor/cuda/engine.h"

namespace kolo::executor::cuda {

Status Engine::lendGrid(const device::Grid& grid, const device::Grid*& there) {
  std::vector<device::RankGroup> lines(grid.lines, grid.lines + grid.axes);
  std::vector<int> ranks;  // the members of each line, then all
  std::size_t all = 1;
  for (const device::RankGroup& line : lines) {
    ranks.insert(ranks.end(), line.members, line.members + line.ranks);
    all *= static_cast<std::size_t>(line.ranks);
  }
  ranks.insert(ranks.end(), grid.ranks, grid.ranks + all);
  const std::size_t lineBytes = lines.size() * sizeof(device::RankGroup), rankBytes = ranks.size() * sizeof(int);
  KOLO_ASSIGN(Lent memory, gpu_->lend(Lent::Where::kDevice, sizeof grid + lineBytes + rankBytes));
  unsigned char* const linesAt = memory.as() + sizeof grid;
  const int* next = reinterpret_cast<const int*>(linesAt + lineBytes);
  const auto upload = [&](const void* to, const void* from, std::size_t bytes) {
    return gpu_->upload(reinterpret_cast<CUdeviceptr>(to), from, bytes);
  };
  KOLO_TRY(upload(next, ranks.data(), rankBytes));
  for (device::RankGroup& line : lines) {
    line.members = next;
    next += line.ranks;
  }
  KOLO_TRY(upload(linesAt, lines.data(), lineBytes));
  const device::Grid copy{grid.axes, reinterpret_cast<const device::RankGroup*>(linesAt), next};
  there = grids_.emplace_back(std::move(memory)).as<device::Grid>();
  return upload(there, &copy, sizeof copy);
}

Status Engine::setOrder(const std::vector<int>& ranks) {
  KOLO_ASSIGN(order_, gpu_->lend(Lent::Where::kDevice, ranks.size() * sizeof(int)));
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(order_.as<void>()), ranks.data(), ranks.size() * sizeof(int));
}

}  // namespace kolo::executor::cuda
