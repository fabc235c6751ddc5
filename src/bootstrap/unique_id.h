// What is inside a koloUniqueId: where the hub listens, and the job's secret.
//
// 128 bytes, little-endian: "KOLO", format u8, flags u8, port u16, library version u32, maker's pid u32, host identity
// 16, address count u8, 3 x (family u8, address 16), secret 32, checksum 12.
//
// Thread safety: all functions, from any thread.
#pragma once

#include <kolo/kolo.h>

#include <cstdint>
#include <vector>

#include "bootstrap/process_info.h"
#include "bootstrap/socket.h"
#include "bootstrap/wire.h"

namespace kolo::bootstrap {

constexpr std::size_t kMaxAddresses = 3;

struct IdContents {
  // Of a root given by the user: its hub may come up later, so a refused connection is retried until the deadline.
  bool explicitRoot = false;
  // The listener does not serve the loopback address.
  bool boundToOne = false;
  std::uint16_t port = 0;
  std::uint32_t version = KOLO_VERSION_CODE;
  std::uint32_t makerPid = 0;
  Identity host{};
  std::vector<Address> addresses;  // at most kMaxAddresses
  Secret secret{};
};

koloUniqueId encodeId(const IdContents& contents);
// koloInvalidArgument: not an id, or damaged. koloMismatch: of another version of the library, both printed.
Result<IdContents> decodeId(const koloUniqueId& id);

}  // namespace kolo::bootstrap
