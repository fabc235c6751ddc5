// One call of c10d's, from its arguments to its end: where its elements lie, and what has to live until it is over.
#pragma once

#include <kolo/kolo.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "torch/c10d.h"
#include "torch/datatypes.h"

namespace kolo::pytorch {

// Where a call of kolo.h goes.
struct Place {
  koloComm_t comm = nullptr;
  koloStream_t stream = nullptr;     // on GPUs: a cudaStream_t
  koloRequest_t* request = nullptr;  // not nullptr: the operation is to be started as a request
};

// Calls one of kolo.h's operations in the form that the place asks for.
template <class Blocking, class Requesting, class... Arguments>
koloResult_t start(const Place& at, Blocking blocking, Requesting requesting, Arguments... arguments) {
  return at.request != nullptr ? requesting(arguments..., at.comm, at.request)
                               : blocking(arguments..., at.comm, at.stream);
}

// All that `issue` calls is one group. It has to call all the group's operations with the place that it is given.
template <class Issue>
koloResult_t startGroup(const Place& at, Issue&& issue) {
  if (const koloResult_t result = koloGroupStart(); result != koloSuccess) return result;
  issue(Place{at.comm, at.stream});  // a refused call is what the end of the group returns
  return at.request != nullptr ? koloIgroupEnd(at.request) : koloGroupEnd();
}

// An operation that has no form of its own as a request: where one is asked for, the operation is a group by itself.
template <class Call, class... Arguments>
koloResult_t startAlone(const Place& at, Call call, Arguments... arguments) {
  if (at.request == nullptr) return call(arguments..., at.comm, at.stream);
  return startGroup(at, [&](const Place& inside) { (void)call(arguments..., inside.comm, inside.stream); });
}

// The elements of one tensor in their logical order.
struct Block {
  void* data = nullptr;
  std::size_t count = 0;
};

// The elements of several tensors: block i begins displs[i] elements behind data.
struct Blocks {
  void* data = nullptr;
  std::vector<std::size_t> counts, displs;
  bool equal = true;  // all counts are
};

// What the profiler shows of an operation: the tensors that it reads or, if there are none, those that it writes.
struct Profile {
  std::vector<at::Tensor> read, written;
  // nullptr: nobody is profiling.
  static std::unique_ptr<Profile> make();
  const std::vector<at::Tensor>& shown() const { return read.empty() ? written : read; }
};

class Operation {
 public:
  // title: "kolo:all_reduce", a constant. lasting: the caller's tensors have to be kept, for the call returns earlier.
  Operation(const char* title, c10d::OpType type, at::Device device, bool lasting)
      : title(title), type(type), device(device), lasting(lasting), profile(Profile::make()) {}
  Operation(Operation&&) = default;

  // The tensor's elements: to be read, to be written, or both. A tensor that is not contiguous gets contiguous memory
  // for the operation, which is copied back at its end.
  Block reads(const at::Tensor& tensor);
  Block writes(const at::Tensor& tensor);
  Block updates(const at::Tensor& tensor);

  // A list of tensors. In a row: if they do not lie one behind the other, they get memory in which they do. Apart: they
  // may lie anywhere, if neither they nor `other`, the operation's other buffer, have to be copied, and nothing of
  // `other` lies between them.
  Blocks readsInRow(const std::vector<at::Tensor>& tensors);
  Blocks writesInRow(const std::vector<at::Tensor>& tensors);
  Blocks readsApart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other);
  Blocks writesApart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other);

  koloRedOp_t reduction(const c10d::ReduceOp& op, at::ScalarType scalar, koloComm_t comm);

  // What is left to do when Kolo has done its part, or failed: then nothing is copied.
  void conclude(bool success);
  // Whether conclude() calls functions of torch's, which are to find the caller's settings.
  bool needsLocals() const;
  // A success that is none for torch: a message that was shorter than its tensor. nullptr otherwise.
  std::exception_ptr complaint() const;

  const char* title;
  c10d::OpType type;
  at::Device device;
  bool lasting;
  std::unique_ptr<Profile> profile;               // until the record has begun
  std::vector<at::Tensor> outputs;                // the work's result; only of lasting operations
  std::function<void()> afterwards;               // at the end, before anybody learns of it
  koloRecvStatus_t received{-1, -1, 0};           // of a receive
  std::vector<std::unique_ptr<Operation>> parts;  // of coalesced calls

  // It is a receive, of so many elements.
  void expects(std::size_t count) { expected_ = count; }

  // Every tensor whose memory the operation uses, if it is a lasting one.
  template <class Function>
  void visitTensors(Function&& function) const {
    for (const at::Tensor& tensor : held_) function(tensor);
    for (const Copy& copy : copies_) function(copy.to), function(copy.from);
    for (const auto& part : parts) part->visitTensors(function);
  }

  void keep(const at::Tensor& tensor) {
    if (lasting) held_.push_back(tensor);
  }
  // To the profiler.
  void show(const at::Tensor& tensor, bool written) {
    if (profile) [[unlikely]]
      (written ? profile->written : profile->read).push_back(tensor);
  }

 private:
  Blocks inRow(const std::vector<at::Tensor>& tensors, bool written);
  Blocks apart(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& other, bool written);

  struct Copy {
    at::Tensor to, from;
  };
  std::optional<std::size_t> expected_;
  std::vector<at::Tensor> held_;
  std::vector<Copy> copies_;
  std::vector<Reduction> reductions_;
};

// The tensors of a list are of one type and on one device.
void checkAlike(const std::vector<at::Tensor>& tensors);

}  // namespace kolo::pytorch
