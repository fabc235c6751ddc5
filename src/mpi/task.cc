#include "mpi/task.h"

namespace kolo::mpi {

koloResult_t Task::start() {
  if (order_.onlyGives) {
    koloSetMayWait(0);
    const koloResult_t result = order_.run(Call());
    koloSetMayWait(1);
    if (result != koloInProgress) return result;
  }
  return order_.run(Call(&request_));
}

bool Task::isOver() {
  if (request_ == nullptr) return true;
  const koloResult_t result = koloRequestTest(request_);
  if (result == koloInProgress) return false;
  end(result);
  return true;
}

void Task::wait() {
  if (request_ != nullptr) end(koloRequestWait(request_, -1));
}

void Task::end(koloResult_t result) {
  result_ = result;
  if (result != koloSuccess) message_ = koloGetLastError(nullptr);
  koloRequestFree(request_);
  request_ = nullptr;
}

}  // namespace kolo::mpi
