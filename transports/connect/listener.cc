#include "listener.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <string>

namespace kolo::connect {
namespace {

// A dialler answers at once, if its process runs; a set of connections is complete as soon.
constexpr std::chrono::milliseconds kClientTime{10000};
// A dialler that has given up has closed the connections of its set. Others wait for it no longer than that.
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

IdKey keyOf(const Id& id) {
  IdKey key;
  std::copy(std::begin(id), std::end(id), key.begin());
  return key;
}

Listener::Listener(const std::optional<network::Address>& only) : Server("kolo-net", kClientTime), only_(only) {}

Listener& Listener::at(const std::optional<network::Address>& only) {
  struct All {
    std::mutex mutex;
    std::map<std::string, Listener> listeners;  // few: of each address of this host one
  };
  All& all = ofThisProcess<All>();
  const std::lock_guard lock(all.mutex);
  return all.listeners.try_emplace(only.has_value() ? only->text() : "", only).first->second;
}

int Listener::add(const Id& device, const Entry& entry, const settings::Ports& ports, Callee* callee) {
  {
    const std::lock_guard lock(state_);
    if (members_.empty()) ports_ = ports;
    members_[keyOf(device)] = {entry, callee};
  }
  const int errnum = acquire();
  if (errnum != 0) {
    const std::lock_guard lock(state_);
    members_.erase(keyOf(device));
  }
  return errnum;
}

void Listener::remove(const Id& device) {
  {
    const std::lock_guard lock(state_);
    // Not there in a child that was forked in between.
    if (members_.erase(keyOf(device)) == 0) return;
    std::erase_if(sets_, [&](const auto& set) { return set.second.to == keyOf(device); });
  }
  release();
}

std::uint16_t Listener::port() {
  const std::lock_guard lock(state_);
  return port_;
}

int Listener::refusedFor() {
  const std::lock_guard lock(state_);
  return refusedFor_;
}

int Listener::listen(Socket& listener) {
  network::Listening made = network::listenAt(only_.has_value() ? &*only_ : nullptr, ports_);
  listener = std::move(made.socket);
  port_ = made.port;
  return made.errnum;
}

void Listener::end() {
  sets_.clear();
  port_ = 0;
  refusedFor_ = 0;
}

std::unique_ptr<network::Stranger> Listener::welcome(Socket socket) {
  Directory& here = *this;
  return std::make_unique<Answer>(here, std::move(socket));
}

// The caller that dials is told which limit was reached.
std::string Listener::refusal(int errnum) {
  Challenge challenge{};
  setMagic(challenge);
  challenge.version = kVersion;
  challenge.status = Status::kOutOfFiles;
  challenge.detail = errnum == EMFILE ? network::fileLimit() : 0;
  return {reinterpret_cast<const char*>(&challenge), sizeof challenge};
}

void Listener::hasRefused(int errnum) {
  refusedFor_ = errnum;
  char line[256];
  std::snprintf(line, sizeof line, "a rank's connection was refused: %s", ErrorText(errnum).text);
  if (!members_.empty()) members_.begin()->second.callee->log(1, line);
}

// Sets that are not complete in time are given up, and those whose dialler has.
Clock::time_point Listener::attend(Clock::time_point now) {
  auto next = Clock::time_point::max();
  std::erase_if(sets_, [&](const auto& entry) {
    const Set& set = entry.second;
    const bool isOver = now >= set.since + kClientTime ||
                        std::any_of(set.rails.begin(), set.rails.end(),
                                    [](const Socket& rail) { return rail.valid() && network::hasEnded(rail.fd()); });
    if (isOver) members_.at(set.to).callee->giveUp(set.from);
    else next = now + kLook;
    return isOver;
  });
  return next;
}

void Listener::take(Answer& client) {
  const Hello& hello = client.hello();
  const auto member = members_.find(keyOf(hello.to));
  if (member == members_.end()) return;
  const auto at = sets_.find(keyOf(hello.set));
  if (at == sets_.end()) return;
  Set& set = at->second;
  set.rails[hello.rail] = client.takeSocket();
  if (!std::all_of(set.rails.begin(), set.rails.end(), [](const Socket& rail) { return rail.valid(); })) return;
  Set complete = std::move(set);
  sets_.erase(at);
  try {
    member->second.callee->arrive(complete.from, std::move(complete.rails));
  } catch (const std::bad_alloc&) {  // as if the caller had gone
    member->second.callee->giveUp(complete.from);
  }
}

void Listener::drop(const Hello& hello) {
  const auto at = sets_.find(keyOf(hello.set));
  if (at == sets_.end()) return;
  members_.at(at->second.to).callee->giveUp(at->second.from);
  sets_.erase(at);
}

const Directory::Entry* Listener::find(const Id& device) const {
  const auto at = members_.find(keyOf(device));
  return at != members_.end() ? &at->second.entry : nullptr;
}

// The first connection of a set is decided upon by the device; the others follow it.
Decision Listener::decide(const Hello& hello, const Key& key) {
  const auto member = members_.find(keyOf(hello.to));
  const auto at = sets_.find(keyOf(hello.set));
  const Caller caller{keyOf(hello.from), hello.fromRank, key, hello.cipher};
  if (member == members_.end()) return Decision::kHave;
  if (hello.rail != 0) {
    const bool isExpected = at != sets_.end() && at->second.from.device == caller.device &&
                            at->second.to == keyOf(hello.to) && at->second.rails.size() == hello.rails;
    return isExpected && !at->second.rails[hello.rail].valid() ? Decision::kTaken : Decision::kHave;
  }
  if (at != sets_.end()) return Decision::kHave;
  Set set{keyOf(hello.to), caller, {}, Clock::now()};
  set.rails.resize(hello.rails);
  const auto made = sets_.emplace(keyOf(hello.set), std::move(set)).first;
  Decision decision = Decision::kHave;
  try {
    decision = member->second.callee->decide(caller);
  } catch (const std::bad_alloc&) {  // to this caller, it is not taken
  }
  if (decision != Decision::kTaken) sets_.erase(made);
  return decision;
}

}  // namespace kolo::connect
