// The functions by which programs complete requests, under their two names: what they have of ours is completed first
// (started.h).
#include <new>

#include "common/patience.h"
#include "mpi/errors.h"
#include "mpi/on_host.h"
#include "mpi/started.h"
#include "mpi/underneath.h"

namespace kolo::mpi {
namespace {

// call(functions): what is not ours is for the MPI, and for a tool before it to see.
template <class Call>
int passOn(int count, const MPI_Request* requests, const Call& call) {
  Arrivals arrivals(count, requests);
  return arrivals.store(PassedOn::carryOutBy(call));
}

// The status of what was taken: MPI's empty one. MPI_ERROR is not set by calls that report a single request.
void makeEmpty(MPI_Status& status) {
  static const MPI_Status empty = [] {
    MPI_Status its{};
    MPI_Request none = MPI_REQUEST_NULL;
    underneath().Wait(&none, &its);
    return its;
  }();
  const int error = status.MPI_ERROR;
  status = empty;
  status.MPI_ERROR = error;
}

// Whether a call whose requests have all been taken may end without the MPI, which would have nothing to do: nobody
// else is to see it, and there are places for the statuses, or none are wanted.
bool endsHere(int taken, int count, const MPI_Status* statuses) {
  const bool arePlaces = statuses != nullptr || statuses == MPI_STATUSES_IGNORE;
  return taken == count && taken != 0 && arePlaces && !isToolBehind();
}

int completeWait(MPI_Request* request, MPI_Status* status) {
  if (request != nullptr && endsHere(takeAll(1, request), 1, status)) {
    if (status != MPI_STATUS_IGNORE) makeEmpty(*status);
    return MPI_SUCCESS;
  }
  return passOn(1, request, [&](const Underneath& its) { return its.Wait(request, status); });
}

int completeWaitall(int count, MPI_Request* requests, MPI_Status* statuses) {
  if (requests != nullptr && endsHere(takeAll(count, requests), count, statuses)) {
    for (int i = 0; i < count && statuses != MPI_STATUSES_IGNORE; ++i) {
      makeEmpty(statuses[i]);
      statuses[i].MPI_ERROR = MPI_SUCCESS;
    }
    return MPI_SUCCESS;
  }
  return passOn(count, requests, [&](const Underneath& its) { return its.Waitall(count, requests, statuses); });
}

// While one of ours may be the first, neither the MPI nor Kolo may be waited in. The MPI's messages may go on in these
// calls alone, so that the rests between them are short however long it takes.
int completeWaitany(int count, MPI_Request* requests, int* index, MPI_Status* status) {
  if (requests == nullptr || !hasTasks(count, requests)) {
    return passOn(count, requests, [&](const Underneath& its) { return its.Waitany(count, requests, index, status); });
  }
  for (Patience patience(kLeastNapNs);; patience.rest()) {
    declareWhatIsOver(count, requests);
    int flag = 0;
    Arrivals arrivals(count, requests);
    const int code = arrivals.store(underneath().Testany(count, requests, index, &flag, status));
    if (code != MPI_SUCCESS || flag != 0) return code;
  }
}

int completeWaitsome(int count, MPI_Request* requests, int* outcount, int* indices, MPI_Status* statuses) {
  if (requests == nullptr || !hasTasks(count, requests)) {
    return passOn(count, requests,
                  [&](const Underneath& its) { return its.Waitsome(count, requests, outcount, indices, statuses); });
  }
  for (Patience patience(kLeastNapNs);; patience.rest()) {
    declareWhatIsOver(count, requests);
    Arrivals arrivals(count, requests);
    const int code = arrivals.store(underneath().Testsome(count, requests, outcount, indices, statuses));
    if (code != MPI_SUCCESS || *outcount != 0) return code;
  }
}

int completeTest(MPI_Request* request, int* flag, MPI_Status* status) {
  if (request != nullptr && !takeIfAllAreOver(1, request)) declareWhatIsOver(1, request);
  return passOn(1, request, [&](const Underneath& its) { return its.Test(request, flag, status); });
}

int completeTestall(int count, MPI_Request* requests, int* flag, MPI_Status* statuses) {
  if (requests != nullptr && !takeIfAllAreOver(count, requests)) declareWhatIsOver(count, requests);
  return passOn(count, requests, [&](const Underneath& its) { return its.Testall(count, requests, flag, statuses); });
}

int completeTestany(int count, MPI_Request* requests, int* index, int* flag, MPI_Status* status) {
  if (requests != nullptr) declareWhatIsOver(count, requests);
  return passOn(count, requests,
                [&](const Underneath& its) { return its.Testany(count, requests, index, flag, status); });
}

int completeTestsome(int count, MPI_Request* requests, int* outcount, int* indices, MPI_Status* statuses) {
  if (requests != nullptr) declareWhatIsOver(count, requests);
  return passOn(count, requests,
                [&](const Underneath& its) { return its.Testsome(count, requests, outcount, indices, statuses); });
}

int completeRequest_get_status(MPI_Request request, int* flag, MPI_Status* status) {
  declareWhatIsOver(1, &request);
  Arrivals arrivals(1, &request);
  const int code =
      passOn(0, nullptr, [&](const Underneath& its) { return its.Request_get_status(request, flag, status); });
  return arrivals.store(code, code == MPI_SUCCESS && *flag != 0);
}

int completeRequest_free(MPI_Request* request) {
  if (request == nullptr || !letGo(*request)) {
    return passOn(0, nullptr, [&](const Underneath& its) { return its.Request_free(request); });
  }
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

}  // namespace

#define FUNCTION(Name, parameters, arguments)      \
  KOLO_MPI_DEFINE(Name, parameters) {              \
    try {                                          \
      sweepFreed();                                \
      return complete##Name arguments;             \
    } catch (const std::bad_alloc&) {              \
      return raise(MPI_COMM_SELF, MPI_ERR_NO_MEM); \
    }                                              \
  }
#include "mpi/completions.inc"
#undef FUNCTION

}  // namespace kolo::mpi
