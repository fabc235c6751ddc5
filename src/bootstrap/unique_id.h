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
constexpr std::uint8_t kIdFormat = 1;  // of what follows it; what is before the maker's pid is the same in all formats

struct IdContents {
  std::uint8_t format = kIdFormat;
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

// Of a hub of this process that listens at these addresses; its port is still to be filled in.
IdContents contentsOfId(const Secret& secret, const LocalAddresses& local, bool explicitRoot);

koloUniqueId encodeId(const IdContents& contents);
// koloInvalidArgument: not an id, or damaged. koloMismatch: of a version of the library that writes ids in another
// format, both printed. Another version alone is no error here: its hub is to refuse this rank, so that all ranks hear
// of it at once.
Result<IdContents> decodeId(const koloUniqueId& id);

}  // namespace kolo::bootstrap
