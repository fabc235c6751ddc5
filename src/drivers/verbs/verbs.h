// libibverbs, opened at run time: the library has no hard dependency on it (D10). What the transport over InfiniBand
// uses of it is one table of functions, which the tests fill with a mock.
//
// Much of what looks like a function in <infiniband/verbs.h> is a macro, or goes through a table that hangs on the
// context. So these members have names of their own, and a mock need not imitate the insides of a context.
//
// Thread safety: all functions, as libibverbs: different threads may use one object.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "base/status.h"

namespace kolo::drivers {

// What an entry of a port's table of addresses is good for.
enum class GidType : std::uint8_t { kUnknown, kInfiniBand, kRoceV1, kRoceV2 };

struct Verbs {
  ibv_device** (*getDeviceList)(int* count);
  void (*freeDeviceList)(ibv_device** list);
  const char* (*getDeviceName)(ibv_device* device);
  ibv_context* (*openDevice)(ibv_device* device);
  int (*closeDevice)(ibv_context* context);
  int (*getAsyncEvent)(ibv_context* context, ibv_async_event* event);
  void (*ackAsyncEvent)(ibv_async_event* event);
  int (*queryDevice)(ibv_context* context, ibv_device_attr* attributes);
  int (*queryPort)(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes);
  int (*queryGid)(ibv_context* context, std::uint8_t port, int index, ibv_gid* gid);
  GidType (*gidType)(ibv_context* context, std::uint8_t port, int index);
  ibv_pd* (*allocPd)(ibv_context* context);
  int (*deallocPd)(ibv_pd* domain);
  // access: IBV_ACCESS_...; of those that are optional, a device may leave out what it cannot do.
  ibv_mr* (*regMr)(ibv_pd* domain, void* address, std::size_t bytes, unsigned access);
  // Registers a range of a dma-buf. NICs address its byte `offset` as `iova`, which has the same place in its page. The
  // registration holds the buffer: the file may be closed.
  ibv_mr* (*regDmabufMr)(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                         unsigned access);
  int (*deregMr)(ibv_mr* memory);
  ibv_cq* (*createCq)(ibv_context* context, int entries, void* userContext, ibv_comp_channel* channel, int vector);
  int (*destroyCq)(ibv_cq* queue);
  int (*pollCq)(ibv_cq* queue, int most, ibv_wc* completions);
  ibv_qp* (*createQp)(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int (*modifyQp)(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
  int (*destroyQp)(ibv_qp* pair);
  int (*postSend)(ibv_qp* pair, ibv_send_wr* requests, ibv_send_wr** refused);
  int (*postReceive)(ibv_qp* pair, ibv_recv_wr* requests, ibv_recv_wr** refused);
  const char* (*statusText)(ibv_wc_status status);
};

// The library, if this machine has it; otherwise why not, in one line. Decided once. Says nothing about devices.
Result<const Verbs*> verbs();

// For tests, before the first use: everything goes to this one. nullptr: back to the machine's.
void setVerbs(const Verbs* mock);

}  // namespace kolo::drivers
