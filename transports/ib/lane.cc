#include "lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace kolo::ib {
namespace {

// Work requests of a queue pair; two are a long put with a signal.
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
  const std::uint32_t depth =
      nic.mostRequests > 0 ? std::min(kDepth, static_cast<std::uint32_t>(nic.mostRequests)) : kDepth;
  const std::uint32_t room = std::min(depth, kMostPackets);
  queue_ = verbs.createCq(nic.context, static_cast<int>(depth + room) + 1, nullptr, nullptr, 0);
  if (queue_ == nullptr)
    return why.fail(KOLO_TRANSPORT_ERROR, "%s: creating a completion queue: %s", port_.name.c_str(),
                    ErrorText(errno).text);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = queue_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = depth;
  attributes.cap.max_recv_wr = room;
  attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
  // What a NIC takes inline is found by trying.
  for (std::uint32_t most : {kInline, 128u, 64u, 8u, 0u}) {
    attributes.cap.max_inline_data = inline_ = most;
    pair_ = verbs.createQp(nic.domain, &attributes);
    if (pair_ != nullptr || errno != EINVAL) break;
  }
  if (pair_ == nullptr)
    return why.fail(KOLO_TRANSPORT_ERROR, "%s: creating a queue pair: %s", port_.name.c_str(), ErrorText(errno).text);
  // A long put with a signal takes two, and one is kept.
  if (depth < 3)
    return why.fail(KOLO_TRANSPORT_ERROR, "%s: takes %u work requests at a time, expected 3 or more",
                    port_.name.c_str(), depth);
  // A word is always sent inline: the place where it came from may be gone when a NIC gets to it.
  if (inline_ < 8) return why.fail(KOLO_TRANSPORT_ERROR, "%s: takes no 8 bytes inline", port_.name.c_str());
  depth_ = depth;
  randombytes_buf(&sequence_, sizeof sequence_);
  sequence_ &= 0xffffff;
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = port_.number;
  state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  int errnum = verbs.modifyQp(pair_, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (errnum == 0 && (errnum = packets_.open(nic.domain, room)) != 0) {
    return why.fail(KOLO_TRANSPORT_ERROR, "%s: registering memory for packets: %s%s", port_.name.c_str(),
                    ErrorText(errnum).text, lockingLimit(errnum).c_str());
  }
  if (errnum == 0) errnum = packets_.makeReady(pair_);
  if (errnum == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "%s: preparing a queue pair: %s", port_.name.c_str(), ErrorText(errnum).text);
}

int Lane::connect(const PairAddress& peer, const PortAddress& peerPort, const Settings& settings, const Why& why) {
  const Verbs& verbs = nics_.verbs();
  theirNic_ = peerPort.nic;
  theirRoom_ = peer.room;
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
    constexpr int kSend =
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    errnum = verbs.modifyQp(pair_, &state, kSend);
  }
  if (errnum == 0) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "%s: connecting a queue pair: %s", port_.name.c_str(), ErrorText(errnum).text);
}

void Lane::exchangeCredit(const std::uint64_t* here, std::uint64_t nonceHere, const Target& there,
                          std::uint64_t nonceThere) {
  packets_.expectCredit(here, nonceHere, theirRoom_);
  creditThere_ = there;
  nonceThere_ = nonceThere;
}

Lane::Posting& Lane::addPosting(ibv_wr_opcode opcode) {
  Posting& posting = chain_.emplace_back();
  posting.request.wr_id = ++posted_;
  posting.request.opcode = opcode;
  return posting;
}

void Lane::addWrite(const Target& to, std::uint64_t offset, const void* from, std::uint64_t bytes,
                    const Region* region) {
  closePacket();
  Posting& posting = addPosting(IBV_WR_RDMA_WRITE);
  posting.part = {reinterpret_cast<std::uint64_t>(from), static_cast<std::uint32_t>(bytes),
                  region != nullptr ? region->localKey(port_.nic) : 0};
  posting.request.send_flags = region == nullptr ? IBV_SEND_INLINE : 0;
  posting.request.wr.rdma.remote_addr = to.address + offset;
  posting.request.wr.rdma.rkey = to.keys[theirNic_];
}

void Lane::addWord(const Target& to, std::uint64_t value) {
  addWrite(to, 0, nullptr, sizeof value, nullptr);
  chain_.back().word = value;
}

