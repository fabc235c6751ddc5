// Messages between two ranks.
#include "torch/backend.h"

namespace kolo::pytorch {
namespace {

// Messages on GPUs have no tags: those of two ranks match in their order.
bool hasTags(const at::Tensor& tensor, int tag) {
  if (tensor.device().is_cpu()) return true;
  TORCH_CHECK_VALUE(tag == 0, "kolo: messages between GPUs have no tags, got ", tag);
  return false;
}

}  // namespace

WorkPtr KoloBackend::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = only(tensors);
  Operation operation("kolo:send", c10d::OpType::SEND, tensor.device(), true);
  const Block block = operation.reads(tensor);
  const koloDataType_t type = typeToMove(tensor.scalar_type());
  if (!hasTags(tensor, tag)) {
    return run(std::move(operation), true, c10d::kUnsetTimeout,
               [block, type, destination](const Place& at, Operation&) {
                 return koloSend(block.data, block.count, type, destination, at.comm, at.stream);
               });
  }
  return run(std::move(operation), true, c10d::kUnsetTimeout,
             [block, type, destination, tag](const Place& at, Operation&) {
               return start(at, koloSendTag, koloIsend, static_cast<const void*>(block.data), block.count, type,
                            destination, tag);
             });
}

// A message may be shorter than the memory for it, in Kolo; in torch it may not, which is seen at the end.
WorkPtr KoloBackend::receive(Tensors& tensors, int source, int tag, const char* title, c10d::OpType type) {
  const at::Tensor& tensor = only(tensors);
  Operation operation(title, type, tensor.device(), true);
  const Block block = operation.writes(tensor);
  operation.outputs.push_back(tensor);
  const koloDataType_t datatype = typeToMove(tensor.scalar_type());
  if (!hasTags(tensor, tag)) {
    TORCH_CHECK_VALUE(source != KOLO_ANY_SOURCE, "kolo: a GPU receives from one source");
    return run(std::move(operation), true, c10d::kUnsetTimeout, [block, datatype, source](const Place& at, Operation&) {
      return koloRecv(block.data, block.count, datatype, source, at.comm, at.stream);
    });
  }
  operation.expects(block.count);
  return run(std::move(operation), true, c10d::kUnsetTimeout,
             [block, datatype, source, tag](const Place& at, Operation& o) {
               return start(at, koloRecvTag, koloIrecv, block.data, block.count, datatype, source, tag, &o.received);
             });
}

WorkPtr KoloBackend::recv(Tensors& tensors, int source, int tag) {
  TORCH_CHECK_VALUE(source >= 0 && source < size_, "source is ", source, ", expected 0..", size_ - 1);
  return receive(tensors, source, tag, "kolo:recv", c10d::OpType::RECV);
}

WorkPtr KoloBackend::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, KOLO_ANY_SOURCE, tag, "kolo:recvAnySource", c10d::OpType::RECVANYSOURCE);
}

}  // namespace kolo::pytorch
