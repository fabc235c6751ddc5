// A scan. The MPI calculates it in any case: in the call, or when it is completed.
//
// Thread safety: one thread at a time for each object, any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <memory>

#include "mpi/call.h"
#include "mpi/session.h"

namespace kolo::mpi {

class Scan {
 public:
  // Whose result comes to recvbuf.
  Scan(const Session& session, const void* input, void* recvbuf, MPI_Count count, MPI_Datatype datatype, MPI_Op op,
       bool isInclusive)
      : session_(session), input_(input), recvbuf_(recvbuf), count_(count), datatype_(datatype), op_(op),
        isInclusive_(isInclusive), extent_(static_cast<std::size_t>(formOf(datatype).extent)) {}

  std::size_t bytes() const { return static_cast<std::size_t>(count_) * extent_; }
  // A call that waits does it all, by messages. One that starts a request collects the inputs of all ranks, which
  // store() folds: by messages it would have several steps, and need a thread that takes them while the program
  // calculates.
  koloResult_t run(const Call& call) { return call.waits() ? passUpwards() : collect(call); }
  void store() const;
  static constexpr std::size_t kMostCollected = std::size_t{1} << 20;  // bytes of all ranks

 private:
  koloResult_t passUpwards() const;
  koloResult_t collect(const Call& call);
  koloResult_t shift(const void* send, void* recv, int distance) const;
  void fold(const void* in, void* inout) const;

  const Session& session_;
  const void* input_;
  void* recvbuf_;
  MPI_Count count_;
  MPI_Datatype datatype_;
  MPI_Op op_;
  bool isInclusive_;
  std::size_t extent_;
  std::unique_ptr<unsigned char[]> inputs_;  // of all ranks
};

}  // namespace kolo::mpi
