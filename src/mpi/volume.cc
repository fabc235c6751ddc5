#include "mpi/volume.h"

namespace kolo::mpi {
namespace {

std::size_t bytesOf(MPI_Count count, MPI_Datatype datatype) {
  MPI_Count size = 0;
  PMPI_Type_size_x(datatype, &size);
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(size);
}

}  // namespace

// A block for each rank, or from each.
std::size_t Volume::ofBlocks(MPI_Count count, MPI_Datatype datatype) const {
  return static_cast<std::size_t>(ranks_) * bytesOf(count, datatype);
}

std::size_t Volume::ofAll(const Numbers& counts, MPI_Datatype datatype) const {
  MPI_Count total = 0;
  for (int i = 0; i < ranks_; ++i) total += counts[i];
  return bytesOf(total, datatype);
}

std::size_t Volume::Barrier(MPI_Comm) const { return 0; }

std::size_t Volume::Bcast(void*, MPI_Count count, MPI_Datatype datatype, int, MPI_Comm) const {
  return bytesOf(count, datatype);
}

std::size_t Volume::Allreduce(const void*, void*, MPI_Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm) const {
  return bytesOf(count, datatype);
}

std::size_t Volume::Reduce(const void*, void*, MPI_Count count, MPI_Datatype datatype, MPI_Op, int, MPI_Comm) const {
  return bytesOf(count, datatype);
}

std::size_t Volume::Reduce_scatter_block(const void*, void*, MPI_Count recvcount, MPI_Datatype datatype, MPI_Op,
                                         MPI_Comm) const {
  return ofBlocks(recvcount, datatype);
}

std::size_t Volume::Reduce_scatter(const void*, void*, Numbers recvcounts, MPI_Datatype datatype, MPI_Op,
                                   MPI_Comm) const {
  return ofAll(recvcounts, datatype);
}

std::size_t Volume::Scan(const void*, void*, MPI_Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm) const {
  return bytesOf(count, datatype);
}

std::size_t Volume::Exscan(const void*, void*, MPI_Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm) const {
  return bytesOf(count, datatype);
}

// What is sent is described by what is received: the other arguments mean nothing where MPI_IN_PLACE is given.
std::size_t Volume::Allgather(const void*, MPI_Count, MPI_Datatype, void*, MPI_Count recvcount, MPI_Datatype recvtype,
                              MPI_Comm) const {
  return ofBlocks(recvcount, recvtype);
}

std::size_t Volume::Allgatherv(const void*, MPI_Count, MPI_Datatype, void*, Numbers recvcounts, Numbers,
                               MPI_Datatype recvtype, MPI_Comm) const {
  return ofAll(recvcounts, recvtype);
}

std::size_t Volume::Alltoall(const void*, MPI_Count, MPI_Datatype, void*, MPI_Count recvcount, MPI_Datatype recvtype,
                             MPI_Comm) const {
  return ofBlocks(recvcount, recvtype);
}

// Only the root has the arguments of both ends, of which one may be in place.
std::size_t Volume::Gather(const void*, MPI_Count sendcount, MPI_Datatype sendtype, void*, MPI_Count recvcount,
                           MPI_Datatype recvtype, int root, MPI_Comm) const {
  return rank_ == root ? ofBlocks(recvcount, recvtype) : ofBlocks(sendcount, sendtype);
}

std::size_t Volume::Scatter(const void*, MPI_Count sendcount, MPI_Datatype sendtype, void*, MPI_Count recvcount,
                            MPI_Datatype recvtype, int root, MPI_Comm) const {
  return rank_ == root ? ofBlocks(sendcount, sendtype) : ofBlocks(recvcount, recvtype);
}

std::size_t Volume::Gatherv(const void*, MPI_Count, MPI_Datatype, void*, Numbers, Numbers, MPI_Datatype, int,
                            MPI_Comm) const {
  return 0;
}

std::size_t Volume::Scatterv(const void*, Numbers, Numbers, MPI_Datatype, void*, MPI_Count, MPI_Datatype, int,
                             MPI_Comm) const {
  return 0;
}

std::size_t Volume::Alltoallv(const void*, Numbers, Numbers, MPI_Datatype, void*, Numbers, Numbers, MPI_Datatype,
                              MPI_Comm) const {
  return 0;
}

std::size_t Volume::Alltoallw(const void*, Numbers, Numbers, const MPI_Datatype*, void*, Numbers, Numbers,
                              const MPI_Datatype*, MPI_Comm) const {
  return 0;
}

}  // namespace kolo::mpi
