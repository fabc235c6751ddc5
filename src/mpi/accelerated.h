// MPI's collectives by those of Kolo: one call on a communicator that has a session.
//
// A call may be declined. Then nothing has been done, and the call is the MPI's. It is declined if it is not covered,
// by what is the same on all ranks; and if the MPI refuses its arguments, so that the error is the MPI's own. What may
// differ between ranks (datatypes of the same signature, which of them have gaps, displacements) never decides, nor
// does what MPI forbids and the MPI does not refuse: the rank would be in the MPI while the others are in Kolo.
//
// Arguments are judged and data packed before Kolo is called: until then nothing is counted, and nobody waited for.
#pragma once

#include <kolo/kolo.h>

#include <memory>

#include "mpi/collective.h"
#include "mpi/session.h"
#include "mpi/task.h"

namespace kolo::mpi {

struct Outcome {
  koloResult_t result = koloSuccess;
  const char* whyDeclined = nullptr;  // nullptr: it was carried out, with the result; or was started, or could not be
};
// The collective, on the session's communicator. Throws MpiError: the MPI could not pack.
Outcome carryOut(const Collective& its, Session& session);
// task: becomes what was started.
Outcome start(const Collective& its, Session& session, std::unique_ptr<Task>& task);

}  // namespace kolo::mpi
