#include "mpi/task.h"

#include "mpi/started.h"

namespace kolo::mpi {

// Where the program has so many under way that requests become scarce, it waits.
koloResult_t Task::start(bool onlyGives) {
  if (onlyGives) {
    koloSetMayWait(0);
    const koloResult_t result = run(Call());
    koloSetMayWait(1);
    if (result != koloInProgress) return result;
  }
  constexpr int kMost = 16'000;  // the rest is for what else the process does
  return run(tasksUnderWay() < kMost ? Call(&request_) : Call());
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
