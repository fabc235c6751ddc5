#include "drivers/verbs/verbs.h"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kolo::drivers {
namespace {

std::atomic<const Verbs*> mocked{nullptr};

// Of what is no symbol of the library, or one of another shape than the header says.
int (*plainQueryPort)(ibv_context*, std::uint8_t, void*);
ibv_mr* (*plainRegMr)(ibv_pd*, void*, std::size_t, int);
ibv_mr* (*optionalRegMr)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned);  // null: a library from before it

ibv_mr* (*optionalRegDmabufMr)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int);  // null: as above

// As the header's inline function, which cannot be used without linking the library.
int queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* attributes) {
  std::memset(attributes, 0, sizeof *attributes);
  verbs_context* const extended = verbs_get_ctx_op(context, query_port);
  return extended != nullptr ? extended->query_port(context, port, attributes, sizeof *attributes)
                             : plainQueryPort(context, port, attributes);
}

ibv_mr* regMr(ibv_pd* domain, void* address, std::size_t bytes, unsigned access) {
  if ((access & IBV_ACCESS_OPTIONAL_RANGE) != 0 && optionalRegMr != nullptr) {
    return optionalRegMr(domain, address, bytes, reinterpret_cast<std::uintptr_t>(address), access);
  }
  return plainRegMr(domain, address, bytes,
                    static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE)));
}

ibv_mr* regDmabufMr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                    unsigned access) {
  if (optionalRegDmabufMr != nullptr)
    return optionalRegDmabufMr(domain, offset, bytes, iova, fd, static_cast<int>(access));
  errno = EOPNOTSUPP;
  return nullptr;
}

// The kernel says it in sysfs only; an entry that is empty has no type there.
GidType gidType(ibv_context* context, std::uint8_t port, int index) {
  char path[IBV_SYSFS_PATH_MAX + 64];
  std::snprintf(path, sizeof path, "%s/ports/%u/gid_attrs/types/%d", context->device->ibdev_path, port, index);
  char text[32] = {};
  if (std::FILE* const file = std::fopen(path, "re"); file != nullptr) {
    (void)!std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
  }
  if (std::strncmp(text, "RoCE v2", 7) == 0) return GidType::kRoceV2;
  if (std::strncmp(text, "IB/RoCE v1", 10) == 0) return GidType::kRoceV1;  // of a port of InfiniBand: its own kind
  return GidType::kUnknown;
}

int pollCq(ibv_cq* queue, int most, ibv_wc* completions) { return ibv_poll_cq(queue, most, completions); }

int postSend(ibv_qp* pair, ibv_send_wr* requests, ibv_send_wr** refused) {
  return ibv_post_send(pair, requests, refused);
}

int postReceive(ibv_qp* pair, ibv_recv_wr* requests, ibv_recv_wr** refused) {
  return ibv_post_recv(pair, requests, refused);
}

// Symbols have versions; an older one of the same name takes other structures.
template <class Function>
void find(void* library, const char* name, Function& function, const char** missing,
          const char* version = "IBVERBS_1.1") {
  function = reinterpret_cast<Function>(dlvsym(library, name, version));
  if (function == nullptr && missing != nullptr) *missing = name;
}

Result<Verbs> load() {
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return error(koloUnsupported,
                 "no RDMA device: libibverbs.so.1 is not installed (Debian: libibverbs1 ibverbs-providers)");
  }
  Verbs table{};
  const char* missing = nullptr;
  find(library, "ibv_get_device_list", table.getDeviceList, &missing);
  find(library, "ibv_free_device_list", table.freeDeviceList, &missing);
  find(library, "ibv_get_device_name", table.getDeviceName, &missing);
  find(library, "ibv_open_device", table.openDevice, &missing);
  find(library, "ibv_close_device", table.closeDevice, &missing);
  find(library, "ibv_get_async_event", table.getAsyncEvent, &missing);
  find(library, "ibv_ack_async_event", table.ackAsyncEvent, &missing);
  find(library, "ibv_query_device", table.queryDevice, &missing);
  find(library, "ibv_query_port", plainQueryPort, &missing);
  find(library, "ibv_query_gid", table.queryGid, &missing);
  find(library, "ibv_alloc_pd", table.allocPd, &missing);
  find(library, "ibv_dealloc_pd", table.deallocPd, &missing);
  find(library, "ibv_reg_mr", plainRegMr, &missing);
  find(library, "ibv_reg_mr_iova2", optionalRegMr, nullptr, "IBVERBS_1.8");
  find(library, "ibv_reg_dmabuf_mr", optionalRegDmabufMr, nullptr, "IBVERBS_1.12");
  find(library, "ibv_dereg_mr", table.deregMr, &missing);
  find(library, "ibv_create_cq", table.createCq, &missing);
  find(library, "ibv_destroy_cq", table.destroyCq, &missing);
  find(library, "ibv_create_qp", table.createQp, &missing);
  find(library, "ibv_modify_qp", table.modifyQp, &missing);
  find(library, "ibv_destroy_qp", table.destroyQp, &missing);
  find(library, "ibv_wc_status_str", table.statusText, &missing);
  // The library stays open: the providers that it has loaded do not end with dlclose().
  if (missing != nullptr)
    return error(koloUnsupported, "no RDMA device: libibverbs.so.1 is too old, it lacks {}", missing);
  table.queryPort = queryPort;
  table.gidType = gidType;
  table.regMr = regMr;
  table.regDmabufMr = regDmabufMr;
  table.pollCq = pollCq;
  table.postSend = postSend;
  table.postReceive = postReceive;
  return table;
}

}  // namespace

Result<const Verbs*> verbs() {
  if (const Verbs* mock = mocked.load(std::memory_order_acquire)) return mock;  // [mock] what the test prepared
  static const Result<Verbs>& loaded = *new Result<Verbs>(load());
  if (!loaded.ok()) return loaded.status();
  return &loaded.value();
}

void setVerbs(const Verbs* mock) { mocked.store(mock, std::memory_order_release); }  // [mock]

}  // namespace kolo::drivers
