#include "packets.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <numeric>

namespace kolo::ib {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Packets::~Packets() {
  if (region_ != nullptr) verbs_.deregMr(region_);
  ::operator delete(memory_, kAlignment);
}

int Packets::open(ibv_pd* domain, std::uint32_t room) {
  room_ = std::min(room, kMostPackets);
  const std::size_t bytes = std::size_t{room_ + kMostPackets} * kPacketBytes;
  memory_ = static_cast<unsigned char*>(::operator new(bytes, kAlignment));
  std::memset(memory_, 0, bytes);
  region_ = verbs_.regMr(domain, memory_, bytes, IBV_ACCESS_LOCAL_WRITE);
  free_.resize(room_);
  std::iota(free_.begin(), free_.end(), 0);
  return region_ != nullptr ? 0 : errno;
}

void Packets::expectCredit(const std::uint64_t* word, std::uint64_t nonce, std::uint32_t room) {
  credit_ = word;
  nonce_ = nonce;
  theirRoom_ = std::min(room, kMostPackets);
}

bool Packets::hasCredit() {
  if (sent_ - credited_ < theirRoom_) return true;
  if (credit_ == nullptr) return false;
  // [credit] The peer has read what stood in its buffers. What is not between the counts is of a way before this one.
  const std::uint64_t told = __atomic_load_n(credit_, __ATOMIC_ACQUIRE) - nonce_;
  if (told - credited_ <= sent_ - credited_) credited_ = told;
  return sent_ - credited_ < theirRoom_;
}

int Packets::makeReady(ibv_qp* pair) {
  ibv_recv_wr requests[kMostPackets];
  ibv_sge parts[kMostPackets];
  const std::size_t count = free_.size();
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = {reinterpret_cast<std::uint64_t>(incoming(free_[i])), kPacketBytes, region_->lkey};
    requests[i] = {kReceive | free_[i], i + 1 < count ? &requests[i + 1] : nullptr, &parts[i], 1};
  }
  free_.clear();
  given_ += count;
  ready_ = taken_;
  ibv_recv_wr* refused = nullptr;
  const int errnum = count == 0 ? 0 : verbs_.postReceive(pair, requests, &refused);
  if (errnum != 0) given_ -= count - static_cast<std::size_t>(refused - requests);
  return errnum;
}

void Packets::pop() {
  free_.push_back(arrived_.front().index);
  arrived_.popFront();
  ++taken_;
}

}  // namespace kolo::ib
