// Python's lock, given up where this thread may have it.
#pragma once

#include <Python.h>

namespace kolo::pytorch {

// Another thread may need Python's lock to come to the end of what this one is going to wait for.
class WithoutGil {
 public:
  WithoutGil() : saved_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  WithoutGil(const WithoutGil&) = delete;
  ~WithoutGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }

 private:
  PyThreadState* saved_;
};

}  // namespace kolo::pytorch
