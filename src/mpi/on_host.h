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

#include "mpi/collective.h"
#include "mpi/gpu.h"
#include "mpi/mpi_header.h"
#include "mpi/report.h"

namespace kolo::mpi {

class OnHost {
 public:
  // Whether a call may have such buffers.
  static bool isNeeded() { return gpu::isUsed(); }

  // Of one call: gives those of its arguments that point to a GPU's memory other values, pointers to copies of what the
  // call reads. Arguments that MPI forbids stay as they are. nullptr: there are none. Throws std::bad_alloc; MpiError:
  // the driver could not copy, as was said.
  static std::unique_ptr<OnHost> of(Hook hook, const Collective& its);
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;
  ~OnHost();

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
    MPI_Count first, count;
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

  OnHost(Hook hook, MPI_Comm comm) : hook_(hook), comm_(comm) {}
  void replaceAll(const Collective& its);
  std::vector<Data> dataOf(const Side& side, bool isReduced) const;
  void replace(void*& buffer, std::span<const Data> all, Use use);
  int explain(const char* direction, const char* error) const;
  int rank() const;
  int ownRanks() const;
  bool isOfTwoGroups() const;
  MPI_Count otherRanks() const;
  Role roleIn(const Flow& flow) const;

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
