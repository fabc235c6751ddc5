// How a collective is called on Kolo: by the function that waits, or by the one that starts a request.
#pragma once

#include <kolo/kolo.h>

namespace kolo::mpi {

class Call {
 public:
  Call() = default;  // waits
  explicit Call(koloRequest_t* request) : request_(request) {}

  bool waits() const { return request_ == nullptr; }
  // arguments: what both functions have before their last parameter.
  template <class Waiting, class Starting, class... Arguments>
  koloResult_t operator()(Waiting* waiting, Starting* starting, Arguments... arguments) const {
    return request_ == nullptr ? waiting(arguments..., nullptr) : starting(arguments..., request_);
  }

 private:
  koloRequest_t* request_ = nullptr;
};

}  // namespace kolo::mpi
