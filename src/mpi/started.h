// Nonblocking collectives that the program has a request for.
//
// The request is the MPI's own, a generalized one (MPI_Grequest_start), so the program can put it in arrays among others, convert it for
// Fortran, and ask about it as it likes. Generalized requests are completed by those who made them. This is done in the calls
// that complete requests, which are taken over: before the MPI looks, those that are over (Backlog) are stored and declared
// complete. Nobody else ever waits for a request, so that is early enough; and it is a thread of the program's that is in a call
// of the MPI's, so that no other thread needs to call the MPI.
//
// MPI forbids to free the request of a collective before it is complete. Where a program does so, the collective goes on, and its
// request is completed when there is an occasion (sweepFreed).
//
// Thread safety: all functions; the MPI wants one thread at a time to complete a request.
#pragma once

#include <memory>

#include "mpi/mpi_header.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/task.h"

namespace kolo::mpi {

// Gives the task to the session's backlog. Returns an error code of the MPI's. Throws as Session::backlog does.
int startTask(Session& session, Hook hook, std::unique_ptr<Task> task, MPI_Request* request);

// For requests of any kind, MPI_REQUEST_NULL included: those of tasks that are over, or that have to be, are declared complete.
void completeWhatIsOver(int count, const MPI_Request* requests);
void completeAll(int count, const MPI_Request* requests);   // waits for them
// Whether any is of a task.
bool hasTasks(int count, const MPI_Request* requests);

// Whether the request is of a task that is not over. Then it is the program's no longer, as after MPI_Request_free.
bool freeBeforeItIsOver(MPI_Request request);
void sweepFreed();

}  // namespace kolo::mpi
