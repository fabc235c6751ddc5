#include "torch/signals.h"

#include <Python.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

namespace kolo::pytorch::signals {
namespace {

namespace py = pybind11;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::nanoseconds kInterval = std::chrono::milliseconds(100);

std::int64_t nowNs() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  WithGil(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace

thread_local constinit detail::Wait detail::wait;

// The process's first thread is Python's main thread, and after a fork the one that forked. Python itself makes sure:
// in other threads it does not run handlers.
std::string look() {
  detail::Wait& wait = detail::wait;
  const std::int64_t now = nowNs();
  const bool isDue = wait.lookAtNs != 0 && now >= wait.lookAtNs;
  if (wait.lookAtNs == 0 || isDue) wait.lookAtNs = now + kInterval.count();
  if (!isDue || wait.raised != nullptr || gettid() != getpid() || Py_IsInitialized() == 0) return {};
  const WithGil here;
  if (PyErr_CheckSignals() == 0) return {};
  const py::error_already_set raised;
  wait.raised = new std::exception_ptr(std::make_exception_ptr(raised));
  return py::str(raised.type().attr("__name__"));
}

void detail::throwRaised() {
  const std::unique_ptr<std::exception_ptr> raised(std::exchange(wait.raised, nullptr));
  std::rethrow_exception(*raised);
}

void endWaitQuietly() {
  try {
    endWait();
  } catch (py::error_already_set& raised) {
    const WithGil here;
    raised.discard_as_unraisable("the end of a process group");
  }
}

}  // namespace kolo::pytorch::signals
