// What a collective asks of Kolo: a call, and the memory that it works on.
//
// Thread safety: one thread at a time for each object, any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "mpi/regions.h"
#include "mpi/report.h"
#include "mpi/scan.h"
#include "mpi/session.h"

namespace kolo::mpi {

struct Order {
  explicit Order(Session& session) : session(session) {}

  // The call. In the order of the communicator's collectives.
  koloResult_t run(const Call& call);
  // When it has succeeded: puts what arrived where the program wants it, in a thread of the program's that is in a call
  // of MPI's. Throws MpiError.
  void store();
  // store() comes when the call is over in which this was made.
  void outliveTheCall() {
    if (to) to->outliveTheCall();
  }

  Session& session;
  Hook name = Hook::kBarrier;  // of the form that blocks
  std::optional<MPI_Op> op{};  // of a collective that calculates
  MPI_Datatype datatype{};     // with numbers of this kind
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;              // of each block, or of this rank's: numbers, or bytes
  std::vector<std::size_t> counts{};  // of numbers of each rank
  int root = 0;
  bool onlyGives = false;  // this rank gets nothing from others
  // Where the program's own buffers are not input and output as they are.
  std::optional<Region> from{}, to{};
  std::optional<Scan> scan{};
  // This rank gives itself another number of bytes than it takes, in words. MPI forbids that, but no MPI refuses it:
  // the ranks communicate, and data that are too long for their place are cut off and reported. The other ranks may
  // have called rightly, and are in Kolo then. A barrier tells: if they are, it fails on all ranks, and so does the
  // communicator. If it does not, all ranks have called like this one. A nonblocking call can no longer be the MPI's
  // then.
  std::string differing{};
};

inline constexpr const char* kDiffer = "each rank gives itself another number of bytes than it takes";

}  // namespace kolo::mpi
