#include "mpi/collective.h"

namespace kolo::mpi {

// A side with blocks for all ranks says it all. Where both sides have such blocks, or neither, it is the side that is
// taken: with MPI_IN_PLACE the other's arguments mean nothing.
std::size_t Collective::volume(int rank, int ranks) const {
  const bool isGivenWhole = given.isOfAllRanks() && !taken.isOfAllRanks();
  const Side &whole = isGivenWhole ? given : taken, &other = isGivenWhole ? taken : given;
  const auto bytesOf = [](const Side& side, MPI_Count count) {
    MPI_Count size = 0;
    PMPI_Type_size_x(side.datatype, &size);
    return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
  };
  if (whole.blocks == Side::Blocks::kNone) return 0;
  if (!whole.isOfAllRanks()) return bytesOf(whole, whole.count);
  if (whole.isCounted()) {
    if (flow.isRooted() || other.isCounted()) return 0;
    MPI_Count total = 0;
    for (int i = 0; i < ranks; ++i) total += whole.counts[i];
    return bytesOf(whole, total);
  }
  const bool hasWhole = !flow.isRooted() || rank == flow.root;
  return static_cast<std::size_t>(ranks) * (hasWhole ? bytesOf(whole, whole.count) : bytesOf(other, other.count));
}

}  // namespace kolo::mpi