// REQUIRES: credit, if it does not join the packet before.
void Lane::addRecord(const Request& request) {
  const std::uint64_t bytes = request.isShort() ? request.bytes : 0;
  if (!joinsPacket(Record::room(bytes))) {
    packet_ = packets_.begin();
    packetBytes_ = 0;
    addPosting(IBV_WR_SEND).part = {reinterpret_cast<std::uint64_t>(packet_), 0, packets_.key()};
  }
  const Record record{request.data.address,
                      request.hasSignal ? request.word.address : 0,
                      request.signal,
                      request.data.keys[theirNic_],
                      request.word.keys[theirNic_],
                      static_cast<std::uint32_t>(bytes),
                      0};
  std::memcpy(packet_ + packetBytes_, &record, sizeof record);
  if (bytes != 0) std::memcpy(packet_ + packetBytes_ + sizeof record, request.from, bytes);
  packetBytes_ += Record::room(bytes);
  chain_.back().part.length = packetBytes_;
}

bool Lane::add(const Request& request) {
  const bool isRecord = !request.isWord && (request.isShort() || request.hasSignal);
  const std::uint64_t written = request.isShort() ? 0 : request.bytes;
  std::uint64_t slots = (written + kMostBytes - 1) / kMostBytes + request.isWord;
  if (isRecord && (written != 0 || !joinsPacket(Record::room(request.bytes)))) {
    ++slots;
    if (!packets_.hasCredit()) return false;
  }
  if (used_ + slots > depth_ - (request.isWord ? 0 : 1)) return false;
  // Inline: it is copied by the call that posts it, which is the processor's work.
  const bool isInline = fitsInline(written) && (request.region == nullptr || !request.region->isOfDevice);
  for (std::uint64_t done = 0; done < written;) {
    const std::uint64_t step = std::min(written - done, kMostBytes);
    addWrite(request.data, done, request.from + done, step, isInline ? nullptr : request.region);
    done += step;
  }
  if (isRecord) addRecord(request);
  if (request.isWord) addWord(request.word, request.signal);
  Request& kept = underWay_.pushBack(request);
  kept.slots = static_cast<std::uint16_t>(slots);
  kept.sequence = posted_;
  used_ += kept.slots;
  return true;
}

bool Lane::send() {
  closePacket();
  if (chain_.empty()) return true;
  silent_ += static_cast<std::uint32_t>(chain_.size());
  quietPolls_ = 0;
  // With none under way that will tell, this one does; else one of several, for a telling costs the NIC a write of its
  // own.
  if (signaled_ == 0 || silent_ >= depth_ / kTellings) {
    chain_.back().request.send_flags |= IBV_SEND_SIGNALED;
    ++signaled_;
    silent_ = 0;
  }
  ibv_send_wr* next = nullptr;
  for (auto posting = chain_.rbegin(); posting != chain_.rend(); ++posting) {
    ibv_send_wr& request = posting->request;
    if (posting->part.addr == 0) posting->part.addr = reinterpret_cast<std::uint64_t>(&posting->word);
    if (request.opcode == IBV_WR_SEND && fitsInline(posting->part.length)) request.send_flags |= IBV_SEND_INLINE;
    request.sg_list = &posting->part;
    request.num_sge = 1;
    request.next = std::exchange(next, &request);
  }
  ibv_send_wr* refused = nullptr;
  const bool isAccepted = nics_.verbs().postSend(pair_, next, &refused) == 0;
  chain_.clear();
  return isAccepted;
}

bool Lane::sendWord(const Target& word, std::uint64_t value) {
  Request request;
  request.hasSignal = request.isWord = true;
  request.word = word;
  request.signal = value;
  return add(request) && send();
}

void Lane::wantCompletion(const Target& marker) {
  if (underWay_.empty() || signaled_ > 0 || ++quietPolls_ < kQuiet) return;
  (void)sendWord(marker, 0);  // a refusal is followed by an error of what is under way, or by the peer's silence
}

bool Lane::giveBack() {
  if (packets_.isMakingReadyDue() && packets_.makeReady(pair_) != 0) return false;
  if (!owesCredit() || !hasRoomForWord()) return true;
  toldThere_ = packets_.ready();
  return sendWord(creditThere_, nonceThere_ + toldThere_);  // [credit]
}

std::vector<Request> Lane::takeUnderWay() {
  used_ = 0;
  return underWay_.takeAll();
}

void Lane::close(std::uint32_t number) {
  std::uint32_t open = 0;
  closing_.compare_exchange_strong(
      open, number, std::memory_order_acq_rel);  // [closing] before the peer is told, and sends by another lane
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_ERR;
  (void)nics_.verbs().modifyQp(pair_, &state, IBV_QP_STATE);
}

}  // namespace kolo::ib
