// Nonblocking collectives that the program has a request for.
//
// The request is the MPI's own, a generalized one (MPI_Grequest_start), so the program can put it in arrays among
// others, convert it for Fortran, and ask about it as it likes. But its end is mostly not the MPI's business: the
// functions that complete requests are taken over, and where one of them finds that a collective is over (Task), and
// needs no more than that, it takes the request from the program and keeps it for the next collective. To make and
// complete a generalized request costs several times as much as a short collective. Where the MPI has to decide (which
// of many requests is the first, what an error is in an array of statuses), the request is declared complete, and goes
// the MPI's way. Nobody else ever waits for a request, so either is early enough; and it is a thread of the program's
// that is in a call of the MPI's, so that no other thread needs to call the MPI.
//
// MPI forbids to free the request of a collective before it is complete. Where a program does so, the collective goes
// on, and its request is taken back when there is an occasion (sweepFreed).
//
// Thread safety: all functions but endRequests; the MPI wants one thread at a time to complete a request.
#pragma once

#include <memory>

#include "mpi/mpi_header.h"
#include "mpi/on_host.h"
#include "mpi/report.h"
#include "mpi/session.h"
#include "mpi/task.h"

namespace kolo::mpi {

// A request for a task that was started. buffers: nullptr, or copies of a GPU's, where it puts what arrives. Returns an
// error code of the MPI's.
int giveRequest(const Session& session, Hook hook, std::unique_ptr<Task> task, std::unique_ptr<OnHost> buffers,
                MPI_Request* request);

// The following are for requests of any kind, MPI_REQUEST_NULL included.

// Waits for those that are of tasks, and takes them: they are MPI_REQUEST_NULL then, whose status is what theirs is.
// Requests of tasks that failed are only declared complete, and left. How many were taken.
int takeAll(int count, MPI_Request* requests);
// Calls takeAll(), without waiting, if each request is of a task that is over, or MPI_REQUEST_NULL. True: this was so,
// and takeAll() was called.
bool takeIfAllAreOver(int count, MPI_Request* requests);
// Requests of tasks that are over are declared complete.
void declareWhatIsOver(int count, const MPI_Request* requests);
// Whether any is of a task.
bool hasTasks(int count, const MPI_Request* requests);

// Whether the program has still to complete a request of the session's, be it over or not: another thread may be
// waiting for it. REQUIRES: no new ones come.
bool areRequestsOf(const Session& session);

// Whether the request is of a task, over or not. Then it is the program's no longer, as after MPI_Request_free.
bool letGo(MPI_Request request);
void sweepFreed();
// Gives back to the MPI what is kept, at the end. No other function may run.
void endRequests();

}  // namespace kolo::mpi
