// What each thread has of its own.
#pragma once

#include <utility>

namespace kolo {

// An object that is the thread's own, made when it is first asked for and gone with the thread. Code that asks after
// that, such as the destructor of a global object at the end of the process, gets one that stays. The type is the key:
// one object of each for each thread.
template <class T>
T& ofThread() {
  static thread_local constinit T* object = nullptr;
  if (object == nullptr) {
    struct AtThreadEnd {
      ~AtThreadEnd() { delete std::exchange(object, nullptr); }
    };
    static thread_local const AtThreadEnd atThreadEnd;
    object = new T;
  }
  return *object;
}

}  // namespace kolo
