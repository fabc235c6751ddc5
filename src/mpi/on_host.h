// Buffers in a GPU's memory, under an MPI that may know nothing of GPUs: for the time of a call each has a copy in the
// host's memory in its place, for Kolo and for the MPI underneath alike. What a call leaves as it is in a buffer, it
// leaves in the GPU's memory: only the data that the call's datatypes describe are written there.
//
// Thread safety: one thread at a time for each object, any for each call.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mpi/gpu.h"
#include "mpi/mpi_header.h"
#include "mpi/regions.h"
#include "mpi/report.h"

namespace kolo::mpi {

class OnHost {
 public:
  // Whether a call may have such buffers.
  static bool isNeeded() { return gpu::isUsed(); }

  // Of one call. Its functions have the parameters of the MPI's, and give those pointers of theirs that are to a GPU's
  // memory other values, pointers to copies of what the call reads. Arguments that MPI forbids stay as they are. Throws
  // std::bad_alloc; MpiError: the driver could not copy, as was said.
  OnHost(Hook hook, MPI_Comm comm) : hook_(hook), comm_(comm) {}
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  ~OnHost();

  using Count = MPI_Count;
  // NOLINTBEGIN(readability-identifier-naming): named as the calls of MPI
  void Barrier(MPI_Comm) {}
  void Bcast(void*& buffer, Count count, MPI_Datatype datatype, int root, MPI_Comm);
  void Allreduce(const void*& sendbuf, void*& recvbuf, Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm);
  void Reduce(const void*& sendbuf, void*& recvbuf, Count count, MPI_Datatype datatype, MPI_Op, int root, MPI_Comm);
  void Reduce_scatter_block(const void*& sendbuf, void*& recvbuf, Count recvcount, MPI_Datatype datatype, MPI_Op,
                            MPI_Comm);
  void Reduce_scatter(const void*& sendbuf, void*& recvbuf, Numbers recvcounts, MPI_Datatype datatype, MPI_Op,
                      MPI_Comm);
  void Scan(const void*& sendbuf, void*& recvbuf, Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm);
  void Exscan(const void*& sendbuf, void*& recvbuf, Count count, MPI_Datatype datatype, MPI_Op, MPI_Comm);
  void Allgather(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Count recvcount,
                 MPI_Datatype recvtype, MPI_Comm);
  void Allgatherv(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Numbers recvcounts,
                  Numbers displs, MPI_Datatype recvtype, MPI_Comm);
  void Gather(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Count recvcount,
              MPI_Datatype recvtype, int root, MPI_Comm);
  void Gatherv(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Numbers recvcounts,
               Numbers displs, MPI_Datatype recvtype, int root, MPI_Comm);
  void Scatter(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Count recvcount,
               MPI_Datatype recvtype, int root, MPI_Comm);
  void Scatterv(const void*& sendbuf, Numbers sendcounts, Numbers displs, MPI_Datatype sendtype, void*& recvbuf,
                Count recvcount, MPI_Datatype recvtype, int root, MPI_Comm);
  void Alltoall(const void*& sendbuf, Count sendcount, MPI_Datatype sendtype, void*& recvbuf, Count recvcount,
                MPI_Datatype recvtype, MPI_Comm);
  void Alltoallv(const void*& sendbuf, Numbers sendcounts, Numbers sdispls, MPI_Datatype sendtype, void*& recvbuf,
                 Numbers recvcounts, Numbers rdispls, MPI_Datatype recvtype, MPI_Comm);
  void Alltoallw(const void*& sendbuf, Numbers sendcounts, Numbers sdispls, const MPI_Datatype* sendtypes,
                 void*& recvbuf, Numbers recvcounts, Numbers rdispls, const MPI_Datatype* recvtypes, MPI_Comm);
  // NOLINTEND(readability-identifier-naming)

  // Whether any buffer was a GPU's.
  bool isAny() const { return !copies_.empty(); }
  // After a call that succeeded: brings what arrived to the GPU. MPI_SUCCESS, or an error of the MPI's, which has been
  // explained.
  int store() const;

 private:
  struct Copy {
    void* memory;
    unsigned char* data;               // in it
    unsigned char* device;             // the same there
    std::vector<gpu::Pieces> written;  // by the call
  };
  // Data of a buffer: blocks of elements.
  struct Part {
    Count first, count;
  };
  struct Data {
    MPI_Datatype datatype;
    std::vector<Part> parts;
    std::ptrdiff_t begin = 0;  // of element 0, in bytes
  };
  enum class Use { kRead, kWritten, kBoth };
  struct Role {
    bool isRoot, isMember;  // of those that the root gives to or takes from, the root among them
  };

  Data elements(Count count, MPI_Datatype datatype) const { return {datatype, {{0, count}}, 0}; }
  Data blocks(const Numbers& counts, const Numbers& displs, MPI_Datatype datatype) const;
  void bring(const void*& sendbuf, const Data& sent);
  void bring(const void*& sendbuf, const Data& sent, void*& recvbuf, const Data& received);
  // received(), sent(): what the root's buffer has; it is asked there only.
  template <class Received>
  void toRoot(const void*& sendbuf, const Data& sent, void*& recvbuf, const Received& received, int root) {
    const Role role = roleAt(root);
    const bool inPlace = sendbuf == MPI_IN_PLACE;
    if (role.isMember && !inPlace) bring(sendbuf, sent);
    if (role.isRoot) replace(recvbuf, received(), inPlace ? Use::kBoth : Use::kWritten);
  }
  template <class Sent>
  void fromRoot(const void*& sendbuf, const Sent& sent, void*& recvbuf, const Data& received, int root) {
    const Role role = roleAt(root);
    if (role.isRoot) bring(sendbuf, sent());
    if (role.isMember) replace(recvbuf, received, Use::kWritten);
  }
  std::vector<Data> blocksOfEach(const Numbers& counts, const Numbers& displs, const MPI_Datatype* datatypes) const;
  void replace(void*& buffer, const Data& data, Use use) { replace(buffer, std::span(&data, 1), use); }
  void replace(void*& buffer, std::span<const Data> all, Use use);
  int explain(const char* direction, const char* error) const;
  int rank() const;
  int ownRanks() const;
  bool isOfTwoGroups() const;
  Count ranks() const;
  Role roleAt(int root) const;

  Hook hook_;
  MPI_Comm comm_;
  std::vector<Copy> copies_;
};

// Of a request of the MPI's own, whose call had such buffers: stored when the request is complete. Returns as
// OnHost::store, of one that is already.
int storeWhenComplete(MPI_Request request, std::unique_ptr<OnHost> buffers);

// The requests with buffers to be stored, among some that a function may complete.
class Arrivals {
 public:
  Arrivals(int count, const MPI_Request* requests);
  // After the function, which returned `code`, in any case: stores what came with the requests that it took from the
  // program; areComplete: all, though it has not taken them. Returns `code`, or the code of an error, which has been
  // raised.
  int store(int code, bool areComplete = false);

 private:
  struct Awaiting {
    int index;
    MPI_Request request;
    std::unique_ptr<OnHost> buffers;
  };

  const MPI_Request* requests_;
  std::vector<Awaiting> awaited_;
};

}  // namespace kolo::mpi
