// The hub's part in what it tells many ranks of a host at once: billboard.h. The ranks of its own host read a billboard
// of this process; those of another one that one of them keeps, the first that has come, or the first that is left when
// the keeper has ended. A host with few ranks has none: they are sent everything.
#include <algorithm>

#include "base/insist.h"
#include "bootstrap/hub.h"

namespace kolo::bootstrap {
namespace {

constexpr int kFewestReaders = 4;  // on another host: with fewer, it is not worth the keeper's answer

}  // namespace

// Without a billboard all goes on.
void Hub::offerBillboard(Member& member) {
  if (member.place == 0) return;
  (void)withoutExceptions([&] {
    Host& host = hosts_[member.place];
    if (host.ranks++ == 0) host.keeper = member.rank;
    const bool isHere = member.place == placeIdentity();
    if (isHere && host.billboard == nullptr) host.billboard = Billboard::make(slots_.size());
    if (!isHere && host.ranks == kFewestReaders) askForBillboard(host);
    invite(member);
    return Status();
  });
}

void Hub::askForBillboard(Host& host) {
  const Member* const keeper = joined(host.keeper);
  if (keeper != nullptr) host.billboard = Billboard::askFor(reactor_, slots_.size(), keeper->channel);
}

// A rank in another process of a host that has a billboard.
void Hub::invite(Member& member) {
  const auto host = hosts_.find(member.place);
  if (host == hosts_.end() || host->second.billboard == nullptr || member.process == processIdentity()) return;
  const SharedFrame invitation = host->second.billboard->invitation();
  if (invitation == nullptr) return;
  member.channel->send(invitation);
  member.reading.next = host->second.billboard;
}

bool Hub::onKeepsBillboard(const MemberPtr& member, Decoder& decoder) {
  const auto host = hosts_.find(member->place);
  const bool isKeeper =
      host != hosts_.end() && host->second.keeper == member->rank && host->second.billboard != nullptr;
  if (!isKeeper || !host->second.billboard->onKept(decoder)) return false;
  for (const Slot& slot : slots_) {
    if (slot.member != nullptr && slot.member->place == member->place) (void)insist([&] { invite(*slot.member); });
  }
  return true;
}

// One that answers an earlier invitation has still to answer the last one.
bool Hub::onReadsBillboard(const MemberPtr& member, Decoder& decoder) {
  const std::string_view nonce = decoder.raw(BillboardFile::kNonceBytes);
  if (!decoder.done() || member->reading.next == nullptr) return false;
  if (nonce != member->reading.next->nonce()) return true;
  member->reading.reader = member->reading.next->addReader(member->channel);
  member->reading.billboard = std::move(member->reading.next);
  return true;
}

bool Hub::onRead(const MemberPtr& member, Decoder& decoder) {
  const auto number = decoder.number<std::uint64_t>();
  Billboard::Reader* const reader = member->reading.reader.get();
  if (!decoder.done() || reader == nullptr || number <= reader->read || number > reader->told) return false;
  reader->read = number;
  return true;
}

bool Hub::onPosted(const MemberPtr& member, Decoder& decoder) const {
  const auto host = hosts_.find(member->place);
  return host != hosts_.end() && host->second.keeper == member->rank && host->second.billboard != nullptr &&
         host->second.billboard->onPosted(decoder);
}

// The rank leaves, or has died. Another one is asked when there is something to share: where all leave one after the
// other, there is nothing more.
void Hub::endBillboardOf(const Member& member) {
  const auto host = hosts_.find(member.place);
  if (host == hosts_.end() || host->second.keeper != member.rank || member.place == placeIdentity()) return;
  if (host->second.billboard != nullptr) host->second.billboard->close();
  hosts_.erase(host);
  (void)insist([&] { keeperless_.insert(member.place); });
}

void Hub::replaceKeepers() {
  std::erase_if(keeperless_, [this](std::uint64_t place) {
    const auto host = hosts_.find(place);
    return host != hosts_.end() && host->second.billboard != nullptr;  // ranks have returned there since
  });
  if (keeperless_.empty()) return;
  for (const std::uint64_t place : keeperless_) hosts_.erase(place);
  for (const Slot& slot : slots_) {
    if (slot.member == nullptr || keeperless_.count(slot.member->place) == 0) continue;
    Host& host = hosts_[slot.member->place];
    if (host.ranks++ == 0) host.keeper = slot.member->rank;
    if (host.ranks == kFewestReaders) askForBillboard(host);
  }
  keeperless_.clear();
}

// What waits for keepers goes over the connections: this process may be about to end.
void Hub::hurryBillboards() {
  for (auto& [place, host] : hosts_) {
    if (host.billboard != nullptr) host.billboard->hurry();
  }
}

void Hub::broadcast(const SharedFrame& frame, bool outsidersOnly) {
  std::vector<MemberPtr> members;
  for (const Slot& slot : slots_) {
    if (slot.member != nullptr && !(outsidersOnly && slot.member->process == processIdentity()))
      members.push_back(slot.member);
  }
  tell(members, frame);
}

// By billboards, those that read them.
void Hub::tell(const std::vector<MemberPtr>& members, const SharedFrame& frame) {
  std::map<const Billboard*, LaterFrame> places;
  (void)withoutExceptions([&] {
    if (frame->size() < Billboard::kWorthSharing) return Status();
    std::map<Billboard*, std::vector<Billboard::ReaderPtr>> readers;
    for (const MemberPtr& each : members) {
      if (each->reading.reader != nullptr) readers[each->reading.billboard.get()].push_back(each->reading.reader);
    }
    Sheet sheet(frame);
    for (const auto& [billboard, all] : readers) {
      LaterFrame& place = places[billboard];
      place = billboard->put(sheet, all);
    }
    return Status();
  });
  const auto placeFor = [&places](const Member& member) {
    const auto found = member.reading.reader != nullptr ? places.find(member.reading.billboard.get()) : places.end();
    return found != places.end() ? found->second : nullptr;
  };
  for (const MemberPtr& each : members) {
    (void)insist([&] {
      if (const LaterFrame place = placeFor(*each); place != nullptr) each->channel->sendLater(place);
      else each->channel->send(frame);
    });
  }
  if (frame->size() >= Billboard::kWorthSharing) (void)insist([this] { replaceKeepers(); });
}

}  // namespace kolo::bootstrap
