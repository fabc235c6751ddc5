// A communicator of the program's and Kolo's communicator beside it, of the same ranks in the same order.
//
// It hangs on the communicator as an attribute, which copies of the communicator do not get, and is made by the first collective on it.
// When the program frees the communicator, or at the beginning of MPI_Finalize, Kolo's goes too.
//
// Thread safety: of() from any thread; what it returns as MPI's communicators are: one collective at a time.
#pragma once

#include <kolo/kolo.h>

#include <list>
#include <optional>
#include <string>

#include "mpi/datatypes.h"
#include "mpi/mpi_header.h"

namespace kolo::mpi {

// How Kolo calculates what the MPI's operation and datatype say.
struct Reduction {
  koloDataType_t datatype;
  koloRedOp_t op;
};

class Session {
 public:
  // nullptr: this communicator's collectives are the MPI's: it has one rank or two groups, Kolo could not start on all of its
  // ranks, or the MPI is not initialised, or not any more. All ranks find the same. The first call on a communicator is
  // collective.
  static Session* of(MPI_Comm comm);

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session();

  koloComm_t kolo() const { return kolo_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  MPI_Comm comm() const { return comm_; }

  // nullopt: not covered (operations.h), which depends on the arguments alone, the same on all ranks. Where Kolo has no such operation,
  // it calls that of the MPI (MPI_Reduce_local).
  std::optional<Reduction> findReduction(MPI_Op op, MPI_Datatype datatype);

 private:
  // An operation that the MPI carries out, on elements that Kolo only knows the length of.
  struct Borrowed {
    MPI_Op op;
    MPI_Datatype datatype;
    koloRedOp_t handle;
  };

  explicit Session(MPI_Comm comm) : comm_(comm) {}
  static Session* make(MPI_Comm comm);
  void start();
  int firstUnready(bool isReady) const;
  koloResult_t join(const koloUniqueId& id);
  void retire();
  std::optional<koloRedOp_t> borrow(MPI_Op op, MPI_Datatype datatype);
  static void fold(void* acc, const void* in, size_t count, koloDataType_t carrier, void* context);
  static int release(MPI_Comm comm, int keyval, void* attribute, void* extra);
  friend class Sessions;

  MPI_Comm comm_;
  int rank_ = 0, ranks_ = 1;
  koloComm_t kolo_ = nullptr;
  std::list<Borrowed> borrowed_;   // places that koloRedOpCreate has been given
};

}  // namespace kolo::mpi
