// Where kernels find which ranks form a step of a collective, and in which order rings go: tables in the device's
// memory.
#include <vector>

#include "executor/cuda/engine.h"

namespace kolo::executor::cuda {

Status Engine::setHosts(const device::Hosts& hosts) {
  const auto all = static_cast<std::size_t>(hosts.count) * static_cast<std::size_t>(hosts.perHost),
             across = static_cast<std::size_t>(hosts.count);
  KOLO_ASSIGN(hosts_, gpu_->lend(Lent::Where::kDevice, sizeof hosts + (all + across) * sizeof(int)));
  int* const ranks = reinterpret_cast<int*>(hosts_.as() + sizeof hosts);
  device::Hosts there = hosts;
  there.ranks = ranks;
  there.across = ranks + all;
  KOLO_TRY(gpu_->upload(reinterpret_cast<CUdeviceptr>(hosts_.as<void>()), &there, sizeof there));
  KOLO_TRY(gpu_->upload(reinterpret_cast<CUdeviceptr>(ranks), hosts.ranks, all * sizeof(int)));
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(ranks + all), hosts.across, across * sizeof(int));
}

Status Engine::setMesh(const device::Mesh& mesh) {
  std::vector<device::RankGroup> groups(mesh.lines, mesh.lines + mesh.axes);
  std::size_t ranks = 0;
  for (const device::RankGroup& group : groups) ranks += static_cast<std::size_t>(group.ranks);
  const std::size_t groupBytes = groups.size() * sizeof(device::RankGroup);
  KOLO_ASSIGN(mesh_, gpu_->lend(Lent::Where::kDevice, sizeof mesh + groupBytes + ranks * sizeof(int)));
  auto* const groupsThere = reinterpret_cast<device::RankGroup*>(mesh_.as() + sizeof mesh);
  auto* next = reinterpret_cast<int*>(mesh_.as() + sizeof mesh + groupBytes);
  for (device::RankGroup& group : groups) {
    const auto count = static_cast<std::size_t>(group.ranks);
    KOLO_TRY(gpu_->upload(reinterpret_cast<CUdeviceptr>(next), group.members, count * sizeof(int)));
    group.members = next;
    next += count;
  }
  KOLO_TRY(gpu_->upload(reinterpret_cast<CUdeviceptr>(groupsThere), groups.data(), groupBytes));
  const device::Mesh there{mesh.axes, groupsThere};
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(mesh_.as<void>()), &there, sizeof there);
}

Status Engine::setOrder(const std::vector<int>& ranks) {
  KOLO_ASSIGN(order_, gpu_->lend(Lent::Where::kDevice, ranks.size() * sizeof(int)));
  return gpu_->upload(reinterpret_cast<CUdeviceptr>(order_.as<void>()), ranks.data(), ranks.size() * sizeof(int));
}

}  // namespace kolo::executor::cuda
