#include "lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

namespace kolo::ib {
namespace {

// Work requests of a queue pair; two are a put with a signal.
constexpr std::uint32_t kDepth = 256;
// Header lines and small payloads; more is better read from where it lies.
constexpr std::uint32_t kInline = 220;
// Of one work request; what a port can do is 2 GiB or 1 GiB.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
// How often a full queue tells at least that requests are complete.
constexpr std::uint32_t kTellings = 4;
// Polls without a new request after which completions are asked for.
constexpr std::uint32_t kQuiet = 4;

}  // namespace

Lane::~Lane() {
  if (pair_ != nullptr) nics_.verbs().destroyQp(pair_);
  if (queue_ != nullptr) nics_.verbs().destroyCq(queue_);
}

int Lane::open(const Why& why) {
  const Verbs& verbs = nics_.verbs();
  const Nic& nic = nics_.of(port_);
  const std::uint32_t depth = nic.mostRequests > 0 ? std::min(kDepth, static_cast<std::uint32_t>(nic.mostRequests)) : kDepth;
  queue_ = verbs.createCq(nic.context, static_cast<int>(depth) + 1, nullptr, nullptr, 0);
  if (queue_ == nullptr) return why.fail(KOLO_TRANSPORT_ERROR, "%s: creating a completion queue: %s", port_.name.c_str(), ErrorText(errno).text);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = queue_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = depth;
  attributes.cap.max_recv_wr = 1;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  // What a NIC takes inline is found by trying.
  for (std::uint32_t most : {kInline, 128u, 64u, 8u, 0u}) {
    attributes.cap.max_inline_data = inline_ = most;
    pair_ = verbs.createQp(nic.domain, &attributes);
    if (pair_ != nullptr || errno != EINVAL) break;
  }
  if (pair_ == nullptr) return why.fail(KOLO_TRANSPORT_ERROR, "%s: creating a queue pair: %s", port_.name.c_str(), ErrorText(errno).text);
  // A signal is always sent inline: the word where it came from may be gone when a NIC gets to it.
  if (inline_ < 8) return why.fail(KOLO_TRANSPORT_ERROR, "%s: takes no 8 bytes inline", port_.name.c_str());
  depth_ = depth;
  randombytes_buf(&sequence_, sizeof sequence_);
  sequence_ &= 0xffffff;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = port_.number;
  state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  const int errnum = verbs.modifyQp(pair_, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (errnum == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "%s: preparing a queue pair: %s", port_.name.c_str(), ErrorText(errnum).text);
}

int Lane::connect(const PairAddress& peer, const PortAddress& peerPort, const Settings& settings, const Why& why) {
  const Verbs& verbs = nics_.verbs();
  theirNic_ = peerPort.nic;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_RTR;
  state.path_mtu = static_cast<ibv_mtu>(std::min(port_.address.mtu, peerPort.mtu));
  state.dest_qp_num = peer.number;
  state.rq_psn = peer.sequence;
  state.ah_attr.port_num = port_.number;
  state.ah_attr.sl = static_cast<std::uint8_t>(settings.serviceLevel);
  state.ah_attr.dlid = peerPort.lid;
  if (port_.address.kind != static_cast<std::uint8_t>(drivers::GidType::kInfiniBand)) {
    state.ah_attr.is_global = 1;
    std::memcpy(state.ah_attr.grh.dgid.raw, peerPort.gid, sizeof peerPort.gid);
    state.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(port_.gidIndex);
    state.ah_attr.grh.hop_limit = 64;
    state.ah_attr.grh.traffic_class = static_cast<std::uint8_t>(settings.trafficClass);
  }
  constexpr int kReceive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  int errnum = verbs.modifyQp(pair_, &state, kReceive);
  if (errnum == 0) {
    state = {};
    state.qp_state = IBV_QPS_RTS;
    state.timeout = static_cast<std::uint8_t>(settings.timeout);
    state.retry_cnt = static_cast<std::uint8_t>(settings.retries);
    state.rnr_retry = 7;
    state.sq_psn = sequence_;
    constexpr int kSend = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    errnum = verbs.modifyQp(pair_, &state, kSend);
  }
  if (errnum == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "%s: connecting a queue pair: %s", port_.name.c_str(), ErrorText(errnum).text);
}

std::uint32_t Lane::slotsOf(const Request& request) const {
  const std::uint64_t pieces = (request.bytes + kMostBytes - 1) / kMostBytes;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, pieces + request.hasSignal));
}

ibv_send_wr* Lane::add(std::uint64_t to, std::uint32_t key, const void* from, std::uint64_t bytes, std::uint32_t localKey, bool isInline) {
  parts_.push_back({reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(bytes), localKey});
  ibv_send_wr request{};
  request.wr_id = ++posted_;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = isInline ? IBV_SEND_INLINE : 0;
  request.wr.rdma.remote_addr = to;
  request.wr.rdma.rkey = key;
  chain_.push_back(request);
  return &chain_.back();
}

// The bytes, then the signal, on one queue pair: a peer sees them in this order. They are two work requests even where the signal lies right
// behind the bytes, as in a header line: nothing says in which order the bytes of one request appear (Soft-RoCE copies them as the
// processor likes; a NIC writes a line at once on today's machines, but nobody promises that). The doorbell is one.
bool Lane::post(Request request) {
  chain_.clear();
  parts_.clear();
  const bool isInline = fitsInline(request.bytes) && (request.region == nullptr || !request.region->isOfDevice);
  for (std::uint64_t done = 0; done < request.bytes;) {
    const std::uint64_t step = std::min(request.bytes - done, kMostBytes);
    add(request.data.address + done, request.data.keys[theirNic_], request.from + done, step,
        isInline ? 0 : request.region->localKey(port_.nic), isInline);
    done += step;
  }
  // Inline: it is copied by the call that posts it.
  if (request.hasSignal || chain_.empty()) add(request.word.address, request.word.keys[theirNic_], &request.signal, 8, 0, true);
  // With none under way that will tell, this one does; else one of several, for a telling costs the NIC a write of its own.
  silent_ += static_cast<std::uint32_t>(chain_.size());
  quietPolls_ = 0;
  if (signaled_ == 0 || silent_ >= depth_ / kTellings) {
    chain_.back().send_flags |= IBV_SEND_SIGNALED;
    ++signaled_;
    silent_ = 0;
  }
  for (std::size_t i = 0; i < chain_.size(); ++i) {
    chain_[i].sg_list = &parts_[i];
    chain_[i].next = i + 1 < chain_.size() ? &chain_[i + 1] : nullptr;
  }
  request.slots = static_cast<std::uint16_t>(chain_.size());
  request.sequence = posted_;
  used_ += request.slots;
  underWay_.push_back(request);
  ibv_send_wr* refused = nullptr;
  return nics_.verbs().postSend(pair_, chain_.data(), &refused) == 0;
}

void Lane::wantCompletion(const Target& marker) {
  if (underWay_.empty() || signaled_ > 0 || ++quietPolls_ < kQuiet || used_ >= depth_) return;
  Request request;
  request.hasSignal = true;
  request.word = marker;
  (void)post(request);  // a refusal is followed by an error of what is under way, or by the peer's silence
}

std::deque<Request> Lane::takeUnderWay() {
  used_ = 0;
  return std::exchange(underWay_, {});
}

void Lane::close() {
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  (void)nics_.verbs().modifyQp(pair_, &state, IBV_QP_STATE);
}

}  // namespace kolo::ib
