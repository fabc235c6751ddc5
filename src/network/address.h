// An IP address.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kolo::network {

struct Address {
  bool isV6 = false;
  unsigned char bytes[16] = {};  // the first 4 of them if not isV6

  std::size_t size() const { return isV6 ? 16 : 4; }
  // It leads to this very network stack, whatever its interface: 127.0.0.0/8, ::1.
  bool isLoopback() const;
  // It means nothing without the number of an interface of this host: fe80::/10.
  bool isLinkLocalV6() const;
  std::string text() const;
  // "192.0.2.1:5000", "[fd00::2]:5000"
  std::string text(std::uint16_t port) const;
  // For connect(2) and bind(2).
  socklen_t fill(std::uint16_t port, sockaddr_storage& storage) const;
  bool operator==(const Address& other) const;
};

// Of a text; nothing: it is none.
std::optional<Address> parseAddress(std::string_view text);
// Nothing: of another family. An IPv4 address that a socket of both kinds has mapped to IPv6 is one of IPv4.
std::optional<Address> addressOf(const sockaddr* from);

}  // namespace kolo::network
