#include "nic.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "../connect/party.h"
#include "base/descriptor.h"
#include "base/words.h"
#include "pairing.h"

namespace kolo::ib {
namespace {

int numberOf(const koloTransportHost& host, const char* name, int fallback) {
  const std::string_view text = connect::settingOf(host, name);
  return text.empty() ? fallback : std::atoi(text.data());
}

// "mlx5_0,mlx5_2", or "^mlx5_1": all but those. Empty: all.
bool isWanted(std::string_view list, std::string_view name) {
  const bool excludes = !list.empty() && list.front() == '^';
  if (excludes) list.remove_prefix(1);
  const std::vector<std::string> named = wordsOf(list);
  return named.empty() || (std::find(named.begin(), named.end(), name) != named.end()) != excludes;
}

// By the interface that has the port's address: of its bits, those that name the network; 0: there is none.
std::uint8_t prefixOf(const PortAddress& port, const std::vector<network::Place>& own) {
  for (const network::Place& place : own) {
    const std::size_t bytes = place.size();
    const bool isMapped = std::memcmp(port.gid, kMappedPrefix, sizeof kMappedPrefix) == 0;
    if (isMapped == place.isV6 || std::memcmp(port.gid + 16 - bytes, place.bytes, bytes) != 0) continue;
    return static_cast<std::uint8_t>(place.prefix + (place.isV6 ? 0 : 96));
  }
  return 0;
}

void add(std::string* story, const std::string& what) { *story += (story->empty() ? "" : "; ") + what; }

}  // namespace

Settings readSettings(const koloTransportHost& host) {
  Settings settings;
  settings.devices = connect::settingOf(host, "KOLO_IB_DEVICES");
  settings.gidIndex = numberOf(host, "KOLO_IB_GID_INDEX", settings.gidIndex);
  settings.timeout = numberOf(host, "KOLO_IB_TIMEOUT", settings.timeout);
  settings.retries = numberOf(host, "KOLO_TEST_IB_RETRIES", settings.retries);
  settings.rails = numberOf(host, "KOLO_IB_RAILS", settings.rails);
  settings.trafficClass = numberOf(host, "KOLO_IB_TRAFFIC_CLASS", settings.trafficClass);
  settings.serviceLevel = numberOf(host, "KOLO_IB_SERVICE_LEVEL", settings.serviceLevel);
  settings.silenceMs = connect::silenceOf(host);
  constexpr std::size_t kEnd = offsetof(koloTransportHost, nearNics) + sizeof host.nearNics;
  const bool isNamed = !settings.devices.empty() && settings.devices.front() != '^';
  if (host.size >= kEnd && host.nearNics != nullptr && !isNamed) settings.near = wordsOf(host.nearNics);
  return settings;
}

int Nics::open(const Settings& settings, const Why& why) {
  const auto loaded = drivers::verbs();
  if (!loaded.ok()) return why.fail(KOLO_TRANSPORT_ERROR, "%s", loaded.status().message().c_str());
  verbs_ = loaded.value();
  const StandardStreamsHeld held;
  int count = 0;
  ibv_device** const list = verbs_->getDeviceList(&count);
  std::string story;
  for (int i = 0; list != nullptr && i < count; ++i) {
    const char* const name = verbs_->getDeviceName(list[i]);
    if (!isWanted(settings.devices, name)) add(&story, fmt::format("{}: not in KOLO_IB_DEVICES", name));
    else if (list[i]->transport_type != IBV_TRANSPORT_IB)
      add(&story, fmt::format("{}: neither InfiniBand nor RoCE", name));
    else openOne(list[i], settings, &story);
  }
  if (list != nullptr) verbs_->freeDeviceList(list);
  keepBest(settings.near);
  std::vector<network::Place> own;
  (void)network::ownPlaces(
      &own);  // without, networks are told from each other by how much of their addresses is the same
  for (const auto& port : ports_) port->address.prefix = prefixOf(port->address, own);
  if (!ports_.empty()) return KOLO_TRANSPORT_OK;
  return why.fail(KOLO_TRANSPORT_ERROR, "no usable port: %s",
                  story.empty() ? "there is no RDMA device" : story.c_str());
}

int Nics::openOne(ibv_device* device, const Settings& settings, std::string* story) {
  Nic nic{verbs_->openDevice(device), nullptr, verbs_->getDeviceName(device), 0};
  if (nic.context == nullptr) {
    add(story, fmt::format("{}: opening it: {}", nic.name, ErrorText(errno).text));
    return KOLO_TRANSPORT_ERROR;
  }
  ibv_device_attr attributes{};
  const std::size_t before = ports_.size();
  const int errnum = verbs_->queryDevice(nic.context, &attributes);
  if (errnum != 0) add(story, fmt::format("{}: asking for its properties: {}", nic.name, ErrorText(errnum).text));
  nic.mostRequests = attributes.max_qp_wr;
  for (int number = 1; errnum == 0 && number <= attributes.phys_port_cnt; ++number) {
    auto port = usablePort(nic, static_cast<std::uint8_t>(number), settings, story);
    if (port != nullptr) ports_.push_back(std::move(port));
  }
  if (ports_.size() > before && (nic.domain = verbs_->allocPd(nic.context)) == nullptr) {
    add(story, fmt::format("{}: allocating a protection domain: {}", nic.name, ErrorText(errno).text));
    ports_.resize(before);
  }
  if (ports_.size() == before) {
    verbs_->closeDevice(nic.context);
    return KOLO_TRANSPORT_ERROR;
  }
  // The service thread polls it with others.
  (void)fcntl(nic.context->async_fd, F_SETFL, fcntl(nic.context->async_fd, F_GETFL) | O_NONBLOCK);
  nics_.push_back(std::move(nic));
  return KOLO_TRANSPORT_OK;
}

std::unique_ptr<Port> Nics::usablePort(const Nic& nic, std::uint8_t number, const Settings& settings,
                                       std::string* story) const {
  auto port = std::make_unique<Port>();
  port->nic = nics_.size();
  port->number = number;
  port->name = fmt::format("{} port {}", nic.name, number);
  ibv_port_attr attributes{};
  if (const int errnum = verbs_->queryPort(nic.context, number, &attributes); errnum != 0) {
    add(story, fmt::format("{}: {}", port->name, ErrorText(errnum).text));
    return nullptr;
  }
  if (attributes.state != IBV_PORT_ACTIVE) {
    add(story, fmt::format("{} is not active", port->name));
    return nullptr;
  }
  port->megabits = megabitsOf(attributes.active_speed, attributes.active_width);
  port->address = {};
  port->address.lid = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND ? attributes.lid : 0;
  port->address.mtu = static_cast<std::uint8_t>(attributes.active_mtu);
  if (chooseGid(nic, attributes, settings.gidIndex, port.get())) return port;
  add(story, settings.gidIndex >= 0
                 ? fmt::format("{} has no address at KOLO_IB_GID_INDEX {}", port->name, settings.gidIndex)
                 : fmt::format(
                       "{} has only link-local addresses (give its network interface an IP address, or name one of its "
                       "addresses by KOLO_IB_GID_INDEX)",
                       port->name));
  return nullptr;
}

// The best entry of the port's table, or the one that the user wants, whatever it is.
bool Nics::chooseGid(const Nic& nic, const ibv_port_attr& attributes, int wished, Port* port) const {
  const bool isInfiniBand = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
  int best = 0;
  for (int index = 0; index < attributes.gid_tbl_len; ++index) {
    if (wished >= 0 && index != wished) continue;
    ibv_gid gid{};
    if (verbs_->queryGid(nic.context, port->number, index, &gid) != 0) continue;
    auto kind = verbs_->gidType(nic.context, port->number, index);
    if (isInfiniBand) kind = drivers::GidType::kInfiniBand;
    else if (kind == drivers::GidType::kUnknown) kind = drivers::GidType::kRoceV1;
    const ibv_gid none{};
    const bool isThere = std::memcmp(gid.raw, none.raw, sizeof none.raw) != 0;
    const int score = wished >= 0 ? isThere : scoreGid(gid.raw, static_cast<std::uint8_t>(kind), isInfiniBand);
    if (score <= best) continue;
    best = score;
    port->gidIndex = index;
    port->address.kind = static_cast<std::uint8_t>(kind);
    std::memcpy(port->address.gid, gid.raw, sizeof port->address.gid);
  }
  return best > 0;
}

// The fastest ports, the nearest first; NICs of which none is left are closed.
void Nics::keepBest(const std::vector<std::string>& near) {
  std::stable_sort(ports_.begin(), ports_.end(),
                   [](const auto& a, const auto& b) { return a->megabits > b->megabits; });
  // A port much slower than the best would hold up what is spread over all.
  std::erase_if(ports_, [most = ports_.empty() ? 0 : ports_.front()->megabits](const auto& port) {
    return port->megabits * 2 < most;
  });
  const auto distance = [&](const auto& port) {
    return std::find(near.begin(), near.end(), nics_[port->nic].name) - near.begin();
  };
  if (!near.empty())
    std::stable_sort(ports_.begin(), ports_.end(),
                     [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  const auto isFar = [&](const auto& port) {
    return std::find(near.begin(), near.end(), nics_[port->nic].name) == near.end();
  };
  const bool hasNear = std::any_of(ports_.begin(), ports_.end(), [&](const auto& port) { return !isFar(port); });
  for (const auto& port : ports_) port->address.isFar = hasNear && isFar(port) ? 1 : 0;
  if (ports_.size() > kMostPorts) ports_.resize(kMostPorts);
  std::vector<Nic> kept;
  std::vector<std::size_t> place(nics_.size());
  for (std::size_t i = 0; i < nics_.size(); ++i) {
    place[i] = kept.size();
    if (std::any_of(ports_.begin(), ports_.end(), [&](const auto& port) { return port->nic == i; })) {
      kept.push_back(std::move(nics_[i]));
    } else {
      verbs_->deallocPd(nics_[i].domain);
      verbs_->closeDevice(nics_[i].context);
    }
  }
  nics_ = std::move(kept);
  for (const auto& port : ports_) {
    port->nic = place[port->nic];
    port->address.nic = static_cast<std::uint8_t>(port->nic);
  }
}

Nics::~Nics() {
  for (const Nic& nic : nics_) {
    verbs_->deallocPd(nic.domain);
    verbs_->closeDevice(nic.context);
  }
}

void Nics::forget() { nics_.clear(); }

}  // namespace kolo::ib
