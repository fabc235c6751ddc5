#include "failure/reasons.h"

namespace kolo::failure {
namespace {

std::string wordsOf(const std::map<int, std::string>& byPeer, int peer) {
  const auto found = byPeer.find(peer);
  return found != byPeer.end() ? found->second : "";
}

}  // namespace

Status Reasons::messageUnread(int peer) const {
  return error(koloRemoteError, "rank {} could not read the message of rank {}: {}", rank_, peer, access_.message());
}

void Reasons::noteLostLink(int peer, const Status& why) {
  const std::lock_guard lock(mutex_);
  lost_[peer] = why.message();
}

std::string Reasons::lostLink(int peer) const {
  const std::lock_guard lock(mutex_);
  return wordsOf(lost_, peer);
}

std::string Reasons::distrusted(int peer) const {
  const std::lock_guard lock(mutex_);
  return wordsOf(distrusted_, peer);
}

device::Fault Reasons::distrust(int peer, const std::string& what) {
  const std::lock_guard lock(mutex_);
  distrusted_[peer] = fmt::format(
      "rank {} wrote to rank {} {}, which a rank of this version does not do: what it wrote was altered, in memory or "
      "on its way, or "
      "it runs another build of the library. KOLO_TCP_CHECKSUM=1 finds what is altered on its way by tcp",
      peer, rank_, what);
  return {device::Fault::kCorrupt, peer, 0, 0};
}

}  // namespace kolo::failure
