// The functions of the mock that make and use objects, under the names of drivers::Verbs.
#pragma once

#include "mock_verbs/world.h"

namespace kolo::test::mock_verbs {

ibv_gid gidAt(int nic, int index);
std::uint16_t lidOf(int nic);

ibv_pd* allocPd(ibv_context* context);
int deallocPd(ibv_pd* domain);
ibv_mr* regMr(ibv_pd* domain, void* memory, std::size_t bytes, unsigned access);
ibv_mr* regDmabufMr(ibv_pd* domain, std::uint64_t offset, std::size_t bytes, std::uint64_t iova, int fd,
                    unsigned access);
int deregMr(ibv_mr* region);
ibv_cq* createCq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector);
int destroyCq(ibv_cq* queue);
int pollCq(ibv_cq* queue, int most, ibv_wc* completions);
ibv_qp* createQp(ibv_pd* domain, ibv_qp_init_attr* attributes);
int modifyQp(ibv_qp* pair, ibv_qp_attr* attributes, int mask);
int destroyQp(ibv_qp* pair);
int postSend(ibv_qp* pair, ibv_send_wr* requests, ibv_send_wr** refused);
int postReceive(ibv_qp* pair, ibv_recv_wr* requests, ibv_recv_wr** refused);

}  // namespace kolo::test::mock_verbs
