// What the library needs from before main() until after its end.
#pragma once

namespace kolo {

// An object that the compiler makes, all zero where its constructor allows that, so that a page of it takes memory only
// when it is used, and that nothing destroys: threads of the library may outlive main(). A function's static object is
// made at the first call instead, where a fork may find another thread.
template <class T>
union Forever {
  constexpr Forever() : object() {}
  constexpr ~Forever() {}
  T object;
};

}  // namespace kolo
