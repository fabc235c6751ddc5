#include "network/address.h"

#include <arpa/inet.h>

#include <cstring>

namespace kolo::network {

bool Address::isLoopback() const {
  static constexpr unsigned char kLoopbackV6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return isV6 ? std::memcmp(bytes, kLoopbackV6, sizeof bytes) == 0 : bytes[0] == 127;
}

bool Address::isLinkLocalV6() const { return isV6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

std::string Address::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  (void)::inet_ntop(isV6 ? AF_INET6 : AF_INET, bytes, text, sizeof text);
  return text;
}

std::string Address::text(std::uint16_t port) const {
  return (isV6 ? "[" + text() + "]" : text()) + ":" + std::to_string(port);
}

socklen_t Address::fill(std::uint16_t port, sockaddr_storage& storage) const {
  storage = {};
  if (isV6) {
    auto& to = reinterpret_cast<sockaddr_in6&>(storage);
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(port);
    std::memcpy(&to.sin6_addr, bytes, 16);
    return sizeof to;
  }
  auto& to = reinterpret_cast<sockaddr_in&>(storage);
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  std::memcpy(&to.sin_addr, bytes, 4);
  return sizeof to;
}

bool Address::operator==(const Address& other) const {
  return isV6 == other.isV6 && std::memcmp(bytes, other.bytes, size()) == 0;
}

std::optional<Address> parseAddress(std::string_view text) {
  const std::string terminated(text);
  Address address{.isV6 = text.find(':') != std::string_view::npos};
  if (::inet_pton(address.isV6 ? AF_INET6 : AF_INET, terminated.c_str(), address.bytes) != 1) return std::nullopt;
  return address;
}

std::optional<Address> addressOf(const sockaddr* from) {
  if (from == nullptr || (from->sa_family != AF_INET && from->sa_family != AF_INET6)) return std::nullopt;
  Address address;
  if (from->sa_family == AF_INET) {
    std::memcpy(address.bytes, &reinterpret_cast<const sockaddr_in*>(from)->sin_addr, 4);
    return address;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(from)->sin6_addr;
  address.isV6 = !IN6_IS_ADDR_V4MAPPED(&v6);
  std::memcpy(address.bytes, v6.s6_addr + (address.isV6 ? 0 : 12), address.size());
  return address;
}

}  // namespace kolo::network
